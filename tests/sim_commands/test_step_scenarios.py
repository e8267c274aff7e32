"""Scenarios in global steps: the published comparison without and with switching, and the modes that take turns."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from swingshift.cli import main
from swingshift.core.buffer import OffPolicyStrategy
from swingshift.core.metrics import STEP_METRICS
from swingshift.observe.line_file import read_lines
from swingshift.schedule.step_policy import EveryStepPolicy
from swingshift.schedule.step_switch import StepSwitchPolicy
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import with_lending
from swingshift.sim.scenario_world import num_groups, to_world

PRESET = "separate-async-24xh100"
SHORT = "workload.num_cycles=8"
SWITCH = "v1.separate_async.hybrid_rollout"
ALONE = ("cluster.rollout_devices=0",)


@cache
def run(lending: bool, *overrides: str) -> tuple[dict[str, Any], list[dict[str, float]]]:
    rows: list[dict[str, float]] = []
    scenario = load_scenario(PRESET, [SHORT, *overrides])
    if not lending:
        scenario = with_lending(scenario, False)
    return run_scenario(scenario, on_report=lambda report: rows.append(report.row)), rows


def test_the_preset_is_the_published_configuration() -> None:
    scenario = load_scenario(PRESET)
    world = to_world(scenario)
    mode = world.step_mode
    assert mode is not None and isinstance(mode.policy, StepSwitchPolicy)
    assert (scenario.cluster.trainer_devices, scenario.cluster.rollout_devices) == (16, 8)
    assert (mode.settings.train_batch_size, mode.settings.mini_batch_size, mode.settings.parameter_sync_step) == (
        64,
        16,
        4,
    )
    assert mode.policy.lends and mode.policy.standalone_share == pytest.approx(1 / 3)
    assert mode.policy.config.switch_threshold_ratio == 0.5
    assert (mode.rules.max_off_policy_threshold, mode.rules.max_off_policy_strategy) == (8, OffPolicyStrategy.DROP)
    assert num_groups(scenario) == 150 * 64 and scenario.workload.num_cycles == 150


def test_without_switching_the_trainer_waits_and_with_it_the_run_is_shorter() -> None:
    (alone, alone_rows), (lent, lent_rows) = run(False), run(True)
    for summary, rows in ((alone, alone_rows), (lent, lent_rows)):
        assert summary["exit_reason"] == "finished" and summary["num_cycles"] == 8
        assert all(STEP_METRICS.keys() <= row.keys() for row in rows)
        assert sum(row["fully_async/trainer/step_consumed_samples"] for row in rows) == 8 * 64
    assert alone["num_activations"] == 0 < lent["num_activations"] <= 8
    assert lent["wall_s"] < 0.9 * alone["wall_s"], "published: 16.43 h instead of 18.80 h"
    assert lent["tokens_per_s"] > 1.1 * alone["tokens_per_s"]
    waits = [
        mean(row["separate_async/switch/sample_wait_seconds"] for row in rows) for rows in (alone_rows, lent_rows)
    ]
    assert waits[1] < 0.5 * waits[0]
    assert mean(row["fully_async/staleness/mean"] for row in alone_rows) > 0.3, "a batch ahead"


def test_both_runs_stay_above_the_bound() -> None:
    for lending in (False, True):
        summary, _ = run(lending)
        assert 0.0 < summary["efficiency"] < 1.0


def test_a_switch_that_costs_more_than_it_saves_is_not_made() -> None:
    """Five minutes: lent until that is known, and then where more is missing than usual."""
    dear, rows = run(True, "cost.offload_s=150", "cost.onload_s=150")
    assert 0 < dear["num_activations"] < run(True)[0]["num_activations"]
    decided = 0
    for row in rows[:-1]:
        benefit, cost, remaining, lent = (
            row[f"separate_async/decision/{name}"]
            for name in ("benefit_seconds", "effective_switch_cost_seconds", "remaining", "should_switch_to_rollout")
        )
        is_known = benefit >= 0.0 and cost >= 0.0
        assert lent == (remaining > 0 and (not is_known or benefit > cost))
        decided += is_known and remaining > 0
    assert decided >= 3


def test_taking_turns_uses_all_devices_for_both() -> None:
    sync, sync_rows = run(True, *ALONE, "v1.trainer_mode=sync", "v1.num_warmup_batches=0")
    ahead, ahead_rows = run(True, *ALONE, "v1.trainer_mode=colocate_async")
    assert sync["exit_reason"] == ahead["exit_reason"] == "finished"
    assert all(row["fully_async/staleness/max"] == 0.0 for row in sync_rows), "on-policy"
    assert max(row["fully_async/staleness/max"] for row in ahead_rows) >= 1.0
    assert ahead["wall_s"] < sync["wall_s"], "nobody waits for the last response of a step"
    assert sync["num_activations"] == ahead["num_activations"] == 8


def test_modes_that_take_turns_have_their_policy() -> None:
    world = to_world(load_scenario(PRESET, [*ALONE, "v1.trainer_mode=sync"]))
    assert world.step_mode is not None and world.step_mode.policy == EveryStepPolicy(64)
    assert world.lend and world.num_standalone == 0 and not world.step_mode.settings.needs_warmup


def test_the_replay_buffers_rules_arrive() -> None:
    rules = ["v1.replay_buffer.max_off_policy_threshold=2", "v1.replay_buffer.max_off_policy_strategy=wait"]
    mode = to_world(load_scenario(PRESET, rules)).step_mode
    assert mode is not None
    assert (mode.rules.max_off_policy_threshold, mode.rules.max_off_policy_strategy) == (2, OffPolicyStrategy.WAIT)


def test_the_command_writes_what_a_run_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["simulate", PRESET, "workload.num_cycles=2", "--out", str(tmp_path / "run"), "--json"]
    assert main(command) == 0
    summary = json.loads(capsys.readouterr().out)
    rows = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert summary["num_cycles"] == len(rows) == 2
    assert rows[0]["separate_async/decision/should_switch_to_rollout"] == 1.0
    decisions = list(read_lines(tmp_path / "run" / "decisions.jsonl"))
    assert decisions and (tmp_path / "run" / "run.png").is_file()
    assert list(read_lines(tmp_path / "run" / "levels.jsonl"))


@pytest.mark.parametrize(
    ("override", "needle"),
    [
        (f"{SWITCH}.switch_threshold_ratio=1.5", "switch_threshold_ratio=1.5"),
        ("v1.trainer_mode=separate", "v1.trainer_mode='separate'"),
        ("v1.parameter_sync_step=0", "v1.parameter_sync_step=0"),
    ],
)
def test_mistakes_are_one_line_each(override: str, needle: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", PRESET, override]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and needle in line


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_modes_that_take_turns_cannot_be_planned_without_lending(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", PRESET, *ALONE, "--devices", "24", "--cycles", "1", f"v1.trainer_mode={mode}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: v1.trainer_mode={mode}: ") and line.endswith("use separate_async")


@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("mode", ["separate_async", "colocate_async"])
def test_every_group_is_in_the_summary(mode: str, threshold: int) -> None:
    """Also those that are evicted in a last step that trains nothing, and so has no row."""
    alone = ["cluster.rollout_devices=0"] if mode == "colocate_async" else []
    overrides = [
        f"v1.trainer_mode={mode}",
        f"v1.replay_buffer.max_off_policy_threshold={threshold}",
        "workload.num_cycles=2",
        *alone,
    ]
    scenario = load_scenario("train-bound-8", overrides)
    for num in (num_groups(scenario), num_groups(scenario) + 1):
        summary = run_scenario(load_scenario("train-bound-8", [*overrides, f"workload.num_groups={num}"]))
        counted = [summary[f"num_{what}_groups"] for what in ("consumed", "dropped", "failed")]
        assert sum(counted) == num, counted
