"""What a policy of global steps estimates and remembers; taking turns."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest
from switch_builders import BATCH, CALM, IDLE, after, measured, outcome, policy

from swingshift.schedule.step_policy import EveryStepPolicy
from swingshift.schedule.step_switch import StepSwitchPolicy

# --- estimates ----------------------------------------------------------------------------------------------


def test_the_time_per_sample_is_an_average_over_the_whole_run_by_default() -> None:
    built = after(outcome(20.0, 10), *[CALM] * 50, outcome(40.0, 10))
    assert built.per_sample_time_s() == 3.0
    assert after(CALM).per_sample_time_s() is None


def test_decayed_it_follows_what_was_measured_last() -> None:
    built = after(outcome(20.0, 10), outcome(40.0, 10), per_sample_time_decay=0.5)
    assert built.per_sample_time_s() == pytest.approx((0.5 * 20 + 40) / (0.5 * 10 + 10))
    built = after(outcome(20.0, 10), *[outcome(40.0, 10)] * 20, per_sample_time_decay=0.5)
    assert built.per_sample_time_s() == pytest.approx(4.0, rel=1e-5)


def test_a_decayed_time_per_sample_is_not_changed_by_steps_without_a_wait() -> None:
    built = after(outcome(20.0, 10), *[CALM] * 10, per_sample_time_decay=0.5)
    assert built.per_sample_time_s() == pytest.approx(2.0)


def test_the_cost_is_a_mean_each_way_and_forgets_the_cold_start() -> None:
    built = policy()
    built.switched(to_rollout_s=100.0)
    built.switched(to_trainer_s=50.0)
    assert built.switch_cost_s() == 150.0
    for _ in range(2):
        built.switched(to_rollout_s=1.0)
    assert built.switch_cost_s() == pytest.approx(102 / 3 + 50)
    built.switched(to_rollout_s=4.0)
    assert built.switch_cost_s() == pytest.approx(2.0 + 50.0), "the window holds three of each"
    for _ in range(3):
        built.switched(to_trainer_s=2.0)
    assert built.switch_cost_s() == pytest.approx(4.0)


def test_a_window_of_one_holds_the_newest() -> None:
    built = measured(100.0, 50.0, switch_cost_window_size=1)
    built.switched(to_rollout_s=1.0)
    assert built.switch_cost_s() == 51.0


def test_the_standalone_share_is_that_of_the_devices_unless_it_is_measured() -> None:
    rates = outcome(alone_rate=2.0, lent_rate=4.0)
    assert after(rates).alone_share() == 1 / 3
    assert after(rates, measure_scaling_factor=True).alone_share() == 0.5
    assert policy(measure_scaling_factor=True).alone_share() == 1 / 3, "nothing measured yet"
    for half in (outcome(alone_rate=2.0), outcome(lent_rate=4.0), outcome(alone_rate=2.0, lent_rate=0.0)):
        assert after(half, measure_scaling_factor=True).alone_share() == 1 / 3


def test_measured_rates_are_smoothed_and_lending_never_harms() -> None:
    built = after(
        outcome(alone_rate=2.0), outcome(lent_rate=4.0), outcome(lent_rate=8.0), measure_scaling_factor=True
    )
    assert built.alone_share() == pytest.approx(2.0 / 5.2), "4 + 0.3 × (8 − 4); the other rate stays"
    assert after(outcome(alone_rate=5.0, lent_rate=4.0), measure_scaling_factor=True).alone_share() == 1.0


def test_a_measured_share_of_1_never_lends() -> None:
    """Lending was seen to add nothing: no benefit, however cheap."""
    rates = outcome(20.0, 10, alone_rate=4.0, lent_rate=4.0)
    decision = measured(0.0, 0.0, rates, measure_scaling_factor=True).decide(sampleable_count=0, is_last=False)
    assert decision.benefit_s == 0.0 and not decision.lend


def test_the_margin_lowers_the_benefit_by_how_much_the_times_swing() -> None:
    steady, swinging = [outcome(20.0, 10)] * 2, [outcome(10.0, 10), outcome(30.0, 10)]
    deviation = math.sqrt(2.0)
    for steps, expected in ((steady, 2.0), (swinging, 2.0 - 0.5 * deviation)):
        assert after(*steps, benefit_margin=0.5).per_sample_time_s() == pytest.approx(expected)
        assert after(*steps).per_sample_time_s() == pytest.approx(2.0), "not by default"
    assert after(*swinging, benefit_margin=9.0).per_sample_time_s() == 0.0, "never below zero"
    assert after(outcome(20.0, 10), benefit_margin=9.0).per_sample_time_s() == 2.0, "one time does not swing"


def test_the_margin_looks_at_recent_steps_with_a_wait_only() -> None:
    swings = [outcome(10.0, 10), outcome(30.0, 10)]
    steady = [outcome(20.0, 10), CALM]
    assert after(*swings, *steady * 8, benefit_margin=1.0).per_sample_time_s() == pytest.approx(2.0)
    assert after(*swings, *steady * 7, benefit_margin=1.0).per_sample_time_s() < 1.9


# --- state --------------------------------------------------------------------------------------------------


def test_the_state_survives_json_and_decides_the_same() -> None:
    options = {"measure_scaling_factor": True, "benefit_margin": 0.1, "per_sample_time_decay": 0.2}
    steps = [outcome(10.0, 5, alone_rate=1.0), IDLE, outcome(3.0, 2, lent_rate=3.0), CALM]
    before = measured(3.0, 4.0, *steps, **options)
    resumed = policy(**options)
    resumed.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert resumed.state_dict() == before.state_dict()
    assert resumed == before, "nothing of it is left out"
    for one in (CALM, IDLE, IDLE):
        for built in (before, resumed):
            built.step_ended(one)
            built.switched(to_rollout_s=5.0)
        assert resumed.decide(sampleable_count=3, is_last=False) == before.decide(sampleable_count=3, is_last=False)


def test_a_state_replaces_what_was_there() -> None:
    fresh, used = policy().state_dict(), measured(1.0, 2.0, IDLE, IDLE)
    used.load_state_dict(fresh)
    assert used.state_dict() == fresh and used == policy()


def test_a_smaller_window_takes_over_the_newest() -> None:
    before = policy()
    for seconds in (1.0, 2.0, 3.0):
        before.switched(to_rollout_s=seconds, to_trainer_s=seconds)
    resumed = policy(switch_cost_window_size=1)
    resumed.load_state_dict(before.state_dict())
    assert resumed.switch_cost_s() == 6.0


def test_every_field_of_the_state_is_saved() -> None:
    state = {f.name.removeprefix("_") for f in fields(StepSwitchPolicy) if f.name.startswith("_")}
    assert state == policy().state_dict().keys()


# --- taking turns -------------------------------------------------------------------------------------------


def test_taking_turns_lends_after_every_step_but_the_last_until_a_whole_batch_is_there() -> None:
    turns = EveryStepPolicy(BATCH)
    assert turns.lends and turns.threshold() == BATCH and turns.ratio == 1.0
    for count in (0, BATCH, 1000):
        decision = turns.decide(sampleable_count=count, is_last=False)
        assert decision.lend and decision.remaining == max(0, BATCH - count)
    last = turns.decide(sampleable_count=0, is_last=True)
    assert not last.lend and "last step" in last.reason


def test_taking_turns_learns_nothing() -> None:
    turns = EveryStepPolicy(BATCH)
    turns.step_ended(IDLE)
    turns.switched(to_rollout_s=1.0, to_trainer_s=1e9)
    assert turns == EveryStepPolicy(BATCH) and turns.state_dict() == {}
    turns.load_state_dict({})
    assert turns.decide(sampleable_count=0, is_last=False).lend
