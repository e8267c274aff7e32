"""Following a growing JSON-lines file, such as the ``metrics.jsonl`` of a run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Tail:
    """Each ``read`` returns the whole records that came since the last one; the first, those near the end.

    ``num_restarts`` counts how often the file turned out to be another one: a run was started anew in its place.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.num_restarts = 0
        self._path = path
        self._max_bytes = max_bytes
        self._inode: int | None = None
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """Raises OSError where the disk does; no file is no records."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            size, inode = file.seek(0, 2), self._path.stat().st_ino
            is_new = inode != self._inode or size < self._offset
            if is_new:
                self.num_restarts += self._inode is not None
                self._inode, self._offset = inode, max(0, size - self._max_bytes)
            starts_within_line = is_new and self._offset > 0
            file.seek(self._offset)
            data = file.read(size - self._offset)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = whole.splitlines()[1:] if starts_within_line else whole.splitlines()
        return [record for line in lines if (record := _parse(line)) is not None]


def _parse(line: bytes) -> dict[str, Any] | None:
    """None for a line that a killed run left half-written."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
