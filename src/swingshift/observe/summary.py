"""A run in a few numbers: gathered row by row, written to ``summary.json`` and shown as a table."""

from __future__ import annotations

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.table import Table

from swingshift.core.types import DeviceState
from swingshift.core.utilization import cluster_utilization, ratio, train_utilization
from swingshift.observe.metric_rows import read_cycle_rows
from swingshift.observe.spans import lane_order

_SUMMED = (
    "dynamic_resource/train_compute_time_s",
    "dynamic_resource/train_allocated_time_s",
    "dynamic_resource/rollout_busy_capacity_s",
    "dynamic_resource/rollout_capacity_s",
    "dynamic_resource/num_activations",
    "dynamic_resource/num_deactivations",
    "fully_async/trainer/step_consumed_samples",
    "fully_async/trainer/step_consumed_trajectories",
    "fully_async/partial/total_partial_num",
    "fully_async/total_wait_time_s",
    "perf/tokens",
    "perf/num_reprefilled_tokens",
    "timing_s/step",
    "timing_s/wait_for_enough_samples",
    "timing_s/param_sync",
    "dynamic_resource/switch_s",
)
_REWARD = "critic/rewards/mean"


class RunTotals:
    """Adds up cycle rows. Keeps one float a cycle (the reward); everything else is sums and newest values."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.rewards = array("d")
        self.last: dict[str, float] = {}
        self.staleness_sum = 0.0
        self.staleness_max = 0.0
        self.num_cycles = 0

    def add(self, row: Mapping[str, float | None]) -> None:
        """One row of ``CycleMetrics``; what it lacks counts as 0."""
        self.num_cycles += 1
        for name in _SUMMED:
            self.sums[name] += _number(row, name)
        reward = row.get(_REWARD)
        if reward is not None and math.isfinite(reward):
            self.rewards.append(reward)
        trajectories = _number(row, "fully_async/trainer/step_consumed_trajectories")
        self.staleness_sum += _number(row, "fully_async/staleness/mean") * trajectories
        self.staleness_max = max(self.staleness_max, _number(row, "fully_async/staleness/max"))
        for name in (
            "fully_async/count/failed_samples",
            "fully_async/count/dropped_samples",
            "dynamic_resource/num_hybrid_devices",
            "dynamic_resource/num_standalone_devices",
        ):
            self.last[name] = _number(row, name)

    @classmethod
    def of_file(cls, rows_path: Path) -> RunTotals:
        """From a ``metrics.jsonl``, of which a resumed run has cut off what it does again."""
        totals = cls()
        for row in read_cycle_rows(rows_path):
            totals.add(row)
        return totals


def _number(row: Mapping[str, float | None], name: str) -> float:
    value = row.get(name)
    return 0.0 if value is None else float(value)


def summarise(
    totals: RunTotals,
    device_seconds: Mapping[str, Mapping[DeviceState, float]],
    *,
    wall_s: float,
    exit_reason: str,
    num_failed: int = 0,
    num_dropped: int = 0,
) -> dict[str, Any]:
    """Everything ``summary.json`` holds. ``device_seconds`` is ``Timeline.totals``; seconds, tokens, counts.

    ``num_failed`` and ``num_dropped`` (groups, since training began) are those of the ledger at the end: a cycle that
    trains nothing, or ends with an error, has no row to tell them.

    Utilizations follow the metrics' formulas with numerators and denominators summed over the run;
    ``device_busy_ratio`` is the share of all device-seconds spent generating or training.
    """
    first, last = _first_and_last_tenth(totals.rewards)
    sums = totals.sums
    trajectories = sums["fully_async/trainer/step_consumed_trajectories"]
    return {
        "exit_reason": exit_reason,
        "wall_s": wall_s,
        "num_cycles": totals.num_cycles,
        "num_consumed_groups": int(sums["fully_async/trainer/step_consumed_samples"]),
        "num_consumed_trajectories": int(trajectories),
        "num_partial_samples": int(sums["fully_async/partial/total_partial_num"]),
        "num_failed_groups": max(num_failed, int(totals.last.get("fully_async/count/failed_samples", 0))),
        "num_dropped_groups": max(num_dropped, int(totals.last.get("fully_async/count/dropped_samples", 0))),
        "reward_first_tenth": first,
        "reward_last_tenth": last,
        "reward_gain": None if first is None or last is None else last - first,
        "num_tokens": int(sums["perf/tokens"]),
        "tokens_per_s": ratio(sums["perf/tokens"], wall_s),
        "num_reprefilled_tokens": int(sums["perf/num_reprefilled_tokens"]),
        "staleness_mean": ratio(totals.staleness_sum, trajectories),
        "staleness_max": int(totals.staleness_max),
        "num_activations": int(sums["dynamic_resource/num_activations"]),
        "num_deactivations": int(sums["dynamic_resource/num_deactivations"]),
        "switch_s": sums["dynamic_resource/switch_s"],
        "param_sync_s": sums["timing_s/param_sync"],
        "trainer_wait_s": sums["fully_async/total_wait_time_s"],
        **_utilizations(totals),
        "device_busy_ratio": _busy_ratio(device_seconds),
        "device_seconds": {
            device: {state.value: seconds for state, seconds in states.items()}
            for device, states in device_seconds.items()
        },
    }


def _first_and_last_tenth(rewards: array[float]) -> tuple[float | None, float | None]:
    """Mean reward over the first and the last 10% of cycles, at least one cycle; None without any."""
    if not rewards:
        return None, None
    n = max(1, len(rewards) // 10)
    return sum(rewards[:n]) / n, sum(rewards[-n:]) / n


def _utilizations(totals: RunTotals) -> dict[str, float]:
    sums = totals.sums
    compute_s = sums["dynamic_resource/train_compute_time_s"]
    allocated_s = sums["dynamic_resource/train_allocated_time_s"]
    busy_s = sums["dynamic_resource/rollout_busy_capacity_s"]
    capacity_s = sums["dynamic_resource/rollout_capacity_s"]
    u_train, u_rollout = train_utilization(compute_s, allocated_s), ratio(busy_s, capacity_s)
    a = int(totals.last.get("dynamic_resource/num_hybrid_devices", 0))
    b = int(totals.last.get("dynamic_resource/num_standalone_devices", 0))
    wait_s, step_s = sums["timing_s/wait_for_enough_samples"], sums["timing_s/step"]
    return {
        "train_resource_utilization": u_train,
        "train_compute_time_s": compute_s,
        "train_allocated_time_s": allocated_s,
        "rollout_resource_utilization": u_rollout,
        "rollout_busy_capacity_s": busy_s,
        "rollout_capacity_s": capacity_s,
        "resource_utilization": cluster_utilization(u_train, u_rollout, wait_s, step_s, a, b),
        "wait_for_enough_samples_s": wait_s,
        "step_s": step_s,
    }


def _busy_ratio(device_seconds: Mapping[str, Mapping[DeviceState, float]]) -> float:
    busy = sum(
        states.get(DeviceState.ROLLOUT, 0.0) + states.get(DeviceState.TRAIN, 0.0)
        for states in device_seconds.values()
    )
    return ratio(busy, sum(sum(states.values()) for states in device_seconds.values()))


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """All or nothing: a reader never sees half a file."""
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def render_summary(summary: Mapping[str, Any]) -> Table:
    """The table shown at the end of a run."""
    table = Table(title="Run summary", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _summary_lines(summary):
        table.add_row(name, value)
    for device in sorted(summary["device_seconds"], key=lane_order):
        table.add_row(device, _device_line(summary["device_seconds"][device]))
    return table


def _summary_lines(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    first, last, gain = (summary[f"reward_{k}"] for k in ("first_tenth", "last_tenth", "gain"))
    reward = "no cycle finished" if gain is None else f"{first:.3f} → {last:.3f} ({gain:+.3f})"
    num_switches = summary["num_activations"] + summary["num_deactivations"]
    mean_switch = ratio(summary["switch_s"], num_switches)
    return [
        ("ended", summary["exit_reason"]),
        ("wall time", format_seconds(summary["wall_s"])),
        ("reward, first → last tenth", reward),
        ("trained on", f"{summary['num_consumed_groups']:,} groups in {summary['num_cycles']:,} cycles"),
        ("failed / dropped groups", f"{summary['num_failed_groups']:,} / {summary['num_dropped_groups']:,}"),
        ("tokens/s", f"{summary['tokens_per_s']:,.0f} ({summary['num_tokens']:,} response tokens)"),
        (
            "staleness",
            f"mean {summary['staleness_mean']:.2f}, max {summary['staleness_max']} weight versions",
        ),
        (
            "partial responses",
            f"{summary['num_partial_samples']:,} of {summary['num_consumed_trajectories']:,}",
        ),
        ("lent / taken back", f"{summary['num_activations']:,} / {summary['num_deactivations']:,} times"),
        ("switching", f"{summary['switch_s']:.2f} s in all, {mean_switch * 1e3:,.0f} ms a switch"),
        ("utilization, train", f"{summary['train_resource_utilization']:.1%}"),
        ("utilization, rollout", f"{summary['rollout_resource_utilization']:.1%}"),
        ("utilization, cluster", f"{summary['resource_utilization']:.1%}"),
        ("devices busy", f"{summary['device_busy_ratio']:.1%} of all device-seconds"),
    ]


def _device_line(states: Mapping[str, float]) -> Columns:
    """Seconds and share of each state, kept whole where the line wraps."""
    total = sum(states.values())
    parts = [f"{state} {s:,.1f} s ({ratio(s, total):.0%})" for state, s in states.items() if s > 0]
    return Columns(parts, padding=(0, 2))


def format_seconds(seconds: float) -> str:
    """``4.2 s``, ``3:07``, ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
