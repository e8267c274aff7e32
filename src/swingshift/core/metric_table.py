"""Every metric once: name, unit, formula and how a cycle's collections become one value.

Beside every ratio or mean stand the numbers it is computed from. A *trajectory* is one response, a *sample*
is a sample group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from swingshift.core.device_time import DEVICE_METRICS
from swingshift.core.engine_work import ENGINE_METRICS
from swingshift.core.types import ReplicaKind

Reduction = Literal["sum", "max", "min", "last", "ratio"]
"""Over the collections of a cycle. ``ratio``: computed once from summed numerators and denominators.
``last``: the newest value, for snapshots and for counters that run over the whole training."""


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    name: str
    unit: str
    formula: str
    reduction: Reduction


TRAIN_COMPUTE_KEYS = ("reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
"""Timing keys that count as computing on the trainer's devices."""

TIMINGS = {
    "step": "the whole collection: giving lent devices back, waiting, training, weight sync, activation; saving not",
    "gen": "taking groups from the queue, waiting for them included, with the devices not lent",
    "wait_for_enough_samples": "waiting, with the devices lent, for enough groups to take them back",
    "reward": "scoring inside the trainer's turn",
    "old_log_prob": "log-probs under the policy before the update",
    "ref": "log-probs under the reference policy",
    "values": "critic values",
    "adv": "advantages",
    "update_critic": "critic optimizer pass",
    "update_actor": "actor optimizer pass",
    "param_sync": "moving weights into standalone replicas",
    "activate": "lending the devices, the weights of hybrid replicas included",
    "deactivate": "taking the devices back",
    "rebalance": "redistributing requests in flight",
    "save": "writing checkpoints",
}

_TABLE: tuple[tuple[str, str, str, Reduction], ...] = (
    ("training/global_step", "weight versions",
     "the trainer's weight version at the end of the cycle", "last"),
    ("training/time_s", "s", "control clock at the end of the cycle, the clock of the timeline", "last"),
    ("dynamic_resource/train_resource_utilization", "fraction",
     "train_compute_time_s / train_allocated_time_s", "ratio"),
    ("dynamic_resource/train_compute_time_s", "s", "timings " + " + ".join(TRAIN_COMPUTE_KEYS), "sum"),
    ("dynamic_resource/train_allocated_time_s", "s", "turns: asking for groups … weight sync, activation", "sum"),
    ("dynamic_resource/rollout_resource_utilization", "fraction",
     "rollout_busy_capacity_s / rollout_capacity_s", "ratio"),
    ("dynamic_resource/rollout_busy_capacity_s", "sample·s",
     "Σ dt·min(capacity, active) between syncs", "sum"),
    ("dynamic_resource/rollout_capacity_s", "sample·s", "Σ dt·capacity between syncs", "sum"),
    ("dynamic_resource/resource_utilization", "fraction",
     "((1 − x)·a·train + (x·a + b)·rollout) / (a + b); a, b: hybrid and standalone devices", "ratio"),
    ("dynamic_resource/hybrid_rollout_fraction", "fraction",
     "x = clip(timing wait_for_enough_samples / timing step, 0, 1)", "ratio"),
    ("dynamic_resource/num_hybrid_devices", "devices", "a: the trainer's devices", "last"),
    ("dynamic_resource/num_standalone_devices", "devices", "b: dedicated rollout devices", "last"),
    ("dynamic_resource/mq_size", "samples",
     "groups in the queue when the cycle's last step has ended, sync and activation included", "last"),
    ("dynamic_resource/deactivate_ratio", "fraction",
     "the policy's ratio after the cycle; 0 if none", "last"),
    ("dynamic_resource/num_activations", "count", "activations in the cycle", "sum"),
    ("dynamic_resource/num_deactivations", "count", "deactivations in the cycle", "sum"),
    ("dynamic_resource/activate_s", "s", "duration of the last activation, hybrid weights included", "last"),
    ("dynamic_resource/deactivate_s", "s", "duration of the last deactivation", "last"),
    ("dynamic_resource/switch_cost_s", "s", "the last activation plus the deactivation after it", "last"),
    ("dynamic_resource/switch_s", "s", "all activations and deactivations in the cycle, whatever for", "sum"),
    ("fully_async/trainer/idle_ratio", "fraction", "timing gen / timing step", "ratio"),
    ("fully_async/trainer/step_consumed_samples", "samples", "groups trained on", "sum"),
    ("fully_async/trainer/step_consumed_trajectories", "trajectories", "responses trained on", "sum"),
    ("fully_async/rollouter/idle_ratio", "fraction",
     "1 − active_time_s / version_time_s, over all pauses", "ratio"),
    ("fully_async/rollouter/active_time_s", "s", 
     "version_time_s minus all pauses: nothing in flight, and nothing may be or is left to be submitted", "sum"),
    ("fully_async/rollouter/version_time_s", "s",
     "between two weight syncs; in global steps without the time of validation", "sum"),
    ("fully_async/rollouter/step_generated_samples", "samples",
     "groups finished between two weight syncs", "sum"),
    ("fully_async/total_wait_time_s", "s", "collections waited for groups, with the devices not lent", "sum"),
    ("fully_async/total_wait_samples", "samples",
     "Σ max(0, required − queued at the start of a collection)", "sum"),
    ("fully_async/count/total_generated_samples", "samples", "groups finished since training began", "last"),
    ("fully_async/count/total_consumed_samples", "samples", "groups trained on since training began", "last"),
    ("fully_async/count/staleness_samples", "samples", "in flight + queued, after the sync's reset", "last"),
    ("fully_async/count/stale_samples_processed", "samples",
     "groups with weight version − min version > 0 trained on since training began", "last"),
    ("fully_async/count/stale_trajectory_processed", "trajectories",
     "responses with weight version − min version > 0 trained on since training began", "last"),
    ("fully_async/count/dropped_samples", "samples", "groups evicted untrained since training began", "last"),
    ("fully_async/count/failed_samples", "samples",
     "groups given up after retries since training began", "last"),
    ("fully_async/partial/total_partial_num", "trajectories",
     "responses with tokens of several versions", "sum"),
    ("fully_async/partial/partial_ratio", "fraction",
     "total_partial_num / step_consumed_trajectories", "ratio"),
    ("fully_async/partial/max_partial_span", "weight versions",
     "max over responses of max − min version", "max"),
    ("fully_async/staleness/mean", "weight versions",
     "sum / step_consumed_trajectories", "ratio"),
    ("fully_async/staleness/sum", "weight versions",
     "Σ over responses of weight version − min version", "sum"),
    ("fully_async/staleness/max", "weight versions",
     "max over responses of weight version − min version", "max"),
    ("perf/tokens", "tokens", "response tokens trained on", "sum"),
    ("perf/tokens_per_s", "tokens/s", "tokens / timing step", "ratio"),
    ("perf/throughput", "tokens/s/device", "tokens / (timing step · (a + b))", "ratio"),
    ("perf/num_reprefilled_tokens", "tokens", "computed again because a response moved or resumed", "sum"),
    ("perf/control_cpu_s", "s", "CPU time of the control process", "sum"),
    ("perf/num_shared_cores", "cores",
     "CPU cores that devices and the control process share; 0: none", "last"),
    ("perf/num_prompt_tokens", "tokens", "prompt tokens of the groups trained on, once a group", "sum"),
    ("prompt_length/mean", "tokens", "num_prompt_tokens / step_consumed_samples", "ratio"),
    ("critic/rewards/mean", "reward", "sum / step_consumed_trajectories", "ratio"),
    ("critic/rewards/sum", "reward", "Σ over responses", "sum"),
    ("critic/rewards/max", "reward", "max over responses", "max"),
    ("critic/rewards/min", "reward", "min over responses", "min"),
    ("response_length/mean", "tokens", "tokens / step_consumed_trajectories", "ratio"),
    ("response_length/std", "tokens", "√(sum_squares / step_consumed_trajectories − mean²)", "ratio"),
    ("response_length/sum_squares", "tokens²", "Σ length² over responses trained on", "sum"),
    ("response_length/max", "tokens", "max over responses", "max"),
    ("response_length/num_clipped", "trajectories", "responses ended by the length limit", "sum"),
    ("response_length/clip_ratio", "fraction", "num_clipped / step_consumed_trajectories", "ratio"),
)  # fmt: skip


def _reduction(name: str) -> Reduction:
    """Of a metric about devices: those of the schedule are since the session began."""
    if name.endswith("_s"):
        return "last" if name.startswith("schedule/") else "sum"
    return "ratio"


METRICS: dict[str, MetricDefinition] = {
    **{name: MetricDefinition(name, unit, formula, red) for name, unit, formula, red in _TABLE},
    **{f"timing_s/{key}": MetricDefinition(f"timing_s/{key}", "s", text, "sum") for key, text in TIMINGS.items()},
    **{
        f"engine/{kind.value}/{name}": MetricDefinition(
            f"engine/{kind.value}/{name}", unit, f"{kind.value} replicas: {text}", "sum"
        )
        for kind in ReplicaKind
        for name, unit, text in ENGINE_METRICS
    },
    **{name: MetricDefinition(name, unit, text, _reduction(name)) for name, unit, text in DEVICE_METRICS},
}

_STEP_TABLE: tuple[tuple[str, str, str, Reduction], ...] = (
    ("separate_async/switch/threshold_ratio", "fraction", "ρ after the step", "last"),
    ("separate_async/switch/threshold", "samples",
     "T = min(max(round(ρ·batch), mini-batch), batch) when the step began; lent devices wait for T", "last"),
    ("separate_async/switch/wait_samples", "samples",
     "Σ max(0, mini-batch − sampleable when it was asked for)", "sum"),
    ("separate_async/switch/sample_wait_seconds", "s", "mini-batches waited for groups, devices not lent", "sum"),
    ("separate_async/switch/idle", "0 or 1",
     "sample_wait_seconds > idle_threshold_ratio × duration of the step", "last"),
    ("separate_async/decision/sampleable_count", "samples", "groups the next step could take at once", "last"),
    ("separate_async/decision/threshold", "samples", "T after adapting ρ, for the next step", "last"),
    ("separate_async/decision/remaining", "samples", "max(0, decision/threshold − sampleable_count)", "last"),
    ("separate_async/decision/per_sample_time_seconds", "s",
     "Σ sample_wait_seconds / Σ wait_samples since training began, or with per_sample_time_decay d what a step added "
     "counts 1 − d as much a step later; less benefit_margin × the deviation of recent steps' own quotients, at "
     "least 0; −1 before the first wait", "last"),
    ("separate_async/decision/benefit_seconds", "s",
     "remaining × per_sample_time_seconds × (1 − standalone share); −1 if unknown", "last"),
    ("separate_async/decision/effective_switch_cost_seconds", "s",
     "mean switch to rollout + mean switch to trainer of the window; −1 if unknown", "last"),
    ("separate_async/decision/should_switch_to_rollout", "0 or 1", "the decision", "last"),
    ("separate_async/validate/seconds", "s",
     "the validation before this step, borrowing and returning devices included", "sum"),
    ("separate_async/validate/generated_samples", "samples",
     "training groups that finished while validation ran before this step", "sum"),
    ("replay_buffer/evicted_samples", "samples", "groups evicted in the step, each once", "sum"),
    ("replay_buffer/evicted_stale", "samples", "evicted groups older than the threshold", "sum"),
    ("replay_buffer/evicted_filtered", "samples", "evicted groups whose metric is equal throughout", "sum"),
    ("replay_buffer/evicted_failed", "samples", "evicted groups whose generation or scoring failed", "sum"),
    ("replay_buffer/refilled_samples", "samples", "prompts submitted in place of evicted groups", "sum"),
    ("timing_s/switch_wait", "s", "lent until enough groups could be sampled", "sum"),
    ("timing_s/switch_to_rollout", "s",
     "timings activate + rebalance: lending the devices, hybrid weights included, standalone sync not", "sum"),
    ("timing_s/switch_to_trainer", "s", "taking the devices back", "sum"),
    ("timing_s/update_weights", "s", "weight sync of standalone replicas", "sum"),
)  # fmt: skip

STEP_METRICS: dict[str, MetricDefinition] = {
    name: MetricDefinition(name, unit, formula, red) for name, unit, formula, red in _STEP_TABLE
}
"""Only where training goes in global steps (``trainer.v1.trainer_mode`` other than ``fully_async``)."""

WORKER_PREFIXES = ("actor/", "val/")
"""Names under these come from train workers and validation, which define them."""


def check_row(row: Mapping[str, float]) -> None:
    """Assert that every name of a row is defined here or comes from a worker."""
    defined = METRICS.keys() | STEP_METRICS.keys()
    unknown = [name for name in row if name not in defined and not name.startswith(WORKER_PREFIXES)]
    assert not unknown, f"metrics without a definition: {unknown}"
