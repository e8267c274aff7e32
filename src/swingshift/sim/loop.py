"""An asyncio event loop whose clock jumps to the next timer: hours in seconds, the same seed the same trace.

Callbacks, tasks and futures are asyncio's own. Only the two parts that know the time are ours: the timer heap
(tuples, compared without Python code; timers of one moment fire in the order they were set) and the turn of the loop,
which never looks at file descriptors. Where a real loop would sleep until the next timer, the clock is set to that
timer's time; where it would sleep for ever, nothing can ever move again and the loop raises DeadlockError with
whatever ``describe_waits`` says about who waits for what.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple

from swingshift.errors import DeadlockError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MANY_CANCELLED = 100


class _Timer(asyncio.TimerHandle):
    """asyncio's own, made with less ado: simulations live on timers."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        # In the heap: whoever cancels it tells the loop.
        self._scheduled = True


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """``after_events`` runs after every batch of events (invariant checks go there).

    ``num_jumps`` counts moments, ``num_timers`` timers that fired, ``num_callbacks`` everything the loop ran.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._num_set = 0
        self._num_cancelled = 0
        self.num_jumps = 0
        self.num_timers = 0
        self.num_callbacks = 0
        self.after_events: Callable[[], None] | None = None
        self.describe_waits: Callable[[], str] = lambda: "nobody registered a wait"
        super().__init__()

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        self._num_set += 1
        heapq.heappush(self._timers, (when, self._num_set, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return
        self._num_cancelled += 1
        if self._num_cancelled > _MANY_CANCELLED and self._num_cancelled > len(self._timers) / 2:
            self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
            heapq.heapify(self._timers)
            self._num_cancelled = 0

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._jump()
        # What these callbacks schedule belongs to the next turn.
        num_callbacks = len(ready)
        self.num_callbacks += num_callbacks
        for _ in range(num_callbacks):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
        if self.after_events is not None:
            # A broken invariant is reported once: closing the loop runs more events.
            check, self.after_events = self.after_events, None
            check()
            self.after_events = check

    def _jump(self) -> None:
        """To the next timer's moment; every timer of that moment becomes ready."""
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
            self._num_cancelled -= 1
        if not timers:
            self.after_events = None
            raise DeadlockError(f"nothing is scheduled at t={self._now:.6g} s: {self.describe_waits()}")
        self._now = max(self._now, timers[0][0])
        self.num_jumps += 1
        # Moments closer than floats can tell apart here are one.
        end = self._now + math.ulp(self._now)
        while timers and timers[0][0] <= end:
            handle = heapq.heappop(timers)[2]
            if handle._cancelled:
                self._num_cancelled -= 1
                continue
            handle._scheduled = False
            self.num_timers += 1
            ready.append(handle)


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualTimeLoop | None = None) -> T:
    """Run a coroutine to its end in virtual time; cancels what it leaves behind."""
    loop = loop or VirtualTimeLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)
