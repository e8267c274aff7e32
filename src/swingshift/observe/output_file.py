"""A file that somebody asked for by name: written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from swingshift.errors import ConfigError


@contextmanager
def output_file(path: Path) -> Iterator[TextIO]:
    """Replaces a file of that name once the block has ended well. Raises ConfigError if it cannot be written."""
    if path.is_dir():
        raise ConfigError(f"-o {path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ConfigError(f"-o {path}: there is no folder {path.parent}; make it, or name another file")
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            try:
                yield file
            except BaseException:
                partial.unlink()
                raise
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"-o {path}: cannot be written ({error.strerror or error}); name another file") from error
