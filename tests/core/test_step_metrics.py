"""The metrics that only global steps have, by hand."""

from __future__ import annotations

import pytest

from swingshift.core.buffer import Evictions
from swingshift.core.metrics import METRICS, STEP_METRICS, check_row
from swingshift.core.step_metrics import StepFigures, step_metrics


def figures(**others: object) -> StepFigures:
    values: dict[str, object] = {
        "threshold_ratio": 0.6,
        "threshold": 38,
        "wait_samples": 12,
        "sample_wait_s": 30.0,
        "is_idle": True,
        "sampleable_count": 20,
        "next_threshold": 39,
        "remaining": 19,
        "per_sample_time_s": 2.5,
        "benefit_s": 30.0,
        "switch_cost_s": 7.5,
        "lend": True,
        "evictions": Evictions(num_groups=6, num_stale=2, num_filtered=3, num_failed=2, num_refilled=5),
        "timings_s": {
            "step": 100.0,
            "gen": 30.0,
            "wait_for_enough_samples": 20.0,
            "activate": 4.0,
            "rebalance": 0.5,
            "deactivate": 3.5,
            "param_sync": 1.5,
        },
        "validate_s": 9.0,
        "validate_groups": 4,
        **others,
    }
    return StepFigures(**values)  # type: ignore[arg-type]


def test_every_value_of_a_step() -> None:
    assert step_metrics(figures()) == {
        "separate_async/switch/threshold_ratio": 0.6,
        "separate_async/switch/threshold": 38.0,
        "separate_async/switch/wait_samples": 12.0,
        "separate_async/switch/sample_wait_seconds": 30.0,
        "separate_async/switch/idle": 1.0,
        "separate_async/decision/sampleable_count": 20.0,
        "separate_async/decision/threshold": 39.0,
        "separate_async/decision/remaining": 19.0,
        "separate_async/decision/per_sample_time_seconds": 2.5,
        "separate_async/decision/benefit_seconds": 30.0,
        "separate_async/decision/effective_switch_cost_seconds": 7.5,
        "separate_async/decision/should_switch_to_rollout": 1.0,
        "separate_async/validate/seconds": 9.0,
        "separate_async/validate/generated_samples": 4.0,
        "replay_buffer/evicted_samples": 6.0,
        "replay_buffer/evicted_stale": 2.0,
        "replay_buffer/evicted_filtered": 3.0,
        "replay_buffer/evicted_failed": 2.0,
        "replay_buffer/refilled_samples": 5.0,
        "timing_s/switch_wait": 20.0,
        "timing_s/switch_to_rollout": 4.5,
        "timing_s/switch_to_trainer": 3.5,
        "timing_s/update_weights": 1.5,
    }


def test_what_is_not_known_is_minus_one() -> None:
    row = step_metrics(figures(per_sample_time_s=None, benefit_s=None, switch_cost_s=None))
    unknown = [name for name, value in row.items() if value == -1.0]
    assert [name.rpartition("/")[2] for name in unknown] == [
        "per_sample_time_seconds",
        "benefit_seconds",
        "effective_switch_cost_seconds",
    ]


def test_what_did_not_happen_took_no_time() -> None:
    row = step_metrics(figures(timings_s={"step": 1.0}, lend=False, is_idle=False))
    assert [row[f"timing_s/{name}"] for name in ("switch_wait", "switch_to_rollout", "switch_to_trainer")] == [
        0.0
    ] * 3
    assert row["separate_async/decision/should_switch_to_rollout"] == row["separate_async/switch/idle"] == 0.0


def test_the_values_are_plain_numbers() -> None:
    assert {type(value) for value in step_metrics(figures()).values()} == {float}


def test_every_name_is_defined_once_and_no_other_metric_has_it() -> None:
    check_row(step_metrics(figures()))
    assert not STEP_METRICS.keys() & METRICS.keys()
    for name, metric in STEP_METRICS.items():
        assert metric.name == name and metric.unit and metric.formula
    with pytest.raises(AssertionError, match="separate_async/switch/other"):
        check_row({"separate_async/switch/other": 0.0})
