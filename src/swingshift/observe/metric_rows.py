"""The rows of ``metrics.jsonl``: one a cycle, and perhaps a closing one for what came after the last cycle.

A validation begins when a cycle has ended and is told in the row of a later one. After the last cycle there is none:
the closing row has its ``val/…`` and what it cost, under the step of that cycle, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swingshift.observe.line_file import read_lines

_FRAME = ("step", "wall_time")
_CLOSING = ("val/", "separate_async/validate/")


def is_closing(row: Mapping[str, Any]) -> bool:
    names = [name for name in row if name not in _FRAME]
    return bool(names) and all(name.startswith(_CLOSING) for name in names)


def read_cycle_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Of every cycle, in the order they were written; none if there is no file."""
    return (row for row in read_lines(path) if not is_closing(row))
