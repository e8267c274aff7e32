"""Replacing what is of no use: it gives up, backs off, and knows what survived."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from replay_bench import FILTER, USEFUL, USELESS, WAIT, Bench, bench, reasons, run

from swingshift.core.buffer import StoreRules
from swingshift.errors import DataError, TooManyFailuresError
from swingshift.runtime.rollouter import Buffered


def finish_all(b: Bench, rewards: Callable[[int], tuple[float, ...] | None], *but: int) -> None:
    """Every second whatever runs is finished, but for these; None: it fails."""

    def answer() -> None:
        for group_id, future in list(b.engine.running.items()):
            if not future.done() and group_id not in but:
                b.engine.finish(group_id, rewards=rewards(group_id))
        b.after(1.0, answer)

    b.after(1.0, answer)


def test_it_gives_up_when_nothing_ever_survives() -> None:
    async def test() -> None:
        async with bench(FILTER, max_refills=20) as b:
            b.submit(8)
            finish_all(b, lambda group_id: USELESS)
            needle = (
                r"24 groups in a row .* \(0 stale, 24 filtered, 0 failed; algorithm\.filter_groups\.max_num_gen_batc"
            )
            with pytest.raises(DataError, match=needle):
                await b.buffer.wait_for_sampleable(1, 4)
            assert b.now == 3.0 and b.prompts.cursor == 24

    run(test)


def test_one_that_survives_starts_the_count_again() -> None:
    """Of 8 at a time one in sixteen is of use: 10 rounds of at most 20 in vain in a row."""

    async def test() -> None:
        async with bench(FILTER, max_refills=20) as b:
            b.submit(8)
            finish_all(b, lambda group_id: USEFUL if group_id % 16 == 15 else USELESS)
            found = await b.buffer.wait_for_sampleable(1, 5)
            assert found.num_groups == 5 and found.evictions.num_filtered > 40

    run(test)


def test_useless_groups_beside_a_survivor_are_not_in_vain() -> None:
    """However many there are at once."""

    async def test() -> None:
        async with bench(FILTER, max_refills=4) as b:
            b.submit(12)
            await b.phases()
            b.engine.finish(*range(9), rewards=USELESS)
            b.engine.finish(9, 10)
            await b.phases()
            b.after(1.0, lambda: b.engine.finish(11))
            found = await b.buffer.wait_for_sampleable(1, 3)
            assert found.num_groups == 3 and reasons(found.evictions) == (9, 0, 9, 0, 9)

    run(test)


def test_survivors_that_an_old_group_blocks_are_survivors() -> None:
    async def test() -> None:
        async with bench(StoreRules(2, WAIT, "reward"), max_refills=10) as b:
            b.submit(1, 1)
            b.submit(4, 2)
            await b.phases()
            b.engine.finish(1)
            finish_all(b, lambda group_id: USELESS, 0)
            b.after(6.5, lambda: b.engine.finish(0))
            found = await b.buffer.wait_for_sampleable(2, 2)
            assert found.outcome is Buffered.ENOUGH and found.num_groups == 2
            assert reasons(found.evictions) == (18, 0, 18, 0, 18), "3 a second, while it was blocked"

    run(test)


def test_groups_that_fail_at_once_are_replaced_more_and_more_slowly() -> None:
    async def test() -> None:
        async with bench(max_refills=40) as b:
            b.engine.fails_at_once = True
            submitted: list[float] = []
            submit = b.rollouter.submit

            def noted(num_prompts: int, step: int) -> int:
                submitted.append(b.now)
                return submit(num_prompts, step)

            b.rollouter.submit = noted  # type: ignore[method-assign]
            b.submit(8)
            with pytest.raises(DataError, match="48 failed"):
                await b.buffer.wait_for_sampleable(1, 4)
            gaps = [after - before for before, after in pairwise(submitted)]
            assert gaps == pytest.approx([0.1, 0.4, 1.6, 6.4, 10.0]), (
                "each mini-batch of failures doubles it, up to 10"
            )

    run(test)


def test_stop_does_not_wait_for_a_replacement() -> None:
    async def test() -> None:
        async with bench(max_refills=1000) as b:
            b.engine.fails_at_once = True
            b.submit(8)
            b.after(20.0, b.rollouter.stop)
            found = await b.buffer.wait_for_sampleable(1, 4)
            assert (found.outcome, b.now) == (Buffered.STOPPED, 20.0)

    run(test)


def test_too_many_failures_end_the_run_before_that() -> None:
    async def test() -> None:
        async with bench(max_failed_ratio=0.5, max_refills=1000) as b:
            b.submit(8)
            finish_all(b, lambda group_id: None)
            await b.buffer.wait_for_sampleable(1, 4)

    with pytest.raises(ExceptionGroup) as caught:
        run(test)
    assert caught.group_contains(
        TooManyFailuresError, match=r"5 of 8 groups failed, more than .*max_failed_ratio=0.5"
    )
