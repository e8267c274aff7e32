"""The metrics of one sync cycle: gathers what its collections report and emits one flat row.

The names, units and formulas are in ``metric_table``, the utilization formulas in ``utilization``; both are
exported here, so that one import serves.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swingshift.core.device_time import DeviceTimes
from swingshift.core.engine_work import EngineMeter
from swingshift.core.metric_table import (
    METRICS,
    STEP_METRICS,
    TIMINGS,
    TRAIN_COMPUTE_KEYS,
    WORKER_PREFIXES,
    MetricDefinition,
    check_row,
)
from swingshift.core.types import FinishReason, Sample, SampleGroup, WeightVersion
from swingshift.core.utilization import (
    IdleTimes,
    IdleWindow,
    RolloutUtilization,
    cluster_utilization,
    hybrid_rollout_fraction,
    ratio,
    train_utilization,
)

__all__ = [
    "METRICS",
    "STEP_METRICS",
    "TIMINGS",
    "TRAIN_COMPUTE_KEYS",
    "WORKER_PREFIXES",
    "CycleMetrics",
    "EngineMeter",
    "IdleTimes",
    "IdleWindow",
    "LendingCycle",
    "MetricDefinition",
    "RolloutCycle",
    "RolloutUtilization",
    "check_row",
    "cluster_utilization",
    "hybrid_rollout_fraction",
    "ratio",
    "train_utilization",
]


@dataclass(frozen=True, slots=True)
class RolloutCycle:
    """What the rollouter reports at a sync; ``total_*``, ``dropped_*`` and ``failed_*`` since the start."""

    busy_s: float
    capacity_s: float
    active_time_s: float
    version_time_s: float
    step_generated_samples: int
    total_generated_samples: int
    staleness_samples: int
    dropped_samples: int = 0
    failed_samples: int = 0


@dataclass(frozen=True, slots=True)
class LendingCycle:
    """What the controller reports for one cycle; all 0 where nothing is lent."""

    num_activations: int = 0
    num_deactivations: int = 0
    activate_s: float = 0.0
    deactivate_s: float = 0.0
    switch_cost_s: float = 0.0
    switch_s: float = 0.0
    deactivate_ratio: float = 0.0


@dataclass(slots=True)
class _Sums:
    """What one cycle adds up."""

    timings: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    worker_sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    worker_counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_collections: int = 0
    num_groups: int = 0
    num_trajectories: int = 0
    num_tokens: int = 0
    num_reprefilled_tokens: int = 0
    num_prompt_tokens: int = 0
    sum_squares: int = 0
    num_partial: int = 0
    num_clipped: int = 0
    max_span: int = 0
    max_length: int = 0
    staleness: int = 0
    max_staleness: int = 0
    reward: float = 0.0
    max_reward: float = float("-inf")
    min_reward: float = float("inf")
    wait_s: float = 0.0
    wait_samples: int = 0
    allocated_s: float = 0.0


class CycleMetrics:
    """Gathers one sync cycle after the other. Only the counters since the start outlive a ``row``."""

    def __init__(self, num_hybrid_devices: int, num_standalone_devices: int) -> None:
        self._a = num_hybrid_devices
        self._b = num_standalone_devices
        self._sums = _Sums()
        self.engines = EngineMeter()
        self.devices = DeviceTimes(num_hybrid_devices, num_standalone_devices)
        self.total_consumed_samples = 0
        self.stale_samples_processed = 0
        self.stale_trajectory_processed = 0

    def add_timings(self, timings: Mapping[str, float]) -> None:
        """Seconds by phase, outside of or after a collection (saving, for instance)."""
        unknown = set(timings) - set(TIMINGS)
        assert not unknown, f"timings without a definition: {sorted(unknown)}"
        for key, seconds in timings.items():
            self._sums.timings[key] += seconds

    def add_allocated(self, seconds: float) -> None:
        """Wall-clock of the trainer's turn: from asking for groups to the end of sync and activation.

        Waiting for enough samples with the devices lent, and giving them back, come before the turn.
        """
        self._sums.allocated_s += seconds

    def add_collection(
        self,
        timings: Mapping[str, float],
        groups: Sequence[SampleGroup],
        version: WeightVersion,
        wait_s: float,
        waited_samples: int,
        worker_metrics: Mapping[str, float] | None = None,
    ) -> None:
        """One collection: phases in seconds, its scored groups, the weight version it trained.

        ``wait_s`` is how long it waited for groups and ``waited_samples`` for how many. ``worker_metrics``
        (``actor/…``) are averaged over the collections.
        """
        self.add_timings(timings)
        sums = self._sums
        sums.num_collections += 1
        sums.wait_s += wait_s
        sums.wait_samples += waited_samples
        for name, value in (worker_metrics or {}).items():
            assert name.startswith(WORKER_PREFIXES), f"not a worker's metric: {name}"
            sums.worker_sums[name] += value
            sums.worker_counts[name] += 1
        for group in groups:
            self._add_group(group, version)

    def _add_group(self, group: SampleGroup, version: WeightVersion) -> None:
        sums = self._sums
        sums.num_groups += 1
        sums.num_prompt_tokens += len(group.prompt.token_ids)
        self.total_consumed_samples += 1
        lags = [_add_sample(sums, sample, version) for sample in group.samples]
        stale = sum(lag > 0 for lag in lags)
        self.stale_trajectory_processed += stale
        self.stale_samples_processed += stale > 0

    def row(
        self,
        *,
        now: float,
        global_step: WeightVersion,
        rollout: RolloutCycle,
        mq_size: int = 0,
        lending: LendingCycle | None = None,
        extra: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Every metric of the cycle that ends at ``now``; the next cycle starts empty.

        ``mq_size`` is what the queue held when the cycle's last step had ended, weight sync and activation included.
        ``extra`` takes what workers define themselves (``val/…``). Raises AssertionError for undefined names.
        """
        sums, self._sums = self._sums, _Sums()
        assert sums.num_collections > 0, "a cycle without a collection has no metrics"
        workers = {name: total / sums.worker_counts[name] for name, total in sums.worker_sums.items()}
        row = {
            "training/global_step": float(global_step),
            "training/time_s": now,
            **{f"timing_s/{key}": sums.timings[key] for key in TIMINGS},
            "dynamic_resource/mq_size": float(mq_size),
            **self._resource_metrics(sums, rollout, lending or LendingCycle()),
            **self._async_metrics(sums, rollout),
            **_sample_metrics(sums, self._a + self._b),
            **self.engines.close(),
            **self.devices.close(),
        }
        assert row.keys() == METRICS.keys(), f"defined and emitted differ: {row.keys() ^ METRICS.keys()}"
        row.update({**workers, **(extra or {})})
        check_row(row)
        return row

    def _resource_metrics(self, sums: _Sums, rollout: RolloutCycle, lending: LendingCycle) -> dict[str, float]:
        compute_s = sum(sums.timings[key] for key in TRAIN_COMPUTE_KEYS)
        step_s, wait_s = sums.timings["step"], sums.timings["wait_for_enough_samples"]
        u_train = train_utilization(compute_s, sums.allocated_s)
        u_rollout = ratio(rollout.busy_s, rollout.capacity_s)
        metrics = {
            "train_resource_utilization": u_train,
            "train_compute_time_s": compute_s,
            "train_allocated_time_s": sums.allocated_s,
            "rollout_resource_utilization": u_rollout,
            "rollout_busy_capacity_s": rollout.busy_s,
            "rollout_capacity_s": rollout.capacity_s,
            "resource_utilization": cluster_utilization(u_train, u_rollout, wait_s, step_s, self._a, self._b),
            "hybrid_rollout_fraction": hybrid_rollout_fraction(wait_s, step_s),
            "num_hybrid_devices": self._a,
            "num_standalone_devices": self._b,
            "deactivate_ratio": lending.deactivate_ratio,
            "num_activations": lending.num_activations,
            "num_deactivations": lending.num_deactivations,
            "activate_s": lending.activate_s,
            "deactivate_s": lending.deactivate_s,
            "switch_cost_s": lending.switch_cost_s,
            "switch_s": lending.switch_s,
        }
        return {f"dynamic_resource/{name}": float(value) for name, value in metrics.items()}

    def _async_metrics(self, sums: _Sums, rollout: RolloutCycle) -> dict[str, float]:
        idle_s = rollout.version_time_s - rollout.active_time_s
        metrics = {
            "trainer/idle_ratio": ratio(sums.timings["gen"], sums.timings["step"]),
            "trainer/step_consumed_samples": sums.num_groups,
            "trainer/step_consumed_trajectories": sums.num_trajectories,
            "rollouter/idle_ratio": ratio(idle_s, rollout.version_time_s),
            "rollouter/active_time_s": rollout.active_time_s,
            "rollouter/version_time_s": rollout.version_time_s,
            "rollouter/step_generated_samples": rollout.step_generated_samples,
            "total_wait_time_s": sums.wait_s,
            "total_wait_samples": sums.wait_samples,
            "count/total_generated_samples": rollout.total_generated_samples,
            "count/total_consumed_samples": self.total_consumed_samples,
            "count/staleness_samples": rollout.staleness_samples,
            "count/stale_samples_processed": self.stale_samples_processed,
            "count/stale_trajectory_processed": self.stale_trajectory_processed,
            "count/dropped_samples": rollout.dropped_samples,
            "count/failed_samples": rollout.failed_samples,
            "partial/total_partial_num": sums.num_partial,
            "partial/partial_ratio": ratio(sums.num_partial, sums.num_trajectories),
            "partial/max_partial_span": sums.max_span,
            "staleness/mean": ratio(sums.staleness, sums.num_trajectories),
            "staleness/sum": sums.staleness,
            "staleness/max": sums.max_staleness,
        }
        return {f"fully_async/{name}": float(value) for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """The counters since the start. What the open cycle gathered is not part of it."""
        return {
            "total_consumed_samples": self.total_consumed_samples,
            "stale_samples_processed": self.stale_samples_processed,
            "stale_trajectory_processed": self.stale_trajectory_processed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.total_consumed_samples = int(state["total_consumed_samples"])
        self.stale_samples_processed = int(state["stale_samples_processed"])
        self.stale_trajectory_processed = int(state["stale_trajectory_processed"])


def _add_sample(sums: _Sums, sample: Sample, version: WeightVersion) -> int:
    """Add one response and return its staleness in weight versions. Spelt out: it is most of what a row costs."""
    reward, spans, length = sample.reward, sample.version_spans, len(sample.token_ids)
    assert reward is not None, "metrics need scored groups"
    oldest, newest = (spans[0][0], spans[-1][0]) if spans else (0, 0)
    # A response without tokens was sampled with no version at all: it cannot be stale.
    lag = version - oldest if length else 0
    span = newest - oldest
    assert lag >= 0 and span >= 0, "a sample cannot be newer than the trainer, nor its versions decrease"
    sums.num_trajectories += 1
    sums.num_tokens += length
    sums.sum_squares += length * length
    sums.num_reprefilled_tokens += sample.num_reprefilled_tokens
    sums.num_partial += span > 0
    sums.num_clipped += sample.finish_reason is FinishReason.LENGTH
    sums.staleness += lag
    sums.reward += reward
    if span > sums.max_span:
        sums.max_span = span
    if length > sums.max_length:
        sums.max_length = length
    if lag > sums.max_staleness:
        sums.max_staleness = lag
    if reward > sums.max_reward:
        sums.max_reward = reward
    if reward < sums.min_reward:
        sums.min_reward = reward
    return lag


def _sample_metrics(sums: _Sums, num_devices: int) -> dict[str, float]:
    step_s, n = sums.timings["step"], sums.num_trajectories
    metrics = {
        "perf/tokens": sums.num_tokens,
        "perf/tokens_per_s": ratio(sums.num_tokens, step_s),
        "perf/throughput": ratio(sums.num_tokens, step_s * num_devices),
        "perf/num_reprefilled_tokens": sums.num_reprefilled_tokens,
        "perf/num_prompt_tokens": sums.num_prompt_tokens,
        "prompt_length/mean": ratio(sums.num_prompt_tokens, sums.num_groups),
        "critic/rewards/mean": ratio(sums.reward, n),
        "critic/rewards/sum": sums.reward,
        "critic/rewards/max": sums.max_reward if n else 0.0,
        "critic/rewards/min": sums.min_reward if n else 0.0,
        "response_length/mean": ratio(sums.num_tokens, n),
        "response_length/std": math.sqrt(max(0.0, ratio(sums.sum_squares, n) - ratio(sums.num_tokens, n) ** 2)),
        "response_length/sum_squares": sums.sum_squares,
        "response_length/max": sums.max_length,
        "response_length/num_clipped": sums.num_clipped,
        "response_length/clip_ratio": ratio(sums.num_clipped, n),
    }
    return {name: float(value) for name, value in metrics.items()}
