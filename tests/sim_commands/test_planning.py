"""``swingshift plan``: only splits that can exist, whole runs, and an explanation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swingshift.cli import main
from swingshift.config.document import to_yaml
from swingshift.observe.summary import format_seconds
from swingshift.sim.memory import memory_verdict
from swingshift.sim.planner import plan, with_split
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.split_search import best_static
from swingshift.sim.students_t import students_t

PRESET = "rollout-bound-8"
SHORT = ["workload.num_cycles=2", "async_training.ppo_mini_batch_size=4"]
STEPS = "separate-async-24xh100"
STEPS_SHORT = ["workload.num_cycles=2", "async_training.ppo_mini_batch_size=2"]
DIRECT = ["cost.step_base_s=0.01", "cost.train_token_device_s=0.0001", "cost.kv_capacity_tokens=100000"]


def planned(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["plan", *argv, "--seeds", "1", "--jobs", "1", "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_splits_that_memory_cannot_hold_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, PRESET, *SHORT, "--devices", "4")
    assert all(candidate["trainer_devices"] >= 2 for candidate in found["simulated"])
    assert found["num_dropped"] == 2 and "cluster.trainer_devices=1" in found["dropped_because"]
    for candidate in found["simulated"]:
        split = with_split(
            load_scenario(PRESET),
            candidate["trainer_devices"],
            candidate["rollout_devices"],
            candidate["lending"],
        )
        assert memory_verdict(split)[0] == []
    assert main(["plan", PRESET, *SHORT, "--devices", "4", "--seeds", "1", "--jobs", "1"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "do not fit" in line]
    assert line.startswith("2 splits")


@pytest.mark.parametrize(("preset", "devices"), [("moe-128", 32), (PRESET, 1)])
def test_where_no_split_fits_there_is_one_error(
    preset: str, devices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", preset, "--devices", str(devices), "--cycles", "1", "--seeds", "1"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --devices={devices}: ") and "GiB" in line and "give at least" in line


def test_given_costs_need_no_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A calibrated scenario's model and device are placeholders."""
    file = tmp_path / "calibrated.yaml"
    file.write_text(to_yaml(load_scenario(PRESET, [*SHORT, *DIRECT]), defaults=False), encoding="utf-8")
    found = planned(capsys, str(file), "--devices", "2")
    assert found["num_dropped"] == 0 and found["dropped_because"] is None
    assert found["best_static"]["split"] == "1+1"
    known = planned(capsys, str(file), "model.num_params=8e9", "--devices", "4")
    assert known["num_dropped"] == 2, "a model of one's own counts"


def test_splits_that_the_mode_refuses_are_no_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, STEPS, *STEPS_SHORT, "--devices", "8")
    assert {candidate["split"] for candidate in found["simulated"]} == {"4+4"}
    assert main(["plan", STEPS, *STEPS_SHORT, "--devices", "4"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --devices=4: ") and "v1.trainer_mode=separate_async" in line


def test_groups_are_planned_to_their_end() -> None:
    overrides = [*SHORT, "workload.num_groups=50", "workload.num_cycles=1"]
    scenario = load_scenario(PRESET, overrides)
    whole = plan(scenario, 4, num_cycles=80, num_seeds=1, num_processes=1)
    for candidate in whole.simulated:
        split = with_split(scenario, candidate.trainer_devices, candidate.rollout_devices, candidate.lending)
        assert candidate.wall_s == (run_scenario(split)["wall_s"],)
    first = plan(scenario, 4, num_cycles=2, num_seeds=1, num_processes=1)
    short = load_scenario(PRESET, [*overrides, "workload.num_groups=32"])
    lent = with_split(short, first.lending.trainer_devices, first.lending.rollout_devices, True)
    assert first.lending.median_s == pytest.approx(run_scenario(lent)["wall_s"] * 50 / 32)


def test_short_runs_are_not_shown_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    cheap = [*SHORT, *DIRECT, "cost.step_base_s=0.00001", "cost.train_token_device_s=0.000001"]
    assert main(["plan", PRESET, *cheap, "--devices", "2", "--seeds", "2", "--jobs", "1"]) == 0
    printed = capsys.readouterr().out
    assert "0.000" not in printed and " h" not in printed and " s" in printed


@pytest.mark.parametrize(
    ("dear", "term"), [("cost.train_token_device_s=1", "training"), ("cost.step_base_s=10", "rollout")]
)
def test_the_static_splits_term_is_named(dear: str, term: str) -> None:
    scenario = load_scenario(PRESET, [*SHORT, *DIRECT, dear])
    found = plan(scenario, 2, num_cycles=2, num_seeds=1, num_processes=1)
    assert found.static is not None
    assert f"1+1 without lending is bound by {term} (" in found.why
    shown = {"training": "(W_t/a = ", "rollout": "(W_r/b = "}[term]
    assert f"{shown}{format_seconds(found.static.bound_s)}, " in found.why


def test_a_loss_is_explained() -> None:
    dear = [*SHORT, "cost.offload_s=300", "cost.onload_s=300"]
    found = plan(load_scenario(PRESET, dear), 4, num_cycles=2, num_seeds=1, num_processes=1)
    assert found.static is not None and found.saved_s is not None and found.saved_s < 0
    assert found.static.shares is not None and found.lending.shares is not None
    assert sum(found.lending.shares.values()) == pytest.approx(1.0)
    assert found.lending.shares["switching"] > found.static.shares["switching"]
    for part in ("lending loses", "switching", "below its best batch", "waiting"):
        assert part in found.why
    won = plan(load_scenario(PRESET, SHORT), 4, num_cycles=2, num_seeds=1, num_processes=1)
    assert won.saved_s is not None and won.saved_s > 0 and "lending loses" not in won.why


@pytest.mark.parametrize(
    "overrides",
    [
        ["train-bound-8", "async_training.ppo_mini_batch_size=4"],
        [
            "heavy-tail-32",
            "cluster.trainer_devices=8",
            "cluster.rollout_devices=8",
            "generation.response_length=4096",
        ],
        ["multi-turn-16", "async_training.ppo_mini_batch_size=4"],
        ["moe-128", "async_training.ppo_mini_batch_size=4", "generation.n=4"],
    ],
    ids=lambda overrides: str(overrides[0]),
)
def test_the_best_static_split_is_the_best(overrides: list[str]) -> None:
    scenario = load_scenario(overrides[0], ["workload.num_cycles=2", *overrides[1:]])
    cluster = scenario.cluster
    total, size = cluster.trainer_devices + cluster.rollout_devices, cluster.devices_per_replica
    splits = [with_split(scenario, a, total - a, False) for a in range(size, total, size)]
    walls = [run_scenario(split)["wall_s"] for split in splits if not memory_verdict(split)[0]]
    assert best_static(scenario).wall_s == min(walls)


@pytest.mark.parametrize(
    ("df", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (9, 2.2622), (10, 2.2281), (11, 2.2010), (30, 2.0423), (120, 1.9799)],
)
def test_students_quantiles(df: int, quantile: float) -> None:
    assert students_t(df) == pytest.approx(quantile, abs=6e-5)


def test_runs_that_evict_groups_are_compared_by_what_they_trained() -> None:
    """They end sooner for having trained on less: that is not faster."""
    evicting = [
        "v1.trainer_mode=separate_async",
        "v1.replay_buffer.max_off_policy_threshold=1",
        "v1.num_warmup_batches=2",
        "workload.num_cycles=4",
    ]
    scenario = load_scenario("train-bound-8", evicting)
    assert run_scenario(scenario)["num_dropped_groups"] > 0
    for candidate in plan(scenario, 8, num_seeds=1, num_cycles=4, num_processes=1).simulated:
        assert candidate.median_s >= candidate.bound_s, candidate.split
