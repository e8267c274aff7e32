"""Metrics by hand on small traces, and the registry they must come from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.core.device_time import DEVICE_METRICS
from swingshift.core.engine_work import ENGINE_METRICS
from swingshift.core.metrics import (
    METRICS,
    CycleMetrics,
    IdleTimes,
    LendingCycle,
    RolloutCycle,
    RolloutUtilization,
    check_row,
    cluster_utilization,
    hybrid_rollout_fraction,
    ratio,
    train_utilization,
)
from swingshift.core.types import DeviceState, FinishReason, Prompt, Sample, SampleGroup, VersionSpans


def sample(
    spans: VersionSpans, reward: float | None = 0.0, reason: FinishReason = FinishReason.STOP, moved: int = 0
) -> Sample:
    length = sum(n for _, n in spans)
    return Sample((7,) * length, (-0.5,) * length, spans, reason, num_reprefilled_tokens=moved, reward=reward)


def group(group_id: int, *samples: Sample) -> SampleGroup:
    return SampleGroup(group_id, Prompt(str(group_id), (1, 2)), samples, submit_version=0)


ROLLOUT = RolloutCycle(
    busy_s=30.0,
    capacity_s=40.0,
    active_time_s=8.0,
    version_time_s=10.0,
    step_generated_samples=6,
    total_generated_samples=16,
    staleness_samples=5,
    dropped_samples=1,
    failed_samples=2,
)


# --- the registry -------------------------------------------------------------------------------------------


def test_definitions_are_complete_and_ratios_stand_beside_their_parts() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.unit and metric.formula
    train = METRICS["dynamic_resource/train_resource_utilization"]
    for part in train.formula.split(" / "):
        assert f"dynamic_resource/{part}" in METRICS
    rollout = METRICS["dynamic_resource/rollout_resource_utilization"]
    for part in rollout.formula.split(" / "):
        assert f"dynamic_resource/{part}" in METRICS


def test_a_name_without_definition_is_refused() -> None:
    check_row({"actor/pg_loss": 1.0, "val/anything": 0.0, "perf/tokens": 3.0})
    with pytest.raises(AssertionError, match="perf/tokenz"):
        check_row({"perf/tokenz": 1.0})


# --- formulas -----------------------------------------------------------------------------------------------


def test_train_utilization() -> None:
    assert train_utilization(6.0, 8.0) == 0.75
    assert train_utilization(0.0, 0.0) == 0.0


def test_rollout_utilization_uses_each_intervals_own_capacity() -> None:
    window = RolloutUtilization()
    window.record(0.0, 4, 4)  # 2 s: busy 8 of 8
    window.record(2.0, 6, 4)  # 1 s: overloaded, busy 4 of 4
    window.record(3.0, 6, 12)  # 4 s after an activation: busy 24 of 48
    window.record(7.0, 3, 0)  # 5 s without any replica: weighs nothing
    window.record(12.0, 1, 4)  # 2 s: busy 2 of 8
    busy, capacity = window.close(14.0)
    assert (busy, capacity) == (8 + 4 + 24 + 2, 8 + 4 + 48 + 8)


def test_rollout_utilization_goes_on_after_a_close_with_what_runs() -> None:
    window = RolloutUtilization()
    assert window.close(1.0) == (0.0, 0.0)
    window.record(2.0, 3, 4)
    assert window.close(4.0) == (6.0, 8.0)
    assert window.close(5.0) == (3.0, 4.0)
    window.record(6.0, 0, 4)
    assert window.close(7.0) == (3.0, 8.0)
    with pytest.raises(AssertionError, match="backwards"):
        window.record(6.5, 0, 4)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=40))
def test_rollout_windows_add_up_to_one_long_window(events: list[tuple[int, int, int, bool]]) -> None:
    split, whole = RolloutUtilization(), RolloutUtilization()
    now, parts = 0.0, []
    for dt, active, capacity, close in events:
        now += dt
        split.record(now, active, capacity)
        whole.record(now, active, capacity)
        if close:
            parts.append(split.close(now))
    parts.append(split.close(now + 1))
    total = whole.close(now + 1)
    assert total == (sum(b for b, _ in parts), sum(c for _, c in parts))
    assert 0.0 <= ratio(*total) <= 1.0


def test_cluster_utilization() -> None:
    # 2 of 8 seconds lent: x = 1/4. ((3/4)·2·0.8 + (1/4·2 + 1)·0.6) / 3
    assert cluster_utilization(0.8, 0.6, 2.0, 8.0, 2, 1) == pytest.approx((1.2 + 0.9) / 3)
    assert cluster_utilization(0.8, 0.6, 0.0, 8.0, 1, 1) == pytest.approx(0.7)
    assert cluster_utilization(0.8, 0.6, 9.0, 8.0, 4, 0) == pytest.approx(0.6)
    assert hybrid_rollout_fraction(9.0, 8.0) == 1.0
    assert hybrid_rollout_fraction(-1.0, 8.0) == 0.0
    assert hybrid_rollout_fraction(1.0, 0.0) == 0.0


unit = st.floats(0, 1)


@given(unit, unit, st.floats(0, 100), st.floats(0, 100), st.integers(0, 9), st.integers(1, 9))
def test_cluster_utilization_lies_between_its_parts(
    train: float, rollout: float, wait: float, step: float, a: int, b: int
) -> None:
    cluster = cluster_utilization(train, rollout, wait, step, a, b)
    assert min(train, rollout) - 1e-9 <= cluster <= max(train, rollout) + 1e-9


def test_idle_times_add_up_all_pauses_of_a_cycle() -> None:
    idle = IdleTimes(0.0)
    idle.pause(1.0)
    idle.pause(1.5)  # Still the same pause.
    idle.resume(3.0)
    idle.resume(3.5)
    idle.pause(6.0)
    idle.resume(7.0)
    idle.pause(9.0)
    window = idle.close(10.0)  # 2 + 1 + 1
    assert (window.version_time_s, window.idle_s, window.active_time_s) == (10.0, 4.0, 6.0)
    assert window.idle_ratio == 0.4
    idle.resume(12.0)  # The pause open at the sync goes on in the next window.
    window = idle.close(14.0)
    assert (window.version_time_s, window.idle_s) == (4.0, 2.0)
    assert idle.close(14.0).idle_ratio == 0.0


# --- ratios -------------------------------------------------------------------------------------------------

TRAJECTORIES, SAMPLES = "fully_async/trainer/step_consumed_trajectories", "fully_async/trainer/step_consumed_samples"
QUOTIENTS = {
    "dynamic_resource/train_resource_utilization": ("train_compute_time_s", "train_allocated_time_s"),
    "dynamic_resource/rollout_resource_utilization": ("rollout_busy_capacity_s", "rollout_capacity_s"),
    "dynamic_resource/hybrid_rollout_fraction": ("timing_s/wait_for_enough_samples", "timing_s/step"),
    "fully_async/trainer/idle_ratio": ("timing_s/gen", "timing_s/step"),
    "fully_async/partial/partial_ratio": ("total_partial_num", TRAJECTORIES),
    "fully_async/staleness/mean": ("sum", TRAJECTORIES),
    "perf/tokens_per_s": ("tokens", "timing_s/step"),
    "prompt_length/mean": ("perf/num_prompt_tokens", SAMPLES),
    "critic/rewards/mean": ("sum", TRAJECTORIES),
    "response_length/mean": ("perf/tokens", TRAJECTORIES),
    "response_length/clip_ratio": ("num_clipped", TRAJECTORIES),
    "schedule/efficiency": ("bound_s", "elapsed_s"),
    **{f"device/{state.value}_ratio": (f"{state.value}_s", "Σ") for state in DeviceState},
}
"""Numerator and denominator of each ratio; names without a slash are beside it."""
COMPOSED = {
    "dynamic_resource/resource_utilization": lambda row: cluster_utilization(
        row["dynamic_resource/train_resource_utilization"],
        row["dynamic_resource/rollout_resource_utilization"],
        row["timing_s/wait_for_enough_samples"],
        row["timing_s/step"],
        int(row["dynamic_resource/num_hybrid_devices"]),
        int(row["dynamic_resource/num_standalone_devices"]),
    ),
    "fully_async/rollouter/idle_ratio": lambda row: (
        1 - row["fully_async/rollouter/active_time_s"] / row["fully_async/rollouter/version_time_s"]
    ),
    "perf/throughput": lambda row: row["perf/tokens"] / row["timing_s/step"] / 3,
    "response_length/std": lambda row: math.sqrt(
        row["response_length/sum_squares"] / row[TRAJECTORIES] - row["response_length/mean"] ** 2
    ),
}


def test_every_ratio_can_be_computed_from_what_is_emitted_beside_it() -> None:
    ratios = {name for name, metric in METRICS.items() if metric.reduction == "ratio"}
    assert ratios == QUOTIENTS.keys() | COMPOSED.keys()
    cycle = two_collections()
    cycle.devices.read = lambda: {"hybrid-0": {s: float(i) for i, s in enumerate(DeviceState, 1)}}
    row = cycle.row(now=12.5, global_step=4, rollout=ROLLOUT, mq_size=3)
    row["Σ"] = sum(row[f"device/{state.value}_s"] for state in DeviceState)
    for name, parts in QUOTIENTS.items():
        beside = name.rpartition("/")[0]
        numerator, denominator = (row[part if part in row else f"{beside}/{part}"] for part in parts)
        assert row[name] != 0.0 and row[name] == pytest.approx(numerator / denominator), name
    for name, compute in COMPOSED.items():
        assert row[name] != 0.0 and row[name] == pytest.approx(compute(row)), name


# --- a cycle ------------------------------------------------------------------------------------------------


def two_collections() -> CycleMetrics:
    """Trainer at version 3; one fresh group, one resumed over versions 1 to 3, one from version 2."""
    cycle = CycleMetrics(num_hybrid_devices=2, num_standalone_devices=1)
    fresh = group(0, sample(((3, 4),), 1.0), sample(((3, 2),), 0.0, FinishReason.LENGTH))
    resumed = group(1, sample(((1, 2), (3, 3)), 0.5, moved=2), sample(((3, 1),), 0.5))
    old = group(2, sample(((2, 6),), -1.0), sample(((2, 2),), 0.0))
    first = {"step": 5.0, "gen": 1.0, "update_actor": 2.0, "adv": 0.5, "wait_for_enough_samples": 1.0}
    second = {"step": 3.0, "gen": 0.5, "update_actor": 1.5, "old_log_prob": 1.0, "param_sync": 0.25}
    worker = {"actor/pg_loss": 0.2}
    cycle.add_collection(first, [fresh, resumed], 3, 2.0, 2, worker)
    cycle.add_collection(second, [old], 3, 0.5, 0, {"actor/pg_loss": 0.4, "actor/kl": 0.1})
    # The first step began with 1 s of waiting while lent, which is before the trainer's turn.
    cycle.add_allocated(4.0)
    cycle.add_allocated(3.0)
    return cycle


def test_a_cycles_row_by_hand() -> None:
    lending = LendingCycle(1, 1, 0.3, 0.2, 0.5, 0.7, 0.35)
    row = two_collections().row(
        now=12.5, global_step=4, rollout=ROLLOUT, mq_size=3, lending=lending, extra={"val/reward": 0.7}
    )
    assert row.keys() == METRICS.keys() | {"actor/pg_loss", "actor/kl", "val/reward"}
    u_train, u_rollout, x = 5.0 / 7.0, 0.75, 1.0 / 8.0
    expected = {
        "training/global_step": 4,
        "training/time_s": 12.5,
        "dynamic_resource/train_compute_time_s": 5.0,
        "dynamic_resource/train_allocated_time_s": 7.0,
        "dynamic_resource/train_resource_utilization": u_train,
        "dynamic_resource/rollout_busy_capacity_s": 30.0,
        "dynamic_resource/rollout_capacity_s": 40.0,
        "dynamic_resource/rollout_resource_utilization": u_rollout,
        "dynamic_resource/hybrid_rollout_fraction": x,
        "dynamic_resource/resource_utilization": ((1 - x) * 2 * u_train + (x * 2 + 1) * u_rollout) / 3,
        "dynamic_resource/num_hybrid_devices": 2,
        "dynamic_resource/num_standalone_devices": 1,
        "dynamic_resource/mq_size": 3,
        "dynamic_resource/deactivate_ratio": 0.35,
        "dynamic_resource/switch_s": 0.7,
        "dynamic_resource/num_activations": 1,
        "dynamic_resource/num_deactivations": 1,
        "dynamic_resource/activate_s": 0.3,
        "dynamic_resource/deactivate_s": 0.2,
        "dynamic_resource/switch_cost_s": 0.5,
        "fully_async/trainer/idle_ratio": 1.5 / 8.0,
        "fully_async/trainer/step_consumed_samples": 3,
        "fully_async/trainer/step_consumed_trajectories": 6,
        "fully_async/rollouter/idle_ratio": 0.2,
        "fully_async/rollouter/active_time_s": 8.0,
        "fully_async/rollouter/version_time_s": 10.0,
        "fully_async/rollouter/step_generated_samples": 6,
        "fully_async/total_wait_time_s": 2.5,
        "fully_async/total_wait_samples": 2,
        "fully_async/count/total_generated_samples": 16,
        "fully_async/count/total_consumed_samples": 3,
        "fully_async/count/staleness_samples": 5,
        "fully_async/count/stale_samples_processed": 2,
        "fully_async/count/stale_trajectory_processed": 3,
        "fully_async/count/dropped_samples": 1,
        "fully_async/count/failed_samples": 2,
        "fully_async/partial/total_partial_num": 1,
        "fully_async/partial/partial_ratio": 1 / 6,
        "fully_async/partial/max_partial_span": 2,
        "fully_async/staleness/mean": (2 + 1 + 1) / 6,
        "fully_async/staleness/sum": 4,
        "fully_async/staleness/max": 2,
        "perf/tokens": 20,
        "perf/tokens_per_s": 2.5,
        "perf/throughput": 20 / (8 * 3),
        "perf/num_reprefilled_tokens": 2,
        "perf/control_cpu_s": 0.0,
        "perf/num_shared_cores": 0.0,
        "perf/num_prompt_tokens": 6,
        "prompt_length/mean": 2.0,
        "critic/rewards/mean": 1 / 6,
        "critic/rewards/sum": 1.0,
        "critic/rewards/max": 1.0,
        "critic/rewards/min": -1.0,
        "response_length/mean": 20 / 6,
        "response_length/std": math.sqrt(86 / 6 - (20 / 6) ** 2),
        "response_length/sum_squares": 4**2 + 2**2 + 5**2 + 1 + 6**2 + 2**2,
        "response_length/max": 6,
        "response_length/num_clipped": 1,
        "response_length/clip_ratio": 1 / 6,
        "timing_s/step": 8.0,
        "timing_s/gen": 1.5,
        "timing_s/wait_for_enough_samples": 1.0,
        "timing_s/reward": 0.0,
        "timing_s/old_log_prob": 1.0,
        "timing_s/ref": 0.0,
        "timing_s/values": 0.0,
        "timing_s/adv": 0.5,
        "timing_s/update_critic": 0.0,
        "timing_s/update_actor": 3.5,
        "timing_s/param_sync": 0.25,
        "timing_s/activate": 0.0,
        "timing_s/deactivate": 0.0,
        "timing_s/rebalance": 0.0,
        "timing_s/save": 0.0,
        **{name: 0.0 for name, _, _ in DEVICE_METRICS},
        **{f"engine/{kind}/{name}": 0.0 for kind in ("standalone", "hybrid") for name, _, _ in ENGINE_METRICS},
        "actor/pg_loss": pytest.approx(0.3),
        "actor/kl": 0.1,
        "val/reward": 0.7,
    }
    assert row == pytest.approx(expected)


def test_the_next_cycle_starts_empty_but_counters_run_on() -> None:
    cycle = two_collections()
    cycle.row(now=1.0, global_step=4, rollout=ROLLOUT)
    cycle.add_timings({"save": 2.0})
    cycle.add_collection({"step": 1.0}, [group(3, sample(((4, 1),), 0.25))], 4, 0.0, 0)
    row = cycle.row(now=2.0, global_step=5, rollout=ROLLOUT)
    assert row["fully_async/trainer/step_consumed_samples"] == 1
    assert row["fully_async/count/total_consumed_samples"] == 4
    assert row["fully_async/count/stale_samples_processed"] == 2
    assert row["fully_async/staleness/max"] == 0
    assert row["critic/rewards/min"] == row["critic/rewards/max"] == 0.25
    assert row["timing_s/save"] == 2.0
    assert "actor/pg_loss" not in row


def test_counters_survive_a_checkpoint() -> None:
    cycle = two_collections()
    resumed = CycleMetrics(2, 1)
    resumed.load_state_dict(cycle.state_dict())
    resumed.add_collection({"step": 1.0}, [group(3, sample(((2, 1),)))], 3, 0.0, 0)
    row = resumed.row(now=0.0, global_step=4, rollout=ROLLOUT)
    assert row["fully_async/count/total_consumed_samples"] == 4
    assert row["fully_async/count/stale_trajectory_processed"] == 4


def test_a_response_without_tokens_is_not_stale() -> None:
    cycle = CycleMetrics(1, 1)
    cycle.add_collection({"step": 1.0}, [group(0, sample((), 0.0), sample(((7, 2),)))], 7, 0.0, 0)
    row = cycle.row(now=0.0, global_step=8, rollout=ROLLOUT)
    assert row["fully_async/staleness/max"] == 0
    assert row["fully_async/count/stale_samples_processed"] == 0
    assert row["response_length/mean"] == 1.0


def test_what_cannot_be_measured_is_refused() -> None:
    cycle = CycleMetrics(1, 1)
    with pytest.raises(AssertionError, match="without a collection"):
        cycle.row(now=0.0, global_step=1, rollout=ROLLOUT)
    with pytest.raises(AssertionError, match="updat_actor"):
        cycle.add_timings({"updat_actor": 1.0})
    with pytest.raises(AssertionError, match="scored"):
        cycle.add_collection({}, [group(0, sample(((0, 1),), None))], 0, 0.0, 0)
    with pytest.raises(AssertionError, match="newer than the trainer"):
        cycle.add_collection({}, [group(0, sample(((2, 1),)))], 1, 0.0, 0)
    with pytest.raises(AssertionError, match="not a worker's"):
        cycle.add_collection({}, [], 1, 0.0, 0, {"perf/tokens": 1.0})
    with pytest.raises(AssertionError, match="nonsense"):
        cycle.row(now=0.0, global_step=1, rollout=ROLLOUT, extra={"nonsense": 1.0})
