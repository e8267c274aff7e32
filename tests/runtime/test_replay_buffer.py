"""The replay buffer: counting, waiting, sampling, evicting; a buffer of the user's own."""

from __future__ import annotations

import asyncio

import pytest
from replay_bench import FILTER, USEFUL, USELESS, WAIT, bench, ids, reasons, run

from swingshift.core.buffer import Evictions, GroupPhase, StoreRules
from swingshift.errors import DeadlockError, ReplayBufferError
from swingshift.runtime.replay_buffer import ReplayBuffer, Sampleable, check_buffer
from swingshift.runtime.rollouter import Buffered
from swingshift.sim.loop import VirtualTimeLoop

# --- counting, waiting, sampling ----------------------------------------------------------------------------


def test_counting_evicts_refills_and_takes_nothing() -> None:
    async def test() -> None:
        async with bench(StoreRules(max_off_policy_threshold=2, filter_metric="reward")) as b:
            b.submit(5)
            await b.phases()
            b.engine.finish(0, 1)
            b.engine.finish(2, rewards=USELESS)
            b.engine.fail(3)
            before = await b.phases()
            assert [b.buffer.get_sampleable_count(step) for step in (1, 2, 3, 1)] == [2, 2, 0, 2]
            assert await b.phases() == before and b.prompts.cursor == 5
            assert b.rollouter.ledger.num_evicted == 0

    run(test)


def test_a_wait_ends_at_the_moment_its_target_is_met_and_leaves_the_groups_in_place() -> None:
    async def test() -> None:
        async with bench() as b:
            b.submit(8)
            for group_id in range(5):
                b.after(1.0 + group_id, lambda group_id=group_id: b.engine.finish(group_id))
            found = await b.buffer.wait_for_sampleable(1, 3)
            assert b.now == 3.0
            assert found == Sampleable(3, Evictions(), Buffered.ENOUGH)
            assert b.buffer.get_sampleable_count(1) == 3 and b.rollouter.ledger.num_consumed == 0
            groups, evictions = await b.buffer.sample(1, 3)
            assert b.now == 3.0 and ids(groups) == [0, 1, 2] and evictions == Evictions()
            groups, _ = await b.buffer.sample(1, 2)
            assert b.now == 5.0 and ids(groups) == [3, 4], "nobody gets a group twice"
            assert b.rollouter.ledger.num_consumed == 5

    run(test)


def test_the_oldest_are_sampled_first_and_whole() -> None:
    async def test() -> None:
        async with bench() as b:
            for step in (1, 2, 3):
                b.submit(2, step)
            await b.phases()
            b.engine.finish(5, 3, 1, 4, 2)
            groups, _ = await b.buffer.sample(3, 4)
            assert ids(groups) == [1, 3, 2, 5], "by first step, then in the order they finished; group 0 is not there"
            assert all(g.rewards == USEFUL for g in groups)
            assert [g.submit_version for g in groups] == [0, 1, 1, 2], "a step trains the version before it"

    run(test)


def test_waiting_for_nothing_returns_at_once() -> None:
    async def test() -> None:
        async with bench() as b:
            b.submit(1)
            found = await b.buffer.wait_for_sampleable(1, 0)
            assert (found.outcome, found.num_groups, b.now) == (Buffered.ENOUGH, 0, 0.0)

    run(test)


def test_a_wait_ends_early_when_no_more_can_come() -> None:
    async def test() -> None:
        async with bench(num_prompts=3) as b:
            assert b.submit(8) == 3, "as many as there are"
            b.after(1.0, lambda: b.engine.finish(0))
            b.after(2.0, lambda: b.engine.fail(1))
            b.after(3.0, lambda: b.engine.finish(2))
            found = await b.buffer.wait_for_sampleable(1, 4)
            assert (found.outcome, found.num_groups, b.now) == (Buffered.EXHAUSTED, 2, 3.0)
            assert reasons(found.evictions) == (1, 0, 0, 1, 0), "nothing is left to replace it with"
            groups, _ = await b.buffer.sample(1, 4)
            assert ids(groups) == [0, 2]
            assert await b.buffer.sample(1, 4) == ([], Evictions())
            assert b.rollouter.is_over

    run(test)


def test_a_wait_ends_when_nobody_is_left_to_generate() -> None:
    async def test() -> None:
        async with bench() as b:
            b.submit(8)

            def leave() -> None:
                b.replicas[0] = 0
                b.rollouter.capacity_changed()

            b.after(2.0, leave)
            found = await b.buffer.wait_for_sampleable(1, 4)
            assert (found.outcome, b.now) == (Buffered.NO_REPLICA, 2.0)

    run(test)


def test_stop_ends_a_wait_and_samples_nothing() -> None:
    async def test() -> None:
        async with bench() as b:
            b.submit(8)
            await b.phases()
            b.engine.finish(0)
            b.after(2.0, b.rollouter.stop)
            groups, _ = await b.buffer.sample(1, 4)
            assert (groups, b.now) == ([], pytest.approx(2.001))
            assert b.buffer.get_sampleable_count(1) == 1, "it is still there to be saved"
            assert b.submit(3) == 0 and b.prompts.cursor == 8, "and nothing is submitted any more"

    run(test)


def test_a_wait_that_nothing_can_end_says_for_what() -> None:
    async def test() -> None:
        async with bench(StoreRules(1, WAIT)) as b:
            b.submit(2)
            await b.phases()
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop.describe_waits = lambda: b.board.describe(loop.time())
            b.engine.finish(0)
            await b.buffer.wait_for_sampleable(1, 4)

    needle = r"step loop waits for 4 sampleable groups \(has 0, 1 not finished, blocked by an old one in flight\)"
    with pytest.raises(DeadlockError, match=needle):
        run(test)


# --- eviction and refill ------------------------------------------------------------------------------------


def test_a_wait_evicts_and_refills_exactly_as_many_and_adds_it_all_up() -> None:
    async def test() -> None:
        async with bench(FILTER) as b:
            b.submit(4)
            b.after(1.0, lambda: b.engine.finish(0, 1, rewards=USELESS))
            b.after(2.0, lambda: b.engine.finish(2, 4))
            b.after(3.0, lambda: b.engine.finish(5, rewards=USELESS))
            b.after(4.0, lambda: b.engine.finish(3, 6))
            submitted: list[tuple[float, int]] = []
            for when in (0.5, 1.5, 2.5, 3.5):
                b.after(when, lambda: submitted.append((b.now, b.prompts.cursor)))
            found = await b.buffer.wait_for_sampleable(1, 4)
            assert (found.outcome, found.num_groups, b.now) == (Buffered.ENOUGH, 4, 4.0)
            assert reasons(found.evictions) == (3, 0, 3, 0, 3)
            assert submitted == [(0.5, 4), (1.5, 6), (2.5, 6), (3.5, 7)], "at once, one for one"
            groups, evictions = await b.buffer.sample(1, 4)
            assert ids(groups) == [2, 4, 3, 6] and evictions == Evictions()
            assert b.rollouter.ledger.num_evicted == 3

    run(test)


def test_overlapping_reasons_refill_once() -> None:
    """Stale and filtered at the same time, beside one that failed."""

    async def test() -> None:
        async with bench(StoreRules(max_off_policy_threshold=2, filter_metric="reward")) as b:
            b.submit(4, 1)
            await b.phases()
            b.engine.finish(0, rewards=USELESS)
            b.engine.finish(1)
            b.engine.fail(2)
            await b.phases()
            b.after(1.0, lambda: b.engine.finish(4))
            found = await b.buffer.wait_for_sampleable(3, 1)
            assert reasons(found.evictions) == (3, 2, 1, 1, 3)
            assert b.prompts.cursor == 7 and b.rollouter.store.first_step(4) == 3, "replacements are of this step"
            assert (b.rollouter.ledger.num_evicted, b.rollouter.ledger.num_failed) == (2, 1)

    run(test)


def test_a_stale_group_that_finishes_during_the_wait_is_replaced_too() -> None:
    async def test() -> None:
        async with bench(StoreRules(max_off_policy_threshold=2)) as b:
            b.submit(1, 1)
            b.submit(1, 3)
            b.after(1.0, lambda: b.engine.finish(0))
            b.after(2.0, lambda: b.engine.finish(1, 2))
            found = await b.buffer.wait_for_sampleable(3, 2)
            assert reasons(found.evictions) == (1, 1, 0, 0, 1) and b.now == 2.0
            groups, _ = await b.buffer.sample(3, 2)
            assert ids(groups) == [1, 2]

    run(test)


def test_sampling_reports_what_it_evicted() -> None:
    async def test() -> None:
        async with bench(FILTER) as b:
            b.submit(2)
            b.after(1.0, lambda: b.engine.finish(0, rewards=USELESS))
            b.after(2.0, lambda: b.engine.finish(1, 2))
            groups, evictions = await b.buffer.sample(1, 2)
            assert ids(groups) == [1, 2] and reasons(evictions) == (1, 0, 1, 0, 1)

    run(test)


def test_what_nobody_waits_for_is_not_replaced() -> None:
    async def test() -> None:
        async with bench(FILTER) as b:
            b.submit(2)
            await b.phases()
            b.engine.finish(0, rewards=USELESS)
            await asyncio.sleep(10)
            assert b.prompts.cursor == 2 and b.rollouter.store.phase(0) is GroupPhase.FINISHED

    run(test)


def test_wait_blocks_until_the_old_group_in_flight_is_there_and_goes_on() -> None:
    async def test() -> None:
        async with bench(StoreRules(2, WAIT)) as b:
            b.submit(1, 1)
            b.submit(4, 2)
            await b.phases()
            b.engine.finish(1, 2, 3, 4)
            await b.phases()
            assert b.buffer.get_sampleable_count(1) == 4 and b.buffer.get_sampleable_count(2) == 0
            b.after(5.0, lambda: b.engine.finish(0))
            groups, evictions = await b.buffer.sample(2, 4)
            assert b.now > 5.0 and evictions == Evictions(), "it waits, and drops nothing"
            assert ids(groups) == [0, 1, 2, 3]

    run(test)


def test_wait_goes_on_when_the_old_group_fails() -> None:
    async def test() -> None:
        async with bench(StoreRules(2, WAIT)) as b:
            b.submit(1, 1)
            b.submit(1, 2)
            await b.phases()
            b.engine.finish(1)
            b.after(5.0, lambda: b.engine.fail(0))
            found = await b.buffer.wait_for_sampleable(2, 1)
            assert (found.outcome, found.num_groups) == (Buffered.ENOUGH, 1)
            assert reasons(found.evictions) == (1, 0, 0, 1, 1)

    run(test)


# --- a buffer of the user's own -----------------------------------------------------------------------------


def test_ours_has_what_is_needed() -> None:
    check_buffer(ReplayBuffer, "swingshift.runtime.replay_buffer:ReplayBuffer")


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (["get_sampleable_count"], "no method get_sampleable_count;"),
        (["wait_for_sampleable"], "no method wait_for_sampleable;"),
        (
            ["get_sampleable_count", "wait_for_sampleable"],
            "no method get_sampleable_count and no wait_for_sampleable;",
        ),
        (["sample"], "no method sample;"),
    ],
)
def test_a_buffer_without_a_method_is_refused(missing: list[str], text: str) -> None:
    names = {"get_sampleable_count", "wait_for_sampleable", "sample"} - set(missing)
    mine = type("Mine", (), {name: lambda self: None for name in names})
    with pytest.raises(ReplayBufferError, match=rf"trainer\.v1\.replay_buffer\.path=my:Mine: the class has {text}"):
        check_buffer(mine, "my:Mine")
    with pytest.raises(TypeError):
        check_buffer(mine(), "my:Mine")
    not_callable = type("Mine", (), dict.fromkeys(("get_sampleable_count", "wait_for_sampleable", "sample"), 3))
    with pytest.raises(ReplayBufferError, match="no method"):
        check_buffer(not_callable, "my:Mine")
