"""One wrong input: what is typed, what lies in the folder, and what the error lines must say."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

Content = str | bytes | None | Callable[[bytes], bytes]
"""Of a file: text, bytes, or what becomes of the file that is there. None is a folder."""
Files = Mapping[str, Content]

DEEP = "[" * 100_000
LONG = "x" * 300
"""Longer than any file's name."""
HUGE = "9" * 5000
"""More digits than Python reads as a number."""


def gone(content: bytes) -> bytes:
    """In place of a content: the file is removed."""
    raise AssertionError("never called")


def half(content: bytes) -> bytes:
    """Cut in the middle of a line."""
    return content[: len(content) // 2 + 1]


@dataclass(frozen=True)
class Case:
    """``parts`` must all be in the error lines. ``in_run``: the folder ``run`` is a simulated run's."""

    argv: list[str]
    parts: tuple[str, ...]
    files: Files = field(default_factory=dict)
    code: int = 2
    in_run: bool = False

    def __str__(self) -> str:
        words = " ".join(word[:40] for word in self.argv)
        return f"{words} [{', '.join(self.files)}]" if self.files else words


def bad(line: str | list[str], *parts: str, files: Files | None = None, code: int = 2, in_run: bool = False) -> Case:
    """``line`` as typed into a shell."""
    assert parts
    return Case(shlex.split(line) if isinstance(line, str) else line, parts, files or {}, code, in_run)


def lay(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink(missing_ok=True)
            path.mkdir()
        elif content is gone:
            path.unlink()
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.write_bytes(content(path.read_bytes()) if callable(content) else content)
