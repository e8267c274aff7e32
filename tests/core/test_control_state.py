"""Ledger, lending states, switch costs, staleness budget and token bookkeeping."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.core.cost import (
    SwitchCosts,
    backlog_gap,
    mean_switch_cost_s,
    per_sample_time_s,
)
from swingshift.core.ledger import GroupLedger
from swingshift.core.lifecycle import ACTIVATE_STEPS, DEACTIVATE_STEPS, LendingState, Step, advance
from swingshift.core.staleness import BudgetNumbers, StalenessBudget
from swingshift.core.types import FinishReason, Sample, TokenOutput, VersionSpans, join_spans

# --- ledger -------------------------------------------------------------------------------------------------


def test_a_group_goes_one_way_through_the_ledger() -> None:
    ledger = GroupLedger()
    for group_id in range(3):
        ledger.submit(group_id)
    ledger.queue(1)
    ledger.fail(2)
    ledger.consume(1)
    ledger.check()
    assert (ledger.num_submitted, ledger.num_in_flight, ledger.num_queued) == (3, 1, 0)
    assert (ledger.num_consumed, ledger.num_failed, ledger.num_generated) == (1, 1, 1)


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        (["submit"], "submit"),
        (["submit"], "consume"),
        (["submit", "queue"], "queue"),
        (["submit", "queue"], "fail"),
        (["submit", "queue", "consume"], "consume"),
        (["submit", "queue", "consume"], "queue"),
        (["submit", "fail"], "fail"),
        ([], "queue"),
    ],
)
def test_no_group_is_counted_twice(steps: list[str], wrong: str) -> None:
    ledger = GroupLedger()
    for step in steps:
        getattr(ledger, step)(7)
    with pytest.raises(AssertionError, match="group 7"):
        getattr(ledger, wrong)(7)


def test_ledger_goes_on_from_counts() -> None:
    ledger = GroupLedger()
    ledger.resume(num_consumed=10, num_failed=2)
    ledger.submit(12)
    ledger.check()
    assert ledger.num_submitted == 13 and ledger.num_generated == 10
    with pytest.raises(AssertionError, match="in use"):
        ledger.resume(1, 0)


def test_a_lost_group_is_noticed() -> None:
    ledger = GroupLedger()
    ledger.submit(0)
    ledger.live.clear()
    with pytest.raises(AssertionError):
        ledger.check()


# --- lending states -----------------------------------------------------------------------------------------

LEGAL = {
    ("STANDALONE_ONLY", "ACTIVATING"),
    ("ACTIVATING", "HYBRID_ACTIVE"),
    ("ACTIVATING", "STANDALONE_ONLY"),
    ("HYBRID_ACTIVE", "DEACTIVATING"),
    ("DEACTIVATING", "STANDALONE_ONLY"),
}


@pytest.mark.parametrize(("current", "target"), list(product(LendingState, LendingState)))
def test_lending_table(current: LendingState, target: LendingState) -> None:
    if (current.value, target.value) in LEGAL:
        assert advance(current, target) is target
    else:
        with pytest.raises(AssertionError, match=f"from {current} to {target}"):
            advance(current, target)


def test_steps_keep_requests_and_memory_safe() -> None:
    position = {step: i for i, step in enumerate(ACTIVATE_STEPS)}
    assert position[Step.OFFLOAD_TRAINER] < position[Step.WAKE_WEIGHTS] < position[Step.SYNC_WEIGHTS]
    assert position[Step.SYNC_WEIGHTS] < position[Step.ADD_TO_ROUTING] < position[Step.RESUME_GENERATION]
    assert DEACTIVATE_STEPS == (Step.REMOVE_FROM_ROUTING, Step.ABORT, Step.SLEEP, Step.ONLOAD_TRAINER)


# --- switch costs -------------------------------------------------------------------------------------------


def test_a_round_trip_pairs_halves_of_different_cycles() -> None:
    costs = SwitchCosts()
    assert costs.mean_s() is None
    # Cycle 1 activates (20 s), cycle 2 deactivates (5 s): one switch of 25 s, not two of 12.5.
    costs.activated(20.0)
    assert costs.mean_s() is None
    costs.deactivated(5.0)
    assert costs.mean_s() == 25.0 and costs.round_trips_s == [25.0]


def test_only_the_latest_round_trips_count() -> None:
    costs = SwitchCosts()
    for activate_s in (100.0, 1.0, 2.0, 3.0):
        costs.activated(activate_s)
        costs.deactivated(1.0)
    assert costs.round_trips_s == [2.0, 3.0, 4.0] and costs.mean_s() == 3.0
    assert (costs.num_activations, costs.num_deactivations) == (4, 4)
    assert (costs.total_activate_s, costs.total_deactivate_s) == (106.0, 4.0)


def test_a_deactivation_without_an_activation_is_no_round_trip() -> None:
    costs = SwitchCosts()
    costs.deactivated(5.0)
    assert costs.round_trips_s == [] and costs.last_deactivate_s == 5.0


def test_rates_and_gap() -> None:
    assert mean_switch_cost_s([]) is None
    assert mean_switch_cost_s([9.0, 1.0, 2.0, 3.0]) == 2.0
    assert per_sample_time_s([1.0, 3.0], [0, 0]) is None
    assert per_sample_time_s([1.0, 3.0], [0, 2]) == 2.0
    assert backlog_gap(0.5, 8, total_generated=21, expected=20) == 3.0
    assert backlog_gap(0.5, 8, total_generated=26, expected=20) == -2.0


# --- staleness budget ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mini_batch", "batches", "syncs", "threshold", "expected"),
    [
        (4, 1, 2, 0.5, (4, 8, 12, 4)),
        (64, 1, 4, 0.1, (64, 256, 281, 25)),
        (8, 2, 1, 0.0, (16, 16, 16, 0)),
        (1, 1, 1, 0.9, (1, 1, 1, 0)),
    ],
)
def test_budget_numbers(
    mini_batch: int, batches: int, syncs: int, threshold: float, expected: tuple[int, int, int, int]
) -> None:
    n = BudgetNumbers(mini_batch, batches, syncs, threshold, concurrent_samples_per_replica=3)
    assert (n.required_samples, n.step_required_samples, n.max_required_samples, n.buffer_samples) == expected
    assert n.max_concurrent_samples(0) == 0
    assert n.max_concurrent_samples(1) == min(3, expected[2])
    assert n.max_concurrent_samples(10_000) == expected[2]


def test_budget_by_hand() -> None:
    budget = StalenessBudget(3)
    for _ in range(3):
        budget.submit()
    with pytest.raises(AssertionError, match="beyond"):
        budget.submit()
    budget.refund()
    assert budget.num_submittable == 1
    budget.reset(3)
    assert budget.num_submittable == 0
    with pytest.raises(AssertionError):
        budget.reset(4)
    with pytest.raises(AssertionError):
        StalenessBudget(3).refund()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.lists(st.sampled_from(["submit", "finish", "fail", "take", "sync"]), max_size=60))
def test_outstanding_groups_never_exceed_the_budget(maximum: int, steps: list[str]) -> None:
    """So the queue cannot overflow, and the reset at a sync can never find more than the maximum."""
    budget, in_flight, queued = StalenessBudget(maximum), 0, 0
    for step in steps:
        if step == "submit" and budget.num_submittable:
            budget.submit()
            in_flight += 1
        elif step == "finish" and in_flight:
            in_flight, queued = in_flight - 1, queued + 1
        elif step == "fail" and in_flight:
            in_flight -= 1
            budget.refund()
        elif step == "take" and queued:
            queued -= 1
        elif step == "sync":
            budget.reset(in_flight + queued)
        assert in_flight + queued <= budget.staleness_samples <= maximum


# --- tokens -------------------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=5)


def flat(spans: VersionSpans) -> list[int]:
    return [version for version, n in spans for _ in range(n)]


def encode(spans: list[tuple[int, int]]) -> VersionSpans:
    result: VersionSpans = ()
    for span in spans:
        result = join_spans(result, (span,))
    return result


def test_join_spans_merges_the_seam() -> None:
    assert join_spans((), ()) == ()
    assert join_spans(((1, 2),), ()) == ((1, 2),)
    assert join_spans((), ((1, 2),)) == ((1, 2),)
    assert join_spans(((1, 2),), ((1, 3), (2, 1))) == ((1, 5), (2, 1))
    assert join_spans(((1, 2),), ((2, 3),)) == ((1, 2), (2, 3))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(SPANS, SPANS)
def test_join_spans_concatenates(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    left, right = encode(a), encode(b)
    joined = join_spans(left, right)
    assert flat(joined) == flat(left) + flat(right)
    assert all(x[0] != y[0] for x, y in pairwise(joined))


def test_outputs_must_be_consistent() -> None:
    with pytest.raises(AssertionError, match="log-prob"):
        TokenOutput((1, 2), (-1.0,), ((0, 2),), FinishReason.STOP)
    with pytest.raises(AssertionError, match="spans"):
        TokenOutput((1, 2), (-1.0, -1.0), ((0, 1),), FinishReason.STOP)


def test_versions_of_a_sample() -> None:
    empty = Sample((), (), (), FinishReason.ABORT)
    assert (empty.min_version, empty.max_version, empty.is_partial) == (0, 0, False)
    mixed = Sample((1, 2, 3), (0.0,) * 3, ((4, 1), (6, 2)), FinishReason.STOP)
    assert (mixed.min_version, mixed.max_version, mixed.is_partial) == (4, 6, True)
