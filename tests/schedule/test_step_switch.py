"""When to lend in global steps, by hand: options, threshold, hysteresis, the decision."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from switch_builders import BATCH, CALM, IDLE, MINI_BATCH, K, after, measured, outcome, policy

from swingshift.config.step_schema import HybridRolloutConfig
from swingshift.schedule.step_policy import StepOutcome, SwitchDecision
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy, check_disaggregation

# --- configuration ------------------------------------------------------------------------------------------


def test_the_published_defaults() -> None:
    assert asdict(HybridRolloutSwitchConfig()) == {
        "enable_switch": False,
        "switch_threshold_ratio": 0.5,
        "adaptive_switch_threshold": True,
        "switch_threshold_step_up": 0.1,
        "switch_threshold_step_down": 0.05,
        "switch_threshold_release_steps": 2,
        "switch_cost_window_size": 3,
        "idle_threshold_ratio": 0.01,
        "per_sample_time_decay": 0.0,
        "measure_scaling_factor": False,
        "benefit_margin": 0.0,
    }


def test_the_keys_of_a_training_run_have_the_same_names_and_defaults() -> None:
    assert HybridRolloutConfig().model_dump() == asdict(HybridRolloutSwitchConfig())


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("switch_threshold_ratio", 0.0, r"lies outside \(0, 1\]"),
        ("switch_threshold_ratio", -0.5, r"lies outside \(0, 1\]"),
        ("switch_threshold_ratio", 1.01, r"lies outside \(0, 1\]"),
        ("switch_threshold_ratio", math.nan, r"lies outside \(0, 1\]"),
        ("switch_threshold_step_up", -0.1, "is negative"),
        ("switch_threshold_step_down", -0.05, "is negative"),
        ("switch_threshold_release_steps", 0, "is below 1"),
        ("switch_cost_window_size", 0, "is not positive"),
        ("switch_cost_window_size", -3, "is not positive"),
        ("idle_threshold_ratio", -0.01, "is negative"),
        ("per_sample_time_decay", 1.0, r"lies outside \[0, 1\)"),
        ("per_sample_time_decay", -0.1, r"lies outside \[0, 1\)"),
        ("benefit_margin", -1.0, "is negative"),
    ],
)
def test_what_cannot_work_is_refused(name: str, value: float, what: str) -> None:
    """In a run's configuration as well; there, not finite numbers are refused by themselves."""
    with pytest.raises(ValueError, match=rf"hybrid_rollout\.{name}={value}: {what}; correct it"):
        HybridRolloutSwitchConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        HybridRolloutConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("switch_threshold_ratio", 1.0),
        ("switch_threshold_ratio", 1e-9),
        ("switch_threshold_step_up", 0.0),
        ("switch_threshold_step_down", 0.0),
        ("switch_threshold_release_steps", 1),
        ("switch_cost_window_size", 1),
        ("idle_threshold_ratio", 0.0),
        ("per_sample_time_decay", 0.99),
    ],
)
def test_the_limits_are_allowed(name: str, value: float) -> None:
    assert getattr(HybridRolloutSwitchConfig(**{name: value}), name) == value  # type: ignore[arg-type]
    assert getattr(HybridRolloutConfig(**{name: value}), name) == value


def test_disaggregation_is_refused_with_switching_only() -> None:
    with pytest.raises(ValueError, match=r"disaggregation\.enable=true: .* be combined with the_switch=true, which"):
        check_disaggregation(lent_by="the_switch=true", disaggregated=True)
    check_disaggregation(lent_by="the_switch=true", disaggregated=False)
    check_disaggregation(lent_by=None, disaggregated=True)
    check_disaggregation(lent_by=None, disaggregated=False)


def test_mini_batches_must_divide_the_batch() -> None:
    with pytest.raises(AssertionError, match="divide"):
        StepSwitchPolicy(HybridRolloutSwitchConfig(), 10, 3, 0.5)


# --- threshold ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "threshold"),
    [
        (0.5, 32),
        (1.0, 64),
        (0.01, MINI_BATCH),  # at least one mini-batch
        (0.25, MINI_BATCH),
        (0.257, MINI_BATCH),  # 16.45
        (0.26, 17),  # 16.64
        (0.7734375, 50),  # 49.5: to the even number
        (0.7890625, 50),  # 50.5
        (0.999, BATCH),
    ],
)
def test_the_threshold_is_rounded_and_stays_between_a_mini_batch_and_the_batch(ratio: float, threshold: int) -> None:
    assert policy(switch_threshold_ratio=ratio).threshold() == threshold


@given(
    mini_batch=st.integers(1, 20),
    num_mini_batches=st.integers(1, 8),
    ratio=st.floats(0.0, 1.0, exclude_min=True),
    idle=st.lists(st.booleans(), max_size=30),
)
def test_the_threshold_stays_between_a_mini_batch_and_the_batch_whatever_happens(
    mini_batch: int, num_mini_batches: int, ratio: float, idle: list[bool]
) -> None:
    config = HybridRolloutSwitchConfig(enable_switch=True, switch_threshold_ratio=ratio)
    built = StepSwitchPolicy(config, mini_batch * num_mini_batches, num_mini_batches, 0.5)
    for one in idle:
        built.step_ended(IDLE if one else CALM)
        assert mini_batch <= built.threshold() <= mini_batch * num_mini_batches


# --- hysteresis ---------------------------------------------------------------------------------------------


def ratios(*outcomes: StepOutcome, **options: Any) -> list[float]:
    built, found = policy(**options), []
    for one in outcomes:
        built.step_ended(one)
        found.append(round(built.ratio, 10))
    return found


def test_the_ratio_rises_with_the_nth_idle_step_in_a_row_and_with_each_one_after_it() -> None:
    assert ratios(IDLE, IDLE, IDLE, IDLE) == [0.5, 0.6, 0.7, 0.8]
    assert ratios(*[IDLE] * 5, switch_threshold_release_steps=4) == [0.5, 0.5, 0.5, 0.6, 0.7]
    assert ratios(IDLE, IDLE, switch_threshold_release_steps=1) == [0.6, 0.7]


def test_the_ratio_falls_the_same_way_in_calm_steps() -> None:
    assert ratios(CALM, CALM, CALM) == [0.5, 0.45, 0.4]
    assert ratios(*[CALM] * 4, switch_threshold_release_steps=3) == [0.5, 0.5, 0.45, 0.4]


def test_it_ends_at_1_and_at_one_mini_batch() -> None:
    assert ratios(*[IDLE] * 8)[-3:] == [1.0, 1.0, 1.0]
    assert ratios(*[CALM] * 20)[-2:] == [1 / K, 1 / K]
    assert ratios(*[CALM] * 3, switch_threshold_step_down=0.2, switch_threshold_release_steps=1) == [0.3, 0.25, 0.25]


def test_nothing_winds_up_at_the_ends() -> None:
    assert ratios(*[CALM] * 50, IDLE, IDLE)[-1] == 1 / K + 0.1
    assert ratios(*[IDLE] * 50, CALM, CALM)[-1] == 0.95


def test_a_change_of_direction_starts_the_count_again() -> None:
    assert ratios(IDLE, CALM, IDLE, IDLE) == [0.5, 0.5, 0.5, 0.6]
    assert ratios(IDLE, IDLE, IDLE, CALM, CALM, IDLE, IDLE) == [0.5, 0.6, 0.7, 0.7, 0.65, 0.65, 0.75]


@pytest.mark.parametrize("first", [IDLE, CALM])
def test_alternation_never_moves_it(first: StepOutcome) -> None:
    other = CALM if first is IDLE else IDLE
    assert set(ratios(*[first, other] * 20)) == {0.5}


def test_without_adaptation_it_stays() -> None:
    assert set(ratios(*[IDLE] * 5, *[CALM] * 5, adaptive_switch_threshold=False)) == {0.5}


def test_a_step_was_idle_if_it_waited_longer_than_a_share_of_its_duration() -> None:
    at, above = outcome(1.0, 1), outcome(1.001, 1)
    assert ratios(above, above) == [0.5, 0.6]
    assert ratios(at, at) == [0.5, 0.45]
    assert ratios(above, above, idle_threshold_ratio=0.02) == [0.5, 0.45]
    assert ratios(outcome(0.001), outcome(0.001), idle_threshold_ratio=0.0) == [0.5, 0.6]


# --- the decision -------------------------------------------------------------------------------------------


def test_the_numbers_of_a_decision() -> None:
    """32 are wanted and 20 there; 2 s each, of which a third would be generated anyway."""
    built = measured(1.0, 2.0, outcome(20.0, 10), adaptive_switch_threshold=False)
    decision = built.decide(sampleable_count=20, is_last=False)
    assert decision == SwitchDecision(
        lend=True,
        reason="lend: 12 missing groups, saves 16.00 s for 3.00 s of switching",
        sampleable_count=20,
        threshold=32,
        remaining=12,
        per_sample_time_s=2.0,
        benefit_s=pytest.approx(16.0),
        switch_cost_s=3.0,
    )


@pytest.mark.parametrize(("cost_s", "lend"), [(15.9, True), (16.1, False)])
def test_the_cost_decides_both_ways(cost_s: float, lend: bool) -> None:
    built = measured(cost_s / 2, cost_s / 2, outcome(20.0, 10), adaptive_switch_threshold=False)
    decision = built.decide(sampleable_count=20, is_last=False)
    assert decision.lend is lend and decision.reason.startswith("lend:" if lend else "keep:")


def test_a_benefit_that_only_equals_the_cost_is_none() -> None:
    config = HybridRolloutSwitchConfig(enable_switch=True, adaptive_switch_threshold=False)
    built = StepSwitchPolicy(config, BATCH, K, standalone_share=0.5)
    built.step_ended(outcome(20.0, 10))
    built.switched(to_rollout_s=8.0, to_trainer_s=4.0)
    decision = built.decide(sampleable_count=20, is_last=False)
    assert decision.benefit_s == decision.switch_cost_s == 12.0 and not decision.lend


@pytest.mark.parametrize(("sampleable", "remaining", "lend"), [(31, 1, True), (32, 0, False), (64, 0, False)])
def test_enough_groups_in_the_inventory_keep_the_devices(sampleable: int, remaining: int, lend: bool) -> None:
    """Whatever it would cost, and even if nothing was measured yet."""
    for built in (policy(), measured(0.0, 0.0, outcome(1000.0, 1), adaptive_switch_threshold=False)):
        decision = built.decide(sampleable_count=sampleable, is_last=False)
        assert (decision.remaining, decision.lend) == (remaining, lend)
    assert policy().decide(sampleable_count=40, is_last=False).reason == "keep: 32 groups are sampleable already"


def test_the_inventory_is_compared_with_the_threshold_after_adapting() -> None:
    built = after(IDLE, IDLE, switch_threshold_step_up=0.25)
    assert built.decide(sampleable_count=32, is_last=False).remaining == 16


def test_a_missing_estimate_lends() -> None:
    first = policy().decide(sampleable_count=0, is_last=False)
    assert first.lend and (first.per_sample_time_s, first.benefit_s, first.switch_cost_s) == (None, None, None)
    assert "the time per sample is not measured yet" in first.reason
    no_wait = measured(1e9, 1e9, CALM).decide(sampleable_count=0, is_last=False)
    assert no_wait.lend and no_wait.benefit_s is None and no_wait.switch_cost_s == 2e9
    no_cost = after(outcome(1e-9, 1)).decide(sampleable_count=0, is_last=False)
    assert no_cost.lend and no_cost.switch_cost_s is None and "the cost of a switch is not" in no_cost.reason


@pytest.mark.parametrize("direction", ["to_rollout_s", "to_trainer_s"])
def test_one_direction_alone_is_no_cost(direction: str) -> None:
    built = after(outcome(1e-9, 1))
    built.switched(**{direction: 1e9})
    assert built.switch_cost_s() is None and built.decide(sampleable_count=0, is_last=False).lend


def test_the_last_step_never_lends() -> None:
    for built in (policy(), measured(0.0, 0.0, outcome(1000.0, 1))):
        decision = built.decide(sampleable_count=0, is_last=True)
        assert not decision.lend and "last step" in decision.reason and decision.remaining > 0


def test_switched_off_it_never_lends_and_takes_back_at_once() -> None:
    built = measured(0.0, 0.0, outcome(1000.0, 1), enable_switch=False)
    assert not built.lends and built.threshold() == 0
    decision = built.decide(sampleable_count=0, is_last=False)
    assert not decision.lend and decision.reason == "switching is off" and decision.remaining == 0
