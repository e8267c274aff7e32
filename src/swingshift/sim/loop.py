"""An asyncio event loop whose clock jumps to the next timer: hours in seconds, the same seed the same trace.

The loop is asyncio's own, with a selector that never blocks. Where the real one would sleep until the next timer,
the clock is set to that timer's time; where it would sleep for ever, nothing can ever move again and the loop
raises DeadlockError with whatever ``describe_waits`` says about who waits for what.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from swingshift.errors import DeadlockError

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """Registers file descriptors (the loop's wake-up pipe) but never waits for them."""

    def __init__(self) -> None:
        super().__init__()
        self.jump: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.jump()
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``after_events`` runs after every batch of events (invariant checks go there)."""

    def __init__(self) -> None:
        self._now = 0.0
        self.num_jumps = 0
        self.after_events: Callable[[], None] | None = None
        self.describe_waits: Callable[[], str] = lambda: "nobody registered a wait"
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.jump = self._jump

    def time(self) -> float:
        return self._now

    def _jump(self) -> None:
        # asyncio has dropped cancelled timers from the head of the heap before it selects.
        if not self._scheduled:  # type: ignore[attr-defined]
            self.after_events = None
            raise DeadlockError(f"nothing is scheduled at t={self._now:.6g} s: {self.describe_waits()}")
        self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        # asyncio runs timers strictly before now + resolution: the smallest step that floats can show here.
        self._clock_resolution = 2 * math.ulp(self._now)
        self.num_jumps += 1

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self.after_events is not None:
            # A broken invariant is reported once: closing the loop runs more events.
            check, self.after_events = self.after_events, None
            check()
            self.after_events = check


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualTimeLoop | None = None) -> T:
    """Run a coroutine to its end in virtual time; cancels what it leaves behind."""
    loop = loop or VirtualTimeLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
