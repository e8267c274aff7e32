"""Ctrl-C and SIGTERM: first end the run in order, then at once, then on the spot."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

EXIT_INTERRUPTED = 130
_WATCHED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Enter it in the run's main task, in the main thread.

    The first signal calls ``stop`` if it is set, else it cancels the main task; the next one cancels; one more ends
    the process, and whatever it started ends with it. The handlers run between any two steps of Python, also while
    the event loop is busy.
    """

    def __init__(self) -> None:
        self.stop: Callable[[], None] | None = None
        self._cancelled = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        self._loop = asyncio.get_running_loop()
        main = asyncio.current_task()
        assert main is not None
        self._main = main
        self._previous = {number: signal.getsignal(number) for number in _WATCHED}
        self.install()
        return self

    def install(self) -> None:
        """Again, once Ray is connected: its core takes SIGTERM for a crash, prints a stack trace and aborts."""
        for number in _WATCHED:
            signal.signal(number, self._on_signal)

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._cancelled:
            _end_now()
        elif self.stop is not None:
            stop, self.stop = self.stop, None
            self._loop.call_soon_threadsafe(stop)
        else:
            self._cancelled = True
            self._loop.call_soon_threadsafe(self._main.cancel)


def _end_now() -> None:
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # a progress bar hides the cursor
    os._exit(EXIT_INTERRUPTED)
