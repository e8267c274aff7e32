"""Calls to a process that meet faults: order, effects, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swingshift.errors import NotAcceptingError, ReplicaDiedError, ReplicaError, TrainerError
from swingshift.sim.fault_plan import Fault, FaultKind, FaultSchedule
from swingshift.sim.fault_process import FaultyProcess
from swingshift.sim.loop import run_virtual


class Probe:
    """A process that notes what took effect, and when."""

    def __init__(self, *plan: Fault, trainer: bool = False) -> None:
        self.effects: list[tuple[str, float]] = []
        self.killed_at: float | None = None
        self.schedule = FaultSchedule(plan)
        self.process = FaultyProcess(
            "p",
            self.schedule,
            fail=TrainerError if trainer else ReplicaError,
            died=TrainerError if trainer else ReplicaDiedError,
            kill=None if trainer else self._kill,
            one_at_a_time=trainer,
        )

    def _kill(self) -> None:
        self.killed_at = now()

    async def call(self, verb: str, seconds: float = 0.0) -> str:
        async def effect() -> str:
            if seconds:
                await asyncio.sleep(seconds)
            self.effects.append((verb, now()))
            return verb.upper()

        return await self.process.call(verb, effect)

    async def failing(self, verb: str) -> Exception:
        with pytest.raises(Exception) as caught:
            await self.call(verb)
        assert isinstance(caught.value, Exception)
        return caught.value


def now() -> float:
    return asyncio.get_running_loop().time()


def on_loop(body: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await body()

    return run_virtual(main())


def test_without_a_fault_a_call_is_what_it_is() -> None:
    async def body() -> None:
        probe = Probe()
        assert await probe.call("a") == "A"
        assert probe.effects == [("a", 0.0)]

    on_loop(body)


def test_a_delayed_call_holds_up_those_after_it() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.DELAY, 1, 3.0))
        answers = await asyncio.gather(probe.call("a"), probe.call("b"), probe.call("c"))
        assert answers == ["A", "B", "C"]
        assert probe.effects == [("a", 3.0), ("b", 3.0), ("c", 3.0)]
        assert await probe.call("d") == "D" and probe.effects[-1] == ("d", 3.0)

    on_loop(body)


def test_a_call_whose_caller_gave_up_still_takes_effect() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.DELAY, 1, 3.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await probe.call("a")
        assert probe.effects == []
        await probe.call("b")
        assert probe.effects == [("a", 3.0), ("b", 3.0)]

    on_loop(body)


@pytest.mark.parametrize(
    ("kind", "error", "takes_effect"),
    [
        (FaultKind.ERROR, ReplicaError, False),
        (FaultKind.REFUSE, NotAcceptingError, False),
        (FaultKind.LOST, ReplicaError, True),
        (FaultKind.OOM, ReplicaError, True),
        (FaultKind.DIE, ReplicaDiedError, False),
        (FaultKind.DIE_AFTER, ReplicaDiedError, True),
    ],
)
def test_calls_fail_with_or_without_an_effect(kind: FaultKind, error: type[Exception], takes_effect: bool) -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", kind))
        assert type(await probe.failing("a")) is error
        assert bool(probe.effects) is takes_effect
        assert (probe.killed_at is not None) is (error is ReplicaDiedError)

    on_loop(body)


def test_a_late_answer_comes_after_the_effect() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.LATE, 1, 2.0))
        task = asyncio.ensure_future(probe.call("a"))
        await asyncio.sleep(0.5)
        assert probe.effects == [("a", 0.0)] and await probe.call("b") == "B"
        assert await task == "A" and now() == 2.0

    on_loop(body)


def test_a_hung_call_never_ends_and_others_go_on() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.HANG))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1e6):
                await probe.call("a")
        assert await probe.call("b") == "B" and probe.effects == [("b", 1e6)]

    on_loop(body)


def test_a_frozen_process_does_later_what_it_was_asked_for_meanwhile() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.FREEZE, 1, 4.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await probe.call("a")
        assert await probe.call("b") == "B"
        assert probe.effects == [("a", 4.0), ("b", 4.0)]

    on_loop(body)


def test_the_answer_of_a_process_that_freezes_meanwhile_comes_when_it_goes_on() -> None:
    async def body() -> None:
        probe = Probe()
        task = asyncio.ensure_future(probe.call("a", seconds=1.0))
        await asyncio.sleep(0.5)
        probe.process.freeze(3.0)
        assert await task == "A" and now() == 3.5

    on_loop(body)


def test_whoever_waits_for_a_frozen_process_hears_of_its_death() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.FREEZE, 1, float("inf")))
        asyncio.get_running_loop().call_later(2.0, probe.process.die)
        assert type(await probe.failing("a")) is ReplicaDiedError
        assert now() == 2.0 and probe.killed_at == 2.0 and probe.effects == []

    on_loop(body)


def test_the_trainer_does_one_thing_after_the_other_and_its_death_ends_what_it_does() -> None:
    async def body() -> None:
        probe = Probe(trainer=True)
        first, second = (asyncio.ensure_future(probe.call(verb, seconds=2.0)) for verb in "ab")
        await first
        assert now() == 2.0
        await asyncio.sleep(1.0)
        probe.process.die()
        with pytest.raises(TrainerError, match="died"):
            await second
        assert type(await probe.failing("c")) is TrainerError
        assert probe.effects == [("a", 2.0)]

    on_loop(body)


def test_a_process_dies_while_it_does_what_it_was_asked() -> None:
    async def body() -> None:
        probe = Probe(Fault("p.a", FaultKind.DIE, 1, 0.5))
        await probe.call("a", seconds=2.0)
        assert probe.killed_at == 0.5

    on_loop(body)


def test_the_nth_matching_call_meets_a_fault_once() -> None:
    schedule = FaultSchedule((Fault("*.abort", FaultKind.ERROR, 3), Fault("r-1.*", FaultKind.HANG, 2)))
    met = [schedule.take(call) for call in ("r-0.abort", "r-1.abort", "r-2.sleep", "r-1.abort", "r-1.abort")]
    assert [fault and fault.kind for fault in met] == [None, None, None, FaultKind.ERROR, None]
    assert [where for where, _ in schedule.fired] == ["r-1.abort"]
    schedule.is_over = True
    assert [schedule.take("r-1.abort") for _ in range(5)] == [None] * 5
