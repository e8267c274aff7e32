"""``swingshift simulate``, ``compare``, ``sweep`` and ``plan``, as a user calls them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from swingshift.cli import main
from swingshift.observe.line_file import read_lines
from swingshift.observe.summary import RunTotals, summarise
from swingshift.sim.compare import split_values
from swingshift.sim.planner import mean_and_half_width

PRESET = "rollout-bound-8"
STEPS = "separate-async-24xh100"
SHORT = ["workload.num_cycles=2", "async_training.ppo_mini_batch_size=4"]
STATIC = "async_training.use_dynamic_resource_scheduling=false"
EVENTS = ["attempts.jsonl", "decisions.jsonl", "levels.jsonl", "timeline.jsonl"]
FILES = sorted(["metrics.jsonl", "run.png", "scenario.yaml", "summary.json", *EVENTS])


@pytest.fixture
def show(capsys):
    """Runs a command that must succeed and returns what it printed."""

    def run(*argv: str) -> str:
        assert main(list(argv)) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


# --- simulate -----------------------------------------------------------------------------------------------


def test_json_has_the_keys_of_a_runs_summary(show):
    summary = json.loads(show("simulate", PRESET, *SHORT, "--json"))
    live = summarise(RunTotals(), {}, wall_s=1.0, exit_reason="finished")
    assert live.keys() <= summary.keys()
    assert {"bound_s", "efficiency", "static_bound_s", "bound_by", "seed"} <= summary.keys()
    assert summary["exit_reason"] == "finished"
    assert summary["num_cycles"] == 2
    assert summary["efficiency"] == pytest.approx(summary["bound_s"] / summary["wall_s"])


def test_the_table_has_the_summary_and_the_bound(show):
    printed = show("simulate", PRESET, *SHORT)
    for part in ("Run summary", "utilization, cluster", "Work-conserving bound", "T*/T", "without lending"):
        assert part in printed


def test_without_a_preset_all_are_listed(show):
    printed = show("simulate")
    assert PRESET in printed and "qwen3.5-35b-a3b-dapo" in printed
    listed = json.loads(show("simulate", "--json"))
    assert {"name": PRESET, "devices": "6+2"}.items() <= next(p for p in listed if p["name"] == PRESET).items()


def test_explain_prints_sources_and_assumptions(show):
    printed = show("simulate", "qwen3.5-35b-a3b-dapo", "--explain")
    assert "sources:" in printed and "assumptions:" in printed and "6.546 h" in printed


def test_out_writes_what_a_run_writes(show, tmp_path: Path):
    folder = tmp_path / "run"
    show("simulate", PRESET, *SHORT, "--out", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == FILES
    rows = list(read_lines(folder / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["wall_s"] >= rows[-1]["training/time_s"]
    again = json.loads(show("simulate", str(folder / "scenario.yaml"), "--json"))
    assert again == summary


def test_out_does_not_touch_a_folder_that_holds_something(tmp_path: Path, capsys):
    (tmp_path / "precious.txt").write_text("x")
    assert main(["simulate", PRESET, *SHORT, "--out", str(tmp_path)]) == 2
    assert "precious.txt" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_the_same_seed_writes_the_same_bytes_in_another_process(show, tmp_path: Path):
    show("simulate", PRESET, *SHORT, "--out", str(tmp_path / "here"))
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    command = [sys.executable, "-m", "swingshift", "simulate", PRESET, *SHORT, "--out", str(tmp_path / "there")]
    subprocess.run(command, check=True, capture_output=True, timeout=120, env=environment)
    for name in ("metrics.jsonl", *EVENTS, "summary.json", "scenario.yaml"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_a_seed_is_another_run(show):
    first, second = (json.loads(show("simulate", PRESET, *SHORT, "--json", "--seed", s)) for s in ("0", "1"))
    assert first["seed"] == 0 and second["seed"] == 1
    assert first["wall_s"] != second["wall_s"]


# --- compare ------------------------------------------------------------------------------------------------


def test_compare_relates_to_the_first(show):
    rows = json.loads(show("compare", PRESET, f"{PRESET}:{STATIC}", *SHORT, "--seeds", "2", "--jobs", "1", "--json"))
    assert [row["item"] for row in rows] == [PRESET, f"{PRESET}:{STATIC}"]
    assert rows[0]["speedup"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert rows[1]["speedup"]["median"] < 1.0
    assert rows[1]["num_activations"]["high"] == 0
    assert rows[0]["seeds"] == [0, 1]
    for row in rows:
        assert row["wall_s"]["low"] <= row["wall_s"]["median"] <= row["wall_s"]["high"]


def test_compare_does_the_same_with_two_processes(show):
    argv = ["compare", PRESET, f"{PRESET}:{STATIC},cluster.trainer_devices=4", *SHORT, "--json"]
    assert show(*argv, "--jobs", "2") == show(*argv, "--jobs", "1")


def test_the_comparison_as_a_table(show):
    printed = show("compare", PRESET, f"{PRESET}:{STATIC}", *SHORT, "--jobs", "1")
    assert "T*/T" in printed and "× first" in printed and "1 seed" in printed


def test_values_split_at_commas_outside_of_brackets():
    assert split_values("a=[1,2],b='x,y',c={d: 1, e: 2}") == ["a=[1,2]", "b='x,y'", "c={d: 1, e: 2}"]


# --- sweep --------------------------------------------------------------------------------------------------


def sweep_argv(out: Path, ratios: str = "0.3,0.9") -> list[str]:
    grid = [f"async_training.dynamic_schedule_deactivate_ratio={ratios}", "cluster.trainer_devices=4,6"]
    return ["sweep", PRESET, *SHORT, "--grid", *grid, "--out", str(out), "--jobs", "1"]


def test_a_sweep_covers_the_grid_and_goes_on_where_it_stopped(show, tmp_path: Path):
    out = tmp_path / "sweep.jsonl"
    assert "4 points simulated" in show(*sweep_argv(out))
    lines = out.read_text().splitlines()
    records = list(read_lines(out))
    assert {
        (r["async_training.dynamic_schedule_deactivate_ratio"], r["cluster.trainer_devices"]) for r in records
    } == {(ratio, devices) for ratio in ("0.3", "0.9") for devices in ("4", "6")}
    assert all(record["wall_s"] > 0 and 0 < record["efficiency"] <= 1 for record in records)
    # A torn line, as an interrupted run may leave it, is a point that is missing.
    out.write_text("\n".join([*lines[:2], lines[2][:40]]))
    assert "2 points simulated, 2 were there already" in show(*sweep_argv(out))
    assert {r["digest"]: r for r in read_lines(out)} == {r["digest"]: r for r in records}
    assert "0 points simulated" in show(*sweep_argv(out))
    assert "2 points simulated, 4 were there already" in show(*sweep_argv(out, "0.3,0.5,0.9"))
    shown = json.loads(show(*sweep_argv(out), "--json"))
    assert shown == records, "the grid's points, in its order"


def living(process_group: int) -> list[psutil.Process]:
    """Its processes; those that ended and wait to be collected do not count."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == process_group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_an_interrupted_sweep_keeps_what_is_done(tmp_path: Path):
    out = tmp_path / "sweep.jsonl"
    seeds = ",".join(str(seed) for seed in range(40))
    grid = ["--grid", f"workload.seed={seeds}"]
    command = [sys.executable, "-m", "swingshift", "sweep", PRESET, "workload.num_cycles=6", *grid]
    process = subprocess.Popen(
        [*command, "--out", str(out), "--jobs", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test run in the background of a shell ignores interrupts, and would hand that down.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 60
    while not list(read_lines(out)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines() == ["interrupted"]
    assert 0 < len(list(read_lines(out))) < 40
    while living(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not living(process.pid)


def test_a_sweep_notices_that_a_file_of_lengths_changed(show, tmp_path: Path):
    lengths, out = tmp_path / "lengths.json", tmp_path / "sweep.jsonl"
    kind = ["workload.lengths.kind=empirical", f"workload.lengths.file={lengths}"]
    argv = ["sweep", PRESET, *SHORT, *kind, "--grid", "workload.seed=0", "--out", str(out), "--jobs", "1", "--json"]
    lengths.write_text("[100]")
    [short] = json.loads(show(*argv))
    assert json.loads(show(*argv)) == [short]
    lengths.write_text("[5000]")
    [long] = json.loads(show(*argv))
    assert long["num_tokens"] == 50 * short["num_tokens"]
    lengths.write_text("[100]")
    assert json.loads(show(*argv)) == [short]
    assert len(list(read_lines(out))) == 2


# --- plan ---------------------------------------------------------------------------------------------------


def test_plan_finds_the_best_splits(show):
    argv = ["plan", PRESET, *SHORT, "--devices", "4", "--seeds", "2", "--jobs", "1"]
    found = json.loads(show(*argv, "--json"))
    static, lending = found["best_static"], found["best_lending"]
    assert static["trainer_devices"] + static["rollout_devices"] == 4
    assert lending["trainer_devices"] + lending["rollout_devices"] == 4
    same_kind = [c["median_s"] for c in found["simulated"] if c["lending"]]
    assert lending["median_s"] == min(same_kind)
    assert found["saved_low_h"] <= found["saved_h"] <= found["saved_high_h"]
    assert found["num_pruned"] + len(found["simulated"]) == 2 + 3
    printed = show(*argv)
    assert "Best with lending" in printed and "Why: training is" in printed


def test_pruning_never_hides_the_best_split(show):
    found = json.loads(
        show("plan", "train-bound-8", *SHORT, "--devices", "6", "--seeds", "1", "--jobs", "1", "--json")
    )
    for rollout in range(1, 6):
        split = [f"cluster.trainer_devices={6 - rollout}", f"cluster.rollout_devices={rollout}"]
        run = json.loads(show("simulate", "train-bound-8", *SHORT, *split, STATIC, "--json"))
        assert run["wall_s"] >= found["best_static"]["median_s"] * (1 - 1e-12)


def test_plan_with_a_single_engine(show):
    found = json.loads(
        show(
            "plan",
            PRESET,
            *SHORT,
            "model.num_params=1e9",
            "model.num_active_params=1e9",
            "--devices",
            "1",
            "--seeds",
            "1",
            "--json",
        )
    )
    assert found["best_static"] is None and found["saved_h"] is None
    assert found["best_lending"]["rollout_devices"] == 0


def test_the_interval_is_students():
    mean, half = mean_and_half_width([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / 3**0.5)
    assert mean_and_half_width([5.0]) == (5.0, None)


# --- wrong input --------------------------------------------------------------------------------------------

BAD = [
    (["simulate", "nope"], "nope"),
    (["simulate", "rollout-bound8"], "did you mean rollout-bound-8"),
    (["simulate", PRESET, "train-bound-8"], "not 2"),
    (["simulate", "workload.seed=1"], "none is given"),
    (["simulate", PRESET, "workload.sed=1"], "workload.seed?"),
    (["simulate", PRESET, "--seed", "x"], "--seed"),
    (["simulate", PRESET, "--out", "/dev/null/x"], "--out=/dev/null/x"),
    (["compare"], "nothing to compare"),
    (["compare", PRESET, "--seeds", "0"], "--seeds=0"),
    (["compare", PRESET, "--jobs", "0"], "--jobs=0"),
    (["compare", f"{PRESET}:workload.sed=1"], "workload.seed?"),
    (["sweep", PRESET, "--out", "x.jsonl"], "--grid"),
    (["sweep", PRESET, "--grid", "workload.seed=1,2"], "--out"),
    (["sweep", PRESET, "--grid", "workload.seed=", "--out", "x.jsonl"], "--grid workload.seed="),
    (["sweep", PRESET, "--grid", "workload.seed=1", "workload.seed=2", "--out", "x.jsonl"], "twice"),
    (["sweep", PRESET, "--grid", "cluster.trainer_devices=0,2", "--out", "x.jsonl"], "cluster.trainer_devices=0"),
    (["plan", PRESET], "--devices"),
    (["plan", PRESET, "--devices", "0"], "--devices=0"),
    (["plan", "moe-128", "--devices", "12"], "--devices=12"),
    (["simulate", STEPS, "v1.num_warmup_batches=0", "--out", "so"], "error: v1.num_warmup_batches=0"),
    (["simulate", STEPS, "cluster.rollout_devices=0", "--out", "so"], "error: cluster.rollout_devices=0"),
    (["simulate", STEPS, "v1.trainer_mode=sync", "--out", "so"], "error: cluster.rollout_devices=8"),
    (["simulate", STEPS, "v1.trainer_mode=colocate_async", "--out", "so"], "error: cluster.rollout_devices=8"),
    (["sweep", STEPS, "--grid", "v1.num_warmup_batches=1,0", "--out", "s.jsonl"], "error: v1.num_warmup_batches=0"),
    (
        ["sweep", STEPS, "--grid", "cluster.rollout_devices=8,0", "--out", "s.jsonl"],
        "error: cluster.rollout_devices=0",
    ),
    (["compare", f"{STEPS}:v1.num_warmup_batches=0"], "error: v1.num_warmup_batches=0"),
]


@pytest.mark.parametrize(("argv", "part"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_wrong_input_is_one_line_and_writes_nothing(argv, part, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1 and part in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_does_not_append_to_another_file(tmp_path: Path, capsys):
    out = tmp_path / "other.jsonl"
    out.write_text('{"a": 1}\n')
    assert main(sweep_argv(out)) == 2
    assert "something else" in capsys.readouterr().err
    assert out.read_text() == '{"a": 1}\n'
