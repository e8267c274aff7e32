"""The built-in policies, formula by formula."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.schedule import (
    DefaultDynamicSchedulePolicy,
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    FixedRatioDynamicSchedulePolicy,
    Rebalance,
    StaticFullyAsyncPolicy,
)

# R = 4, K = 2, so S = 8; σ = 0.5 gives a buffer of 4 and a maximum of 12.
BASE = DynamicScheduleContext(
    required_samples=4,
    trigger_parameter_sync_step=2,
    total_generated_samples=16,
    expected_samples=16,
    buffer_samples=4,
    max_required_samples=12,
)
ALL = (DefaultDynamicSchedulePolicy, FixedRatioDynamicSchedulePolicy, StaticFullyAsyncPolicy)


def context(**changes: Any) -> DynamicScheduleContext:
    return replace(BASE, **changes)


def test_context_derives_the_cycle() -> None:
    assert BASE.step_required_samples == 8


@pytest.mark.parametrize("policy_class", ALL)
def test_devices_go_back_whenever_they_are_lent(policy_class: Any) -> None:
    policy: DynamicSchedulePolicyBase = policy_class()
    assert policy.should_deactivate(1, True, BASE) is True
    assert policy.should_deactivate(1, False, BASE) is False


@pytest.mark.parametrize(("ratio", "threshold"), [(0.3, 2), (0.5, 4), (0.6, 4), (0.99, 7), (1.0, 8), (0.1, 0)])
@pytest.mark.parametrize("policy_class", [DefaultDynamicSchedulePolicy, FixedRatioDynamicSchedulePolicy])
def test_wait_threshold_is_the_ratio_of_a_cycle(policy_class: Any, ratio: float, threshold: int) -> None:
    assert policy_class(deactivate_ratio=ratio).deactivate_wait_samples(BASE) == threshold


@pytest.mark.parametrize(
    ("policy_class", "kind"),
    [
        (DefaultDynamicSchedulePolicy, Rebalance.FULL),
        (FixedRatioDynamicSchedulePolicy, Rebalance.FULL),
        (StaticFullyAsyncPolicy, None),
    ],
)
def test_rebalance_after_an_activation(policy_class: Any, kind: Rebalance | None) -> None:
    assert policy_class().request_rebalance(1, BASE) is kind


@pytest.mark.parametrize("policy_class", ALL)
@pytest.mark.parametrize("where", ["argument", "context"])
def test_without_standalone_replicas_hybrid_ones_must_generate_a_full_batch(policy_class: Any, where: str) -> None:
    """By configuration, or because the last standalone replica died."""
    policy = policy_class(deactivate_ratio=0.3, only_hybrid=where == "argument")
    ctx = context(only_hybrid=where == "context", total_generated_samples=100)
    assert policy.deactivate_wait_samples(ctx) == 8
    assert policy.should_activate_after_step(3, False, ctx) is True
    assert policy.decision
    before = policy.state_dict()
    policy.update_after_step(3, context(only_hybrid=where == "context", step_wait_times=[5.0], step_wait_samples=[4]))
    assert policy.state_dict() == before, "no adaptation"


def test_static_never_lends_while_somebody_else_generates() -> None:
    policy = StaticFullyAsyncPolicy(deactivate_ratio=0.9)
    starved = context(total_generated_samples=0, step_wait_times=[9.0], step_wait_samples=[4])
    assert policy.should_activate_after_step(1, False, starved) is False
    assert policy.deactivate_wait_samples(BASE) == 0


@pytest.mark.parametrize(("generated", "lend"), [(16, True), (19, True), (20, False), (21, False)])
def test_fixed_ratio_lends_on_any_gap(generated: int, lend: bool) -> None:
    policy = FixedRatioDynamicSchedulePolicy(deactivate_ratio=0.5)  # wants a backlog of 4
    ctx = context(total_generated_samples=generated, switch_costs_s=(1e9,))
    assert policy.should_activate_after_step(1, False, ctx) is lend
    policy.update_after_step(1, context(step_wait_times=[1.0], step_wait_samples=[4]))
    assert policy.deactivate_ratio == 0.5


@pytest.mark.parametrize(
    ("generated", "waits", "num_waited", "costs", "lend"),
    [
        # gap = 0.5·8 − (generated − 16); saved = gap · Σ wait / Σ waited-for.
        (16, [6.0, 2.0], [3, 1], (7.9,), True),  # 4 · 2 s = 8 s > 7.9 s
        (16, [6.0, 2.0], [3, 1], (8.0,), False),  # equal is not enough
        (16, [6.0, 2.0], [3, 1], (100.0, 7.0, 7.0, 9.0), True),  # the oldest of four is forgotten: 7.67 s
        (16, [6.0, 2.0], [3, 1], (), False),  # no history: 10 s
        (16, [6.0, 5.0], [3, 1], (), True),  # 4 · 2.75 s = 11 s > 10 s
        (19, [6.0, 2.0], [3, 1], (1.9,), True),  # 1 · 2 s
        (20, [6.0, 2.0], [3, 1], (0.001,), False),  # no gap
        (16, [], [], (3999.0,), True),  # nothing measured: 4 · 1000 s
        (16, [], [], (4000.0,), False),
        (16, [0.5], [0], (3999.0,), True),  # waited for nothing: still nothing measured
    ],
)
def test_default_gate(
    generated: int, waits: list[float], num_waited: list[int], costs: tuple[float, ...], lend: bool
) -> None:
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=0.5)
    ctx = context(
        total_generated_samples=generated, step_wait_times=waits, step_wait_samples=num_waited, switch_costs_s=costs
    )
    assert policy.should_activate_after_step(1, False, ctx) is lend
    assert policy.decision.startswith("lend" if lend else "keep")


def test_default_remembers_the_last_measured_rate() -> None:
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=0.5)
    policy.update_after_step(1, context(step_wait_times=[4.0, 4.0], step_wait_samples=[2, 2]))
    assert policy.per_sample_time_s == 2.0
    policy.update_after_step(2, context(step_wait_times=[0.1, 0.0], step_wait_samples=[0, 0]))
    assert policy.per_sample_time_s == 2.0
    policy.deactivate_ratio = 0.5
    calm = context(step_wait_times=[], step_wait_samples=[], switch_costs_s=(8.0,))
    assert policy.should_activate_after_step(3, False, calm) is False  # 4 · 2 s = 8 s


@pytest.mark.parametrize(
    ("num_waited", "ratio", "after"),
    [
        ([4, 4], 0.3, 0.4),  # w/S = 1, at most 0.1
        ([0, 1], 0.3, 0.4),  # 1/8 = 0.125, at most 0.1
        ([0, 0], 0.3, 0.28),
        ([0, 0], 0.01, 0.0),  # the floor
        ([4, 4], 0.95, 1.0),  # the ceiling
    ],
)
def test_default_adapts_within_bounds(num_waited: list[int], ratio: float, after: float) -> None:
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=ratio)
    policy.update_after_step(1, context(step_wait_times=[1.0, 1.0], step_wait_samples=num_waited))
    assert policy.deactivate_ratio == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize(
    ("waited", "step"), [(1, 0.02), (50, 0.05), (19, 0.02), (21, 0.021), (99, 0.099), (101, 0.1)]
)
def test_default_increase_is_the_waited_share_clipped(waited: int, step: float) -> None:
    ctx = context(
        required_samples=250, trigger_parameter_sync_step=4, step_wait_times=[1.0], step_wait_samples=[waited]
    )
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=0.3)
    policy.update_after_step(1, ctx)
    assert policy.deactivate_ratio == pytest.approx(0.3 + step)


def test_default_does_not_wind_up() -> None:
    """However long the calm, a few starved cycles bring lending back."""
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=0.3)
    for step in range(1, 101):
        policy.update_after_step(step, context(step_wait_times=[0.0], step_wait_samples=[0]))
    assert policy.deactivate_ratio == 0.0
    starved = context(step_wait_times=[9.0, 9.0], step_wait_samples=[4, 4], switch_costs_s=(1.0,))
    policy.update_after_step(101, starved)
    assert policy.should_activate_after_step(102, False, starved)


def test_default_learns_nothing_before_the_first_cycle() -> None:
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=0.3)
    policy.update_after_step(0, context(step_wait_times=[1.0], step_wait_samples=[4]))
    assert policy.deactivate_ratio == 0.3 and policy.per_sample_time_s == 1000.0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.floats(0.01, 1.0),
    st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 12)), min_size=1, max_size=40),
)
def test_default_ratio_stays_a_ratio_and_its_state_travels(ratio: float, cycles: list[tuple[float, int]]) -> None:
    policy = DefaultDynamicSchedulePolicy(deactivate_ratio=ratio)
    for step, (wait_s, num_waited) in enumerate(cycles, start=1):
        ctx = context(step_wait_times=[wait_s], step_wait_samples=[num_waited])
        policy.update_after_step(step, ctx)
        assert 0.0 <= policy.deactivate_ratio <= 1.0
        assert policy.deactivate_wait_samples(ctx) <= ctx.step_required_samples
    twin = DefaultDynamicSchedulePolicy()
    twin.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    assert twin.state_dict() == policy.state_dict()
    assert twin.should_activate_after_step(1, False, BASE) == policy.should_activate_after_step(1, False, BASE)


def test_stateless_policies_have_an_empty_state() -> None:
    for policy in (FixedRatioDynamicSchedulePolicy(), StaticFullyAsyncPolicy()):
        assert policy.state_dict() == {}
        policy.load_state_dict({})
