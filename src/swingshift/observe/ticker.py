"""A function called again and again on the event loop: for what people look at, never for what decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swingshift.observe.guard import Guard


class Ticker:
    """Calls ``function`` every ``interval_s`` between ``start`` and ``stop``. Its errors are warned about once."""

    def __init__(self, name: str, function: Callable[[], None], interval_s: float = 1.0) -> None:
        self._function = function
        self._interval_s = interval_s
        self._guard = Guard(name)
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Inside a running event loop."""
        self._tick(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard():
            self._function()
        self._handle = loop.call_later(self._interval_s, self._tick, loop)
