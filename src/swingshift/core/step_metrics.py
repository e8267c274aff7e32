"""The metrics that only training in global steps has; names and formulas are in ``metric_table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swingshift.core.buffer import Evictions
from swingshift.core.metric_table import STEP_METRICS


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Of one global step. ``timings_s`` has the keys of ``TIMINGS``; None is what is not known yet."""

    threshold_ratio: float
    threshold: int
    wait_samples: int
    sample_wait_s: float
    is_idle: bool
    sampleable_count: int
    next_threshold: int
    remaining: int
    per_sample_time_s: float | None
    benefit_s: float | None
    switch_cost_s: float | None
    lend: bool
    evictions: Evictions
    timings_s: Mapping[str, float]
    validate_s: float
    validate_groups: int


def step_metrics(figures: StepFigures) -> dict[str, float]:
    """One flat row."""
    evictions, timings = figures.evictions, figures.timings_s
    row = {
        "separate_async/switch/threshold_ratio": figures.threshold_ratio,
        "separate_async/switch/threshold": figures.threshold,
        "separate_async/switch/wait_samples": figures.wait_samples,
        "separate_async/switch/sample_wait_seconds": figures.sample_wait_s,
        "separate_async/switch/idle": figures.is_idle,
        "separate_async/decision/sampleable_count": figures.sampleable_count,
        "separate_async/decision/threshold": figures.next_threshold,
        "separate_async/decision/remaining": figures.remaining,
        "separate_async/decision/per_sample_time_seconds": _or_unknown(figures.per_sample_time_s),
        "separate_async/decision/benefit_seconds": _or_unknown(figures.benefit_s),
        "separate_async/decision/effective_switch_cost_seconds": _or_unknown(figures.switch_cost_s),
        "separate_async/decision/should_switch_to_rollout": figures.lend,
        "separate_async/validate/seconds": figures.validate_s,
        "separate_async/validate/generated_samples": figures.validate_groups,
        "replay_buffer/evicted_samples": evictions.num_groups,
        "replay_buffer/evicted_stale": evictions.num_stale,
        "replay_buffer/evicted_filtered": evictions.num_filtered,
        "replay_buffer/evicted_failed": evictions.num_failed,
        "replay_buffer/refilled_samples": evictions.num_refilled,
        "timing_s/switch_wait": timings.get("wait_for_enough_samples", 0.0),
        "timing_s/switch_to_rollout": timings.get("activate", 0.0) + timings.get("rebalance", 0.0),
        "timing_s/switch_to_trainer": timings.get("deactivate", 0.0),
        "timing_s/update_weights": timings.get("param_sync", 0.0),
    }
    assert row.keys() == STEP_METRICS.keys(), f"defined and emitted differ: {row.keys() ^ STEP_METRICS.keys()}"
    return {name: float(value) for name, value in row.items()}


def _or_unknown(value: float | None) -> float:
    """Rows hold numbers only: −1 stands for what is not known."""
    return -1.0 if value is None else value
