"""JSON lines: appending them, and reading back what a run left, even with a torn last line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CHUNK = 65536
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class LineFile:
    """Appends one flat JSON object a line. Raises OSError where the disk does."""

    def __init__(self, path: Path, *, flush_each: bool) -> None:
        _cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")
        self._flush_each = flush_each

    def write(self, record: Mapping[str, Any]) -> None:
        try:
            text = _encode(dict(record))
        except ValueError:  # Hardly ever: looking at every value first would cost a fifth of the time.
            text = _encode({key: _finite(value) for key, value in record.items()})
        self._file.write(text + "\n")
        if self._flush_each:
            self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _cut_torn_line(path: Path) -> None:
    """A killed run or a full disk may leave half a line. What follows must start on its own, and be all there is."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, 2)
        start = end
        while start > 0:
            step = min(_CHUNK, start)
            start -= step
            file.seek(start)
            newline = file.read(step).rfind(b"\n")
            if newline >= 0:
                start += newline + 1
                break
        if start < end:
            file.truncate(start)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record of a file; none if there is no file. Half-written lines are skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(record, dict):
                yield record
