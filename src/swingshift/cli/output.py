"""What commands print: text and tables on standard output, warnings on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swingshift.cli import exit_codes
from swingshift.observe.standard_streams import complain, give_up

if TYPE_CHECKING:
    from rich.console import RenderableType


class OutputClosed(Exception):
    """Nobody reads our standard output any more (``… | head``), or it cannot be written."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def emit(text: str) -> None:
    """Write to standard output; end quietly if nobody reads it any more (``… | head``), else with one line."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        give_up(sys.stdout)
        if isinstance(error, BrokenPipeError):
            raise OutputClosed(exit_codes.BROKEN_PIPE) from None
        complain(f"error: standard output cannot be written ({error.strerror or error})")
        raise OutputClosed(exit_codes.FAILED) from None


def show_all(shown: Sequence[RenderableType]) -> None:
    """Text as it is; tables as wide as the terminal, or as they need where there is none."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200)
    for item in shown:
        if isinstance(item, str):
            emit(item)
            continue
        with console.capture() as capture:
            console.print(item)
        emit("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def align(rows: Sequence[tuple[str, str, str]]) -> str:
    """Columns; a row with only a first cell is a heading."""
    widths = [max(len(row[column]) for row in rows if any(row[1:])) for column in (0, 1)]
    lines = []
    for first, second, third in rows:
        if second or third:
            lines.append(f"  {first:<{widths[0]}}  {second:<{widths[1]}}  {third}".rstrip())
        else:
            lines.append(f"{first}:")
    return "".join(f"{line}\n" for line in lines)


def warn(args: argparse.Namespace, text: str) -> None:
    if args.quiet == 0:
        complain(f"warning: {text}")
