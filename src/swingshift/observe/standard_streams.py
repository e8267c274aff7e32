"""Standard output and standard error, whatever they are connected to: a terminal, a full disk, nothing at all."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import IO


def prepare_output() -> None:
    """Characters that its encoding lacks become question marks; where it is closed, what is written goes nowhere."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def complain(text: str) -> None:
    """One line on standard error, if that can be written."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{text}\n")


def settle(stream: IO[str] | None) -> None:
    """At the end: write what is buffered, or give it up. The interpreter would call it an error."""
    if stream is None:
        return
    try:
        stream.write("")  # after a large write that failed only the next one fails, not the flush
        stream.flush()
    except OSError:
        give_up(stream)


def give_up(stream: IO[str]) -> None:
    """It cannot be written. What is still buffered must go somewhere when the interpreter closes the stream."""
    with contextlib.suppress(OSError):  # no stream of the system: nothing is flushed either
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
