"""The store behind the replay buffer, by hand."""

from __future__ import annotations

import pytest
from buffer_builders import FILTER, WAIT, counts, group, ids, sample, store_of

from swingshift.core.buffer import Evictions, GroupPhase, GroupStore, StoreRules
from swingshift.core.types import Prompt, SampleGroup

# --- a group's way ------------------------------------------------------------------------------------------


def test_a_group_goes_from_pending_to_running_to_finished_to_taken() -> None:
    store = GroupStore()
    store.admit(5, first_step=3)
    assert (store.phase(5), store.first_step(5)) == (GroupPhase.PENDING, 3)
    store.start(5)
    assert (store.phase(5), store.num_unfinished, store.num_finished) == (GroupPhase.RUNNING, 1, 0)
    assert store.sampleable_count(3) == 0, "a group is whole or absent"
    whole = group(5)
    store.finish(whole)
    assert (store.phase(5), store.num_unfinished, store.num_finished) == (GroupPhase.FINISHED, 0, 1)
    [taken] = store.take(1, 3)
    assert taken is whole, "with all of its responses, as they were"
    assert store.phase(5) is None and len(store) == 0 and store.finished() == []
    store.check()


def test_a_pending_group_may_finish_at_once_as_a_checkpoints_groups_do() -> None:
    store = GroupStore()
    store.admit(0, first_step=2)
    store.finish(group(0))
    assert store.sampleable_count(2) == 1


def test_what_is_out_of_order_is_an_error() -> None:
    store = store_of(g0="running@1", g1="finished@1", g2="failed@1")
    with pytest.raises(AssertionError, match="group 0 admitted twice"):
        store.admit(0, 1)
    for group_id in (1, 2, 9):
        with pytest.raises(AssertionError, match=f"group {group_id} is"):
            store.finish(group(group_id))
        with pytest.raises(AssertionError, match=f"group {group_id} is"):
            store.fail(group_id)
        with pytest.raises(AssertionError, match=f"group {group_id} is"):
            store.start(group_id)
    with pytest.raises(AssertionError, match="more groups than are sampleable"):
        store.take(2, 1)


# --- taking -------------------------------------------------------------------------------------------------


def test_the_oldest_first_step_goes_first_then_what_finished_first() -> None:
    store = store_of(g4="finished@3", g2="finished@2", g1="finished@1", g0="finished@2", g3="pending@1")
    assert ids(store.finished()) == [1, 2, 0, 4]
    assert ids(store.take(2, 3)) == [1, 2]
    assert ids(store.take(2, 3)) == [0, 4], "nothing twice, nothing left out"
    assert store.sampleable_count(3) == 0 and store.num_unfinished == 1


def test_nothing_can_be_taken_of_nothing() -> None:
    assert GroupStore().take(0, 1) == []


# --- eviction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threshold", "step", "stale"),
    [
        (8, 8, []),  # of age 8, 6 and 1
        (8, 9, [0]),
        (8, 10, [0]),
        (8, 11, [0, 1]),
        (8, 16, [0, 1, 2]),
        (1, 8, [0, 1]),
        (None, 10_000, []),
    ],
)
def test_drop_evicts_finished_groups_older_than_the_threshold(
    threshold: int | None, step: int, stale: list[int]
) -> None:
    """A group's age is step − first step + 1."""
    rules = StoreRules(max_off_policy_threshold=threshold)
    store = store_of(rules, g0="finished@1", g1="finished@3", g2="finished@8")
    assert store.has_evictable(step) == bool(stale)
    assert store.sampleable_count(step) == 3 - len(stale)
    evictions = store.evict(step)
    assert counts(evictions) == (len(stale), len(stale), 0, 0)
    assert evictions.finished_ids == stale and evictions.num_refilled == 0
    assert ids(store.take(3 - len(stale), step)) == [i for i in (0, 1, 2) if i not in stale]
    store.check()


def test_drop_takes_no_stale_group_even_before_it_is_evicted() -> None:
    store = store_of(StoreRules(max_off_policy_threshold=2), g0="finished@1", g1="finished@3")
    assert ids(store.take(1, 3)) == [1]


def test_unfinished_groups_are_never_evicted_but_stale_once_they_finish() -> None:
    store = store_of(StoreRules(max_off_policy_threshold=1), g0="pending@1", g1="running@1")
    assert not store.has_evictable(9) and counts(store.evict(9)) == (0, 0, 0, 0)
    store.finish(group(1))
    assert store.sampleable_count(9) == 0 and counts(store.evict(9)) == (1, 1, 0, 0)


def test_groups_with_equal_metrics_are_filtered_and_others_are_not() -> None:
    store = GroupStore(FILTER)
    for group_id, rewards in enumerate([(1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (0.5,)]):
        store.admit(group_id, 1)
        store.finish(group(group_id, *rewards))
    assert store.sampleable_count(1) == 1 and store.num_finished == 4
    evictions = store.evict(1)
    assert counts(evictions) == (3, 0, 3, 0) and evictions.finished_ids == [0, 1, 3]
    assert ids(store.finished()) == [2]
    store.check()


def test_the_metric_may_be_the_length_of_responses_or_none() -> None:
    same_length = SampleGroup(0, Prompt("0", (1,)), (sample(0.0), sample(1.0)), 0)
    same_reward = SampleGroup(1, Prompt("1", (1,)), (sample(1.0, 2), sample(1.0, 3)), 0)
    for metric, kept in (("response_length", [1]), ("reward", [0]), (None, [0, 1])):
        store = GroupStore(StoreRules(filter_metric=metric))
        for found in (same_length, same_reward):
            store.admit(found.group_id, 1)
            store.finish(found)
        store.evict(1)
        assert ids(store.finished()) == kept


def test_an_unknown_metric_is_an_error() -> None:
    with pytest.raises(AssertionError):
        GroupStore(StoreRules(filter_metric="acc"))


@pytest.mark.parametrize("rules", [StoreRules(), StoreRules(None, WAIT)])
def test_failed_groups_are_always_evicted(rules: StoreRules) -> None:
    """All of one step together, too: with them everything of that step is gone."""
    store = store_of(rules, g0="failed@1", g1="failed@1", g2="failed@2", g3="pending@2")
    assert store.has_evictable(2) and store.num_finished == 0
    evictions = store.evict(2)
    assert counts(evictions) == (3, 0, 0, 3)
    assert evictions.finished_ids == [], "they never finished"
    assert len(store) == 1 and not store.has_evictable(2)
    store.check()


def test_reasons_that_overlap_evict_a_group_once() -> None:
    rules = StoreRules(max_off_policy_threshold=2, filter_metric="reward")
    store = store_of(rules, g0="filtered@1", g1="filtered@3", g2="finished@1", g3="failed@1", g4="finished@3")
    evictions = store.evict(3)
    assert counts(evictions) == (4, 2, 2, 1), "group 0 is stale and filtered; a failed group is only that"
    assert sorted(evictions.finished_ids) == [0, 1, 2]
    assert ids(store.finished()) == [4]
    assert counts(store.evict(3)) == (0, 0, 0, 0), "gone is gone"
    store.check()


def test_evictions_add_up() -> None:
    total = Evictions(1, 1, 0, 0, 1, [4])
    total.add(Evictions(5, 1, 2, 3, 4, [8, 9]))
    assert total == Evictions(6, 2, 2, 3, 5, [4, 8, 9])


# --- waiting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["pending", "running"])
def test_wait_blocks_while_an_unfinished_group_has_reached_the_threshold(phase: str) -> None:
    store = store_of(StoreRules(3, WAIT), g0=f"{phase}@2", g1="finished@1", g2="finished@4")
    assert [store.is_blocked(step) for step in (2, 3, 4, 5)] == [False, False, True, True]
    assert [store.sampleable_count(step) for step in (3, 4)] == [2, 0]
    assert store.trainable_count(4) == 2, "of use, once the block has ended"
    with pytest.raises(AssertionError, match="sampleable"):
        store.take(1, 4)
    assert counts(store.evict(4)) == (0, 0, 0, 0) and store.num_finished == 2, "the finished ones stay in place"
    store.finish(group(0))
    assert ids(store.take(3, 4)) == [1, 0, 2]


def test_wait_drops_nothing_however_old() -> None:
    store = store_of(StoreRules(1, WAIT), g0="finished@1")
    assert store.sampleable_count(1000) == 1 and not store.has_evictable(1000)


def test_a_block_ends_when_the_old_group_fails() -> None:
    store = store_of(StoreRules(2, WAIT), g0="running@1", g1="finished@2")
    assert store.is_blocked(2)
    store.fail(0)
    assert not store.is_blocked(2) and store.sampleable_count(2) == 1
    assert counts(store.evict(2)) == (1, 0, 0, 1)


def test_no_threshold_never_blocks() -> None:
    store = store_of(StoreRules(None, WAIT), g0="running@1", g1="finished@1")
    assert not store.is_blocked(10_000) and store.sampleable_count(10_000) == 1


def test_drop_never_blocks() -> None:
    assert not store_of(StoreRules(1), g0="running@1").is_blocked(10_000)


def test_questions_change_nothing() -> None:
    rules = StoreRules(max_off_policy_threshold=1, filter_metric="reward")
    store = store_of(rules, g0="finished@1", g1="filtered@2", g2="failed@2", g3="running@2", g4="finished@2")
    for _ in range(2):
        assert (store.sampleable_count(2), store.has_evictable(2), store.is_blocked(2)) == (1, True, False)
        assert (len(store), store.num_unfinished, store.num_finished, ids(store.finished())) == (5, 1, 3, [0, 4, 1])
    assert counts(store.evict(2)) == (3, 1, 1, 1)
