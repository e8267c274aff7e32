"""The virtual-time loop: jumps, exact times, deadlocks that say so."""

from __future__ import annotations

import asyncio
import time

import pytest

from swingshift.errors import DeadlockError
from swingshift.runtime.signals import Signal, WaitBoard
from swingshift.sim.loop import VirtualTimeLoop, run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


def test_hours_pass_at_once_and_exactly() -> None:
    async def main() -> list[float]:
        seen = []
        for seconds in (3600.0, 0.25, 86_400.0 * 365):
            await asyncio.sleep(seconds)
            seen.append(now())
        return seen

    started = time.monotonic()
    assert run_virtual(main()) == [3600.0, 3600.25, 3600.25 + 86_400.0 * 365]
    assert time.monotonic() - started < 60, "no real sleeping"


def test_timers_fire_in_order_and_those_of_one_moment_as_they_were_set() -> None:
    async def main() -> list[str]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        for name, at in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
            loop.call_at(at, order.append, name)
        await asyncio.sleep(3)
        return order

    assert [run_virtual(main()) for _ in range(3)] == [["a", "b", "c", "d"]] * 3


def test_cancelled_timers_are_skipped() -> None:
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        for seconds in range(1, 50):
            loop.call_later(seconds, lambda: None).cancel()
        await asyncio.sleep(100)
        assert isinstance(loop, VirtualTimeLoop)
        return now(), loop.num_jumps

    assert run_virtual(main()) == (100.0, 1)


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> tuple[int, list[int]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        fired: list[int] = []
        kept = [loop.call_later(seconds, fired.append, seconds) for seconds in range(1, 6)]
        for seconds in range(1, 2000):
            loop.call_later(seconds + 0.5, fired.append, -1).cancel()
        num_left = len(loop._timers)
        await asyncio.sleep(3.5)
        # Too late for the first three, and twice changes nothing.
        for handle in (*kept, *kept):
            handle.cancel()
        await asyncio.sleep(100)
        return num_left, fired

    num_left, fired = run_virtual(main())
    assert num_left < 250 and fired == [1, 2, 3]


def test_what_happens_at_a_moment_comes_before_what_it_schedules_for_that_moment() -> None:
    async def main() -> list[str]:
        loop, order = asyncio.get_running_loop(), []

        def first() -> None:
            order.append("first")
            loop.call_later(0, order.append, "timer of no time")
            loop.call_soon(order.append, "soon")

        loop.call_at(1.0, first)
        loop.call_at(1.0, order.append, "second")
        await asyncio.sleep(2)
        return order

    assert run_virtual(main()) == ["first", "second", "soon", "timer of no time"]


def test_a_deadline_that_was_met_leaves_no_time_behind() -> None:
    async def main() -> float:
        async with asyncio.timeout(500):
            await asyncio.sleep(1)
        await asyncio.sleep(1)
        return now()

    assert run_virtual(main()) == 2.0


@pytest.mark.parametrize("start", [1e3, 1e6, 1e9, 1e12])
def test_time_moves_on_however_late_it_is(start: float) -> None:
    """Where a step is smaller than what a float can add, time must still not stand still."""

    async def main() -> list[float]:
        await asyncio.sleep(start)
        seen = [now()]
        for _ in range(3):
            await asyncio.sleep(1e-3)
            seen.append(now())
        await asyncio.sleep(1.0)
        seen.append(now())
        return seen

    seen = run_virtual(main())
    assert seen[0] == start and seen == sorted(seen)
    assert seen[-1] - start == pytest.approx(1.003, abs=max(1e-9, start * 1e-15))


def test_deadlock_says_who_waits_for_what() -> None:
    board = WaitBoard()
    loop = VirtualTimeLoop()
    loop.describe_waits = lambda: board.describe(loop.time())

    async def main() -> None:
        await asyncio.sleep(5)
        await Signal(board).until(lambda: False, who="the trainer", what=lambda: "4 groups (has 3)")

    with pytest.raises(DeadlockError, match=r"at t=5 s: the trainer waits for 4 groups \(has 3\) since 0 s"):
        run_virtual(main(), loop)


def test_deadlock_with_cancelled_timers_only() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(10, lambda: None).cancel()
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match="nobody registered a wait"):
        run_virtual(main())


def test_a_broken_invariant_is_raised_once_and_the_loop_still_closes() -> None:
    loop = VirtualTimeLoop()
    cleaned_up = []

    async def main() -> None:
        def broken() -> None:
            assert now() < 3, "too late"

        loop.after_events = broken
        try:
            for _ in range(10):
                await asyncio.sleep(1)
        finally:
            cleaned_up.append(now())

    with pytest.raises(AssertionError, match="too late"):
        run_virtual(main(), loop)
    assert cleaned_up == [3.0] and loop.is_closed()


# --- waiting on conditions ----------------------------------------------------------------------------------


def test_waiters_wake_when_their_own_condition_holds() -> None:
    async def main() -> list[tuple[str, float]]:
        board, woken, value = WaitBoard(), [], 0
        signal = Signal(board)

        async def wait_for(number: int, name: str) -> None:
            await signal.until(lambda: value >= number, who=name, what=lambda: f"{number}")
            woken.append((name, now()))

        async with asyncio.TaskGroup() as tasks:
            for number, name in ((2, "two"), (1, "one"), (0, "none")):
                tasks.create_task(wait_for(number, name))
            for later in (1, 2):
                await asyncio.sleep(1)
                value = later
                signal.notify()
        assert board.describe(now()) == "nobody waits"
        return woken

    assert run_virtual(main()) == [("none", 0.0), ("one", 1.0), ("two", 2.0)]


def test_a_wake_up_consumed_by_another_is_no_wake_up() -> None:
    async def main() -> int:
        items: list[int] = []
        signal = Signal(WaitBoard())

        async def consume() -> int:
            await signal.until(lambda: bool(items), who="consumer", what=lambda: "an item")
            return items.pop()

        async with asyncio.TaskGroup() as tasks:
            consumers = [tasks.create_task(consume()) for _ in range(3)]
            for item in range(3):
                await asyncio.sleep(1)
                items.append(item)
                signal.notify()
        return sum(task.result() for task in consumers)

    assert run_virtual(main()) == 3


def test_a_deadline_ends_a_wait_and_leaves_nothing_on_the_board() -> None:
    async def main() -> None:
        board = WaitBoard()
        signal = Signal(board)
        with pytest.raises(TimeoutError):
            await signal.until(lambda: False, who="w", what=lambda: "never", timeout_s=2.5)
        assert now() == 2.5
        signal.notify()
        assert board.describe(now()) == "nobody waits"

    run_virtual(main())


def test_a_wake_up_at_the_very_deadline_counts() -> None:
    async def main() -> None:
        signal, ready = Signal(WaitBoard()), False

        def fire() -> None:
            nonlocal ready
            ready = True
            signal.notify()

        asyncio.get_running_loop().call_at(2.0, fire)
        await signal.until(lambda: ready, who="w", what=lambda: "it", timeout_s=2.0)
        assert now() == 2.0

    run_virtual(main())


def test_a_cancelled_wait_leaves_the_board() -> None:
    async def main() -> None:
        board = WaitBoard()
        signal = Signal(board)
        task = asyncio.create_task(signal.until(lambda: False, who="w", what=lambda: "x"))
        await asyncio.sleep(1)
        assert board.describe(now()) == "w waits for x since 1 s"
        task.cancel()
        await asyncio.wait([task])
        assert board.describe(now()) == "nobody waits"

    run_virtual(main())


def test_the_board_names_the_oldest_first_and_counts_the_rest() -> None:
    async def main() -> str:
        board = WaitBoard()
        signal = Signal(board)
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(signal.until(lambda: False, who=f"w{i}", what=lambda: "x")) for i in range(15)]
            await asyncio.sleep(2)
            line = board.describe(now(), limit=2)
            for wait in waits:
                wait.cancel()
        return line

    assert run_virtual(main()) == "w0 waits for x since 2 s; w1 waits for x since 2 s; and 13 more"
