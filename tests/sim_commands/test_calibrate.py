"""``swingshift calibrate`` on runs whose costs are known, because they were simulated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from swingshift.cli import main
from swingshift.config.document import to_yaml
from swingshift.config.loading import load_config
from swingshift.observe.line_file import read_lines
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.workload import lognormal_lengths

KNOWN = """
name: known
cluster: {trainer_devices: 2, rollout_devices: 2}
cost:
  step_base_s: 0.02
  step_per_sequence_s: 0.0008
  step_per_kv_token_s: 2.0e-6
  prefill_per_token_s: 0.0005
  kv_capacity_tokens: 100000
  train_token_device_s: 0.0006
  train_base_s: 0.25
  offload_s: 0.1
  onload_s: 0.12
  wake_s: 0.05
  sleep_s: 0.08
  sync_hybrid_s: 0.03
  sync_standalone_s: 0.2
  publish_s: 0.1
  abort_s: 0.04
  kv_cache_s: 0.03
generation: {n: 4, prompt_length: 60, response_length: 400, max_num_seqs: 16}
workload: {num_cycles: 25, lengths: {kind: lognormal, median: 100, sigma: 0.5}}
async_training:
  ppo_mini_batch_size: 4
  trigger_parameter_sync_step: 3
  staleness_threshold: 0.5
  concurrent_samples_per_replica: 3
"""
LENDING = "async_training.use_dynamic_resource_scheduling"
COSTS = {
    "step_base_s": 0.02,
    "step_per_sequence_s": 0.0008,
    "step_per_kv_token_s": 2e-6,
    "prefill_per_token_s": 0.0005,
    "train_token_device_s": 0.0006,
    "train_base_s": 0.25,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scenario and its runs ``static`` and ``lending``."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "known.yaml").write_text(KNOWN, encoding="utf-8")
    for name, lends in (("static", "false"), ("lending", "true")):
        run_scenario(load_scenario(str(folder / "known.yaml"), [f"{LENDING}={lends}"]), out=folder / name)
    return folder


def calibrated(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, Any]:
    assert main(["calibrate", *map(str, argv), "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --- closed loop --------------------------------------------------------------------------------------------


def test_known_costs_come_back(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrated(capsys, runs / "static")
    values = {key: found["parameters"][key]["value"] for key in COSTS}
    assert values == pytest.approx(COSTS, rel=0.05)
    for key, value in COSTS.items():
        parameter = found["parameters"][key]
        assert parameter["low"] <= parameter["value"] <= parameter["high"]
        assert parameter["low"] * 0.97 <= value <= parameter["high"] * 1.03, key
    assert found["fits"]["rollout"]["r2"] > 0.99 and found["fits"]["training"]["r2"] > 0.99
    lengths = found["scenario"]["workload"]["lengths"]
    assert (lengths["median"], lengths["sigma"]) == (pytest.approx(100, rel=0.05), pytest.approx(0.5, rel=0.1))
    (check,) = found["runs"]
    assert check["run"] == "static" and abs(check["error"]) < 0.03


def test_a_static_run_predicts_the_run_with_lending(runs: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "new" / "mine.yaml"
    calibrated(capsys, runs / "static", "--out", out)
    assert main(["simulate", str(out), f"{LENDING}=true", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    known = json.loads((runs / "lending" / "summary.json").read_text())
    assert predicted["num_activations"] > 0
    assert predicted["wall_s"] == pytest.approx(known["wall_s"], rel=0.05)
    assert known["wall_s"] < 0.95 * json.loads((runs / "static" / "summary.json").read_text())["wall_s"]


def test_lent_cycles_tell_what_switches_cost(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrated(capsys, runs / "lending", runs / "static")
    value = {key: parameter["value"] for key, parameter in found["parameters"].items()}
    activation = ("offload_s", "wake_s", "sync_hybrid_s", "kv_cache_s", "resume_s")
    assert sum(value[key] for key in activation) == pytest.approx(0.1 + 0.05 + 0.03 + 0.03)
    assert value["abort_s"] == pytest.approx(0.04) and value["resume_s"] == 0.0
    assert value["abort_s"] + value["sleep_s"] + value["onload_s"] == pytest.approx(0.04 + 0.08 + 0.12)
    sync = 0.1 + 0.2 + 0.03  # Publishing takes longer than aborting and freeing the cache.
    parts = ("abort_s", "kv_cache_s", "kv_cache_s", "sync_standalone_s", "resume_s")
    assert sum(value[key] for key in parts) == pytest.approx(sync)
    assert not any("never lent" in line for line in found["assumptions"])
    assert [run["run"] for run in found["runs"]] == ["lending", "static"]
    assert all(abs(run["error"]) < 0.03 for run in found["runs"])


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on four cores, one a device, that the control process shares: a tenth of a second an answer."""
    folder = tmp_path_factory.mktemp("crowded")
    (folder / "known.yaml").write_text(KNOWN, encoding="utf-8")
    shared = ["cluster.shared_cores=4", "cost.control_per_request_s=0.1"]
    for name, lends in (("static", "false"), ("lending", "true")):
        run_scenario(load_scenario(str(folder / "known.yaml"), [f"{LENDING}={lends}", *shared]), out=folder / name)
    return folder


def test_cores_shared_with_the_control_process_are_allowed_for(runs: Path, crowded: Path, capsys: Any) -> None:
    found = calibrated(capsys, crowded / "static")
    assert found["parameters"]["control_per_request_s"]["value"] == pytest.approx(0.1)
    assert found["scenario"]["cluster"]["shared_cores"] == 4
    costs = {key: found["parameters"][key]["value"] for key in ("step_base_s", "train_token_device_s")}
    assert costs == pytest.approx({key: COSTS[key] for key in costs}, rel=0.1)
    assert abs(found["runs"][0]["error"]) < 0.03
    both = calibrated(capsys, crowded / "lending", crowded / "static")
    assert all(abs(run["error"]) < 0.05 for run in both["runs"])
    # Lending fills the cores, so it is lending that the control process slows down.
    slower = {name: wall_s(crowded / name) / wall_s(runs / name) for name in ("static", "lending")}
    assert slower["lending"] > slower["static"] + 0.03


def wall_s(folder: Path) -> float:
    return float(json.loads((folder / "summary.json").read_text())["wall_s"])


def test_a_static_run_says_what_it_assumes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = calibrated(capsys, runs / "static")
    assert found["parameters"]["wake_s"]["low"] is None
    assert any("never lent" in line for line in found["assumptions"])
    assert found["scenario"]["assumptions"] == found["assumptions"]


def test_the_tables_say_what_was_found(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.yaml"
    assert main(["calibrate", str(runs / "static"), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for part in ("step_base_s", "95% interval", "R²", "The runs simulated", "assumptions:", str(out)):
        assert part in printed
    assert main(["simulate", str(out), "--explain"]) == 0
    assert "static" in capsys.readouterr().out


def test_the_scenario_does_not_pretend_to_know_the_model(runs: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "mine.yaml"
    found = calibrated(capsys, runs / "static", "--out", out)
    assert any("placeholders" in line for line in found["assumptions"]) and "placeholders" in out.read_text()
    assert main(["plan", "--memory", str(out)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: model.num_params=7.6e+09: ") and "device.memory_bytes" in line
    assert main(["plan", "--memory", str(out), "model.num_params=1e9", "model.num_active_params=1e9"]) == 0
    assert "weights" in capsys.readouterr().out


def test_waits_for_tools_are_said_to_count_as_engine_time(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "known.yaml").write_text(KNOWN, encoding="utf-8")
    overrides = ["workload.num_turns=3", "workload.num_cycles=8"]
    run_scenario(load_scenario(str(tmp_path / "known.yaml"), overrides), out=tmp_path / "run")
    assert any("at a tool" in line for line in calibrated(capsys, tmp_path / "run")["assumptions"])


def test_an_engine_that_counts_no_steps_still_fits(runs: Path, tmp_path: Path, capsys: Any) -> None:
    folder = copy_of(runs / "static", tmp_path)
    rewrite(folder, {"engine/standalone/num_decode_steps": 0.0})
    found = calibrated(capsys, folder)
    assert any("does not count" in line for line in found["assumptions"])
    assert abs(found["runs"][0]["error"]) < 0.15


def test_a_validation_after_the_last_cycle_is_no_cycle(runs: Path, tmp_path: Path, capsys: Any) -> None:
    before, folder = calibrated(capsys, runs / "static"), copy_of(runs / "static", tmp_path)
    last = list(read_lines(folder / "metrics.jsonl"))[-1]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": last["step"], "val/version": 9.0, "val/reward/mean": 0.5}) + "\n")
    assert calibrated(capsys, folder)["parameters"] == before["parameters"]


# --- a live run's folder ------------------------------------------------------------------------------------


def copy_of(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def rewrite(folder: Path, changes: dict[str, float | None], num_rows: int | None = None) -> None:
    """Change the metric rows of a run: values, or None for a metric that the row lacks."""
    rows = list(read_lines(folder / "metrics.jsonl"))[:num_rows]
    for row in rows:
        for name in list(row):
            change = next((value for prefix, value in changes.items() if name.startswith(prefix)), ...)
            if change is None:
                del row[name]
            elif change is not ...:
                row[name] = change
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def live_folder(run: Path, tmp_path: Path) -> Path:
    """The same numbers as a training run's folder has them."""
    folder = copy_of(run, tmp_path)
    (folder / "scenario.yaml").unlink()
    settings = [
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.response_length=400",
        "actor_rollout_ref.rollout.max_num_seqs=16",
        "async_training.trigger_parameter_sync_step=3",
        "async_training.staleness_threshold=0.5",
        "async_training.concurrent_samples_per_replica=3",
        "rollout.n_gpus_per_node=2",
        "trainer.n_gpus_per_node=2",
        "trainer.test_freq=10",
    ]
    (folder / "config.yaml").write_text(to_yaml(load_config([], settings)), encoding="utf-8")
    draw = lognormal_lengths(100, 0.5, 400, seed=5)
    samples = [{"responses": [{"num_tokens": draw(str(group), i)} for i in range(4)]} for group in range(60)]
    (folder / "samples.jsonl").write_text("".join(f"{json.dumps(s)}\n" for s in samples), encoding="utf-8")
    return folder


def test_a_live_runs_folder_gives_the_same_costs(runs: Path, tmp_path: Path, capsys: Any) -> None:
    folder = live_folder(runs / "static", tmp_path)
    live, simulated = calibrated(capsys, folder), calibrated(capsys, runs / "static")
    assert live["parameters"] == simulated["parameters"]
    for section in ("cluster", "generation"):
        assert live["scenario"][section] == simulated["scenario"][section]
    lengths = live["scenario"]["workload"]["lengths"]
    assert lengths["kind"] == "empirical" and len(lengths["values"]) == 200
    assert any("Validations" in line for line in live["assumptions"])
    assert abs(live["runs"][0]["error"]) < 0.05


# --- wrong input --------------------------------------------------------------------------------------------


def fails(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """The one line that a command fails with."""
    assert main(["calibrate", *map(str, argv)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    return printed.err


def test_wrong_folders_are_one_line_each(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run is given" in fails(capsys)
    assert "no such folder" in fails(capsys, tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    assert "not the folder of a run" in fails(capsys, tmp_path / "other")
    assert "is a file" in fails(capsys, tmp_path / "other" / "notes.txt")
    folder = copy_of(runs / "static", tmp_path)
    (folder / "metrics.jsonl").unlink()
    assert "holds no cycle" in fails(capsys, folder)


def test_runs_that_tell_too_little_are_one_line_each(runs: Path, tmp_path: Path, capsys: Any) -> None:
    folder = copy_of(runs / "static", tmp_path)
    rewrite(folder, {}, num_rows=5)
    assert "5 sync cycles are too few" in fails(capsys, folder)
    shutil.copy(runs / "static" / "metrics.jsonl", folder)
    rewrite(folder, {"engine/": None})
    assert "do not say what engines computed" in fails(capsys, folder)
    shutil.copy(runs / "static" / "metrics.jsonl", folder)
    (folder / "scenario.yaml").unlink()
    assert "has neither config.yaml nor scenario.yaml" in fails(capsys, folder)


FITTED_TO = [
    "engine/standalone/busy_s",
    "engine/standalone/num_decode_steps",
    "engine/standalone/num_tokens",
    "engine/standalone/",
    "perf/tokens",
    "perf/num_prompt_tokens",
    "perf/",
    "response_length/sum_squares",
    "fully_async/trainer/step_consumed_trajectories",
    "fully_async/trainer/step_consumed_samples",
    "timing_s/",
    "training/time_s",
]


@pytest.mark.parametrize("value", [0.0, -1.0, None])
@pytest.mark.parametrize("name", FITTED_TO)
def test_rows_that_cannot_be_true_are_one_error_or_none(
    runs: Path, tmp_path: Path, capsys: Any, name: str, value: float | None
) -> None:
    folder = copy_of(runs / "static", tmp_path)
    rewrite(folder, {name: value})
    if main(["calibrate", str(folder), "--json"]) == 0:
        json.loads(capsys.readouterr().out)
    else:
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {folder}/metrics.jsonl: ")


@pytest.mark.parametrize("number", [1, 9, 25])
def test_a_damaged_line_is_told_and_costs_no_accuracy(
    runs: Path, tmp_path: Path, capsys: Any, caplog: Any, number: int
) -> None:
    folder = copy_of(runs / "static", tmp_path)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1][:40] + "\n"
    (folder / "metrics.jsonl").write_text("".join(lines))
    found = calibrated(capsys, folder)
    [warning] = [record.getMessage() for record in caplog.records]
    assert f"metrics.jsonl: line {number} " in warning
    assert {key: found["parameters"][key]["value"] for key in COSTS} == pytest.approx(COSTS, rel=0.06)
    assert abs(found["runs"][0]["error"]) < 0.05


def test_a_torn_last_line_is_what_a_killed_run_leaves(runs: Path, tmp_path: Path, capsys: Any, caplog: Any) -> None:
    folder = copy_of(runs / "static", tmp_path)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 26, "trai')
    calibrated(capsys, folder)
    assert not caplog.records


def test_runs_of_different_workloads_do_not_mix(runs: Path, tmp_path: Path, capsys: Any) -> None:
    folder = copy_of(runs / "static", tmp_path)
    text = (folder / "scenario.yaml").read_text().replace("response_length: 400", "response_length: 500")
    (folder / "scenario.yaml").write_text(text)
    assert "generation.response_length=500" in fails(capsys, runs / "static", folder)


def test_the_output_replaces_a_scenario_and_nothing_else(runs: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "mine.yaml"
    out.write_text("precious: 1\n")
    assert "something else than a scenario" in fails(capsys, runs / "static", "--out", out)
    assert out.read_text() == "precious: 1\n"
    assert "is a folder" in fails(capsys, runs / "static", "--out", tmp_path)
    assert "cannot be written" in fails(capsys, runs / "static", "--out", "/dev/null/x.yaml")
    out.write_text(KNOWN)
    calibrated(capsys, runs / "static", "--out", out)
    assert load_scenario(str(out)).cost.step_base_s == pytest.approx(0.02, rel=0.05)
