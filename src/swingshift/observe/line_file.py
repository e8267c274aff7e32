"""JSON lines: appending them, and reading back what a run left, even with a torn last line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_CHUNK = 65536
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class LineFile:
    """Appends one flat JSON object a line. Raises OSError where the disk does.

    A line that a full disk refuses is written, the rest of it if it was torn, when there is room again.
    """

    def __init__(self, path: Path, *, flush_each: bool) -> None:
        _cut_torn_line(path)
        self._file = path.open("ab", buffering=0)  # Python's own buffers lose half of what they could not write.
        self._unwritten = bytearray()
        self._max_unwritten = 0 if flush_each else _CHUNK

    def write(self, record: Mapping[str, Any]) -> None:
        try:
            text = _encode(dict(record))
        except ValueError:  # Hardly ever: looking at every value first would cost a fifth of the time.
            text = _encode({key: _finite(value) for key, value in record.items()})
        self._unwritten += f"{text}\n".encode()
        if len(self._unwritten) > self._max_unwritten or self._file.closed:
            self.flush()

    def flush(self) -> None:
        while self._unwritten:
            del self._unwritten[: self._file.write(self._unwritten)]

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._file.close()

    def cut(self, is_kept: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """Cut off all that comes after the newest record that ``is_kept``, and return that one."""
        self.flush()
        with Path(self._file.name).open("rb") as file:
            newest, end = None, file.seek(0, 2)
            while end > 0 and newest is None:
                start = _start_of_line(file, end - 1)
                file.seek(start)
                record = _parse(file.read(end - start).decode(errors="replace"))
                if record is not None and is_kept(record):
                    newest = record
                else:
                    end = start
        self._file.truncate(end)
        return newest


def _cut_torn_line(path: Path) -> None:
    """A killed run or a full disk may leave half a line. What follows must start on its own, and be all there is."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, 2)
        start = _start_of_line(file, end)
        if start < end:
            file.truncate(start)


def _start_of_line(file: BinaryIO, end: int) -> int:
    """The offset after the last newline before ``end``."""
    start = end
    while start > 0:
        step = min(_CHUNK, start)
        start -= step
        file.seek(start)
        newline = file.read(step).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
    return 0


def _parse(line: str) -> dict[str, Any] | None:
    """None for what is no record."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    return record if isinstance(record, dict) else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file; none if there is no file. Half-written lines are skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            record = _parse(line)
            if record is not None:
                yield record
