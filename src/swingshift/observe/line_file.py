"""JSON lines: appending them, and reading back what a run left, a torn last line included."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class LineFile:
    """Appends one flat JSON object a line. Raises OSError where the disk does."""

    def __init__(self, path: Path, *, flush_each: bool) -> None:
        torn = path.exists() and not _ends_with_newline(path)
        self._file = path.open("a", encoding="utf-8")
        self._flush_each = flush_each
        if torn:  # A killed run may leave half a line; what follows must start on its own.
            self._file.write("\n")

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


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if size == 0:
            return True
        file.seek(size - 1)
        return file.read(1) == b"\n"


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
