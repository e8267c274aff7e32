"""One process behind a port, with faults: calls arrive in order, take effect and are answered, or are not.

A call whose caller gave up still takes effect when it arrives: nobody can call back what is on its way to another
process. The control plane has to live with that, so the virtual world has it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from swingshift.errors import NotAcceptingError
from swingshift.sim.fault_plan import Fault, FaultKind, FaultSchedule

T = TypeVar("T")


class FaultyProcess:
    """``fail(reason)`` makes the error of a failed call, ``died(reason)`` that of a call to a dead process.

    ``kill`` ends what the process simulates, which then fails its calls by itself. Without it the process ends the
    calls under way. ``one_at_a_time``: a call begins when the one before has ended (the trainer's thread).
    """

    def __init__(
        self,
        name: str,
        schedule: FaultSchedule,
        *,
        fail: Callable[[str], Exception],
        died: Callable[[str], Exception],
        kill: Callable[[], None] | None = None,
        one_at_a_time: bool = False,
    ) -> None:
        self.name = name
        self.is_dead = False
        self.dies_with: list[FaultyProcess] = []
        """Others in the same process."""
        self._schedule = schedule
        self._fail = fail
        self._died = died
        self._kill = kill
        self._lock = asyncio.Lock() if one_at_a_time else None
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._newest: asyncio.Future[None] | None = None
        """Done when the newest call has arrived that did not arrive at once."""
        self._open_s = 0.0
        self.jobs: dict[asyncio.Task[Any], None] = {}
        """Calls on their way, perhaps without anybody who waits for them."""

    @property
    def is_frozen(self) -> bool:
        return not self._thawed.is_set()

    def die(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self._thawed.set()
        for other in self.dies_with:
            other.die()
        if self._kill is not None:
            self._kill()
            return
        for job in self.jobs:
            job.cancel()

    def freeze(self, seconds: float) -> None:
        """Stop, keep the memory, and go on after ``seconds``."""
        self._thawed.clear()
        if seconds < float("inf"):
            asyncio.get_running_loop().call_later(seconds, self._thawed.set)

    async def call(self, verb: str, effect: Callable[[], Awaitable[T]], *, outlives_caller: bool = True) -> T:
        """Do it, unless a fault is planned for this call. ``outlives_caller``: it happens even if nobody waits."""
        fault = self._schedule.take(f"{self.name}.{verb}")
        if fault is None and self._newest is None and self._kill is not None and not self.is_frozen:
            result = await effect()
            if self.is_frozen:
                await self._thaw()
            return result
        if self.is_dead:
            raise self._died(f"the process of {self.name} is gone")
        arrival = self._line_up(fault.seconds if fault is not None and fault.kind is FaultKind.DELAY else 0.0)
        job = asyncio.ensure_future(self._deliver(fault, arrival, effect))
        self.jobs[job] = None
        job.add_done_callback(self._ended)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            if job.cancelled() and self.is_dead:
                raise self._died(f"the process of {self.name} died") from None
            if not outlives_caller:
                job.cancel()
                await asyncio.wait([job])
            raise

    def _ended(self, job: asyncio.Task[Any]) -> None:
        self.jobs.pop(job, None)
        if not job.cancelled():
            # Whoever asked may have given up: then nobody else looks at the error.
            job.exception()

    def _line_up(self, delay_s: float) -> _Arrival:
        """At once, because the order of the calls is the order in which they arrive."""
        loop = asyncio.get_running_loop()
        self._open_s = max(self._open_s, loop.time()) + delay_s
        arrival = _Arrival(self._newest, loop.create_future(), self._open_s)
        self._newest = arrival.has_come
        return arrival

    async def _deliver(self, fault: Fault | None, arrival: _Arrival, effect: Callable[[], Awaitable[T]]) -> T:
        await self._arrive(arrival)
        if self._lock is None:
            result = await self._perform(fault, effect)
        else:
            async with self._lock:
                result = await self._perform(fault, effect)
        if fault is not None:
            await self._after(fault)
        if self.is_frozen:
            await self._thaw()
        return result

    async def _perform(self, fault: Fault | None, effect: Callable[[], Awaitable[T]]) -> T:
        if fault is not None:
            await self._before(fault)
        return await effect()

    async def _arrive(self, arrival: _Arrival) -> None:
        """After the calls before it, not before its time, and not before the process runs."""
        loop = asyncio.get_running_loop()
        if arrival.before is not None:
            await arrival.before
        if arrival.opens_s > loop.time():
            moment = loop.create_future()
            loop.call_at(arrival.opens_s, moment.set_result, None)
            await moment
        if self.is_frozen:
            await self._thaw()
        arrival.has_come.set_result(None)
        if self._newest is arrival.has_come:
            self._newest = None

    async def _before(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.ERROR:
                raise self._fail(f"injected: {fault}")
            case FaultKind.REFUSE:
                raise NotAcceptingError(f"injected: {fault}")
            case FaultKind.HANG:
                await forever()
            case FaultKind.FREEZE:
                self.freeze(fault.seconds)
                await self._thaw()
            case FaultKind.DIE:
                if fault.seconds:
                    asyncio.get_running_loop().call_later(fault.seconds, self.die)
                else:
                    self.die()
                    raise self._died(f"injected: {fault}")

    async def _after(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.LOST | FaultKind.OOM:
                raise self._fail(f"injected: {fault}")
            case FaultKind.LATE:
                await after(fault.seconds)
            case FaultKind.DIE_AFTER:
                self.die()
                raise self._died(f"injected: {fault}")

    async def _thaw(self) -> None:
        await self._thawed.wait()
        if self.is_dead:
            raise self._died(f"the process of {self.name} died while it was stopped")


@dataclass(frozen=True, slots=True)
class _Arrival:
    """``before``: the arrival of the call before it, if that has not come yet."""

    before: asyncio.Future[None] | None
    has_come: asyncio.Future[None]
    opens_s: float


async def after(seconds: float) -> None:
    """Without a timer where it never comes, so that a run that waits for it has nothing scheduled."""
    if seconds == float("inf"):
        await forever()
    await asyncio.sleep(seconds)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()
