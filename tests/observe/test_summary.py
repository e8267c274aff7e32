"""The summary: sums over the run, never means of ratios."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console as RichConsole

from swingshift.core.types import DeviceState
from swingshift.observe.summary import RunTotals, format_seconds, render_summary, summarise, write_summary

KEYS = {
    "wall_s",
    "num_consumed_groups",
    "reward_first_tenth",
    "reward_last_tenth",
    "reward_gain",
    "num_activations",
    "num_deactivations",
    "switch_s",
    "tokens_per_s",
    "train_resource_utilization",
    "rollout_resource_utilization",
    "resource_utilization",
    "device_seconds",
    "staleness_mean",
    "staleness_max",
    "num_cycles",
    "num_partial_samples",
    "num_failed_groups",
    "exit_reason",
}


def row(**values: float) -> dict[str, float]:
    long = {
        "compute": "dynamic_resource/train_compute_time_s",
        "allocated": "dynamic_resource/train_allocated_time_s",
        "busy": "dynamic_resource/rollout_busy_capacity_s",
        "capacity": "dynamic_resource/rollout_capacity_s",
        "step": "timing_s/step",
        "wait": "timing_s/wait_for_enough_samples",
        "switch": "dynamic_resource/switch_s",
        "a": "dynamic_resource/num_hybrid_devices",
        "b": "dynamic_resource/num_standalone_devices",
        "reward": "critic/rewards/mean",
        "tokens": "perf/tokens",
        "n": "fully_async/trainer/step_consumed_trajectories",
        "groups": "fully_async/trainer/step_consumed_samples",
        "stale": "fully_async/staleness/mean",
        "stalest": "fully_async/staleness/max",
        "failed": "fully_async/count/failed_samples",
        "on": "dynamic_resource/num_activations",
        "off": "dynamic_resource/num_deactivations",
    }
    return {long[name]: value for name, value in values.items()}


def test_two_cycles_by_hand() -> None:
    totals = RunTotals()
    totals.add(row(
        compute=1, allocated=4, busy=8, capacity=8, step=4, wait=2, switch=0.15, a=1, b=2,
        reward=0.2, tokens=100, n=10, groups=5, stale=1.0, stalest=2, failed=1, on=1, off=1,
    ))  # fmt: skip
    totals.add(row(
        compute=5, allocated=6, busy=2, capacity=12, step=6, wait=0, switch=0.2, a=1, b=2,
        reward=0.6, tokens=300, n=30, groups=15, stale=0.2, stalest=1, failed=3, on=1, off=0,
    ))  # fmt: skip
    devices = {
        "hybrid-0": {DeviceState.TRAIN: 6.0, DeviceState.ROLLOUT: 1.0, DeviceState.IDLE: 3.0},
        "standalone-0": {DeviceState.ROLLOUT: 9.0, DeviceState.SYNCING: 1.0},
    }
    summary = summarise(totals, devices, wall_s=20.0, exit_reason="data exhausted")
    assert summary.keys() >= KEYS
    u_train, u_rollout, x = 6 / 10, 10 / 20, 2 / 10
    assert summary["train_resource_utilization"] == pytest.approx(u_train)
    assert summary["rollout_resource_utilization"] == pytest.approx(u_rollout)
    assert summary["resource_utilization"] == pytest.approx(((1 - x) * u_train + (x + 2) * u_rollout) / 3)
    assert summary["device_busy_ratio"] == pytest.approx(16 / 20)
    assert (summary["reward_first_tenth"], summary["reward_last_tenth"]) == (0.2, 0.6)
    assert summary["reward_gain"] == pytest.approx(0.4)
    assert summary["tokens_per_s"] == 20.0
    assert summary["staleness_mean"] == pytest.approx((10 * 1.0 + 30 * 0.2) / 40)
    assert summary["staleness_max"] == 2
    assert (summary["num_activations"], summary["num_deactivations"]) == (2, 1)
    assert summary["switch_s"] == pytest.approx(0.35)
    assert (summary["num_consumed_groups"], summary["num_failed_groups"]) == (20, 3)
    assert summary["device_seconds"]["standalone-0"] == {"rollout": 9.0, "syncing": 1.0}


@pytest.mark.parametrize(("num_cycles", "n"), [(1, 1), (9, 1), (20, 2), (39, 3)])
def test_reward_over_the_first_and_last_tenth(num_cycles: int, n: int) -> None:
    totals = RunTotals()
    for i in range(num_cycles):
        totals.add({"critic/rewards/mean": float(i)})
    summary = summarise(totals, {}, wall_s=1.0, exit_reason="")
    assert summary["reward_first_tenth"] == sum(range(n)) / n
    assert summary["reward_last_tenth"] == sum(range(num_cycles - n, num_cycles)) / n


def test_a_run_that_never_finished_a_cycle(tmp_path: Path) -> None:
    summary = summarise(RunTotals(), {}, wall_s=0.0, exit_reason="interrupted")
    assert summary["reward_gain"] is None and summary["tokens_per_s"] == 0.0
    write_summary(tmp_path / "summary.json", summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert "no cycle finished" in shown(summary)


def shown(summary: dict) -> str:
    out = io.StringIO()
    RichConsole(file=out, width=120).print(render_summary(summary))
    return out.getvalue()


def test_the_file_gives_the_same_totals_as_the_rows(fake_run: Callable, tmp_path: Path) -> None:
    run = fake_run(25)
    totals = RunTotals()
    for one in run.rows:
        totals.add(one)
    seconds = run.timeline.totals(run.now)
    live = summarise(totals, seconds, wall_s=run.now, exit_reason="done")
    read = summarise(RunTotals.of_file(tmp_path / "metrics.jsonl"), seconds, wall_s=run.now, exit_reason="done")
    assert live == read
    assert live["num_cycles"] == 25 and live["num_activations"] > 10
    for states in live["device_seconds"].values():
        assert sum(states.values()) == pytest.approx(run.now)


def test_the_table_names_every_device_and_number(fake_run: Callable, tmp_path: Path) -> None:
    run = fake_run(25)
    totals = RunTotals.of_file(tmp_path / "metrics.jsonl")
    text = shown(summarise(totals, run.timeline.totals(run.now), wall_s=run.now, exit_reason="all data used"))
    for part in ("all data used", "hybrid-0", "standalone-0", "utilization, cluster", "staleness", "(+0."):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 120


def test_seconds_for_people() -> None:
    assert [format_seconds(s) for s in (0.04, 59.94, 187.9, 3723)] == ["0.0 s", "59.9 s", "3:07", "1:02:03"]
