"""What a run writes about itself for reports and traces: complete where it says so, bounded where it says so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from swingshift.errors import ReplicaError
from swingshift.observe import event_files
from swingshift.observe.event_files import AttemptLog, EventFiles, LevelLog
from swingshift.observe.line_file import read_lines
from swingshift.observe.run_reader import RunFolder, open_runs
from swingshift.runtime.cycle_report import CycleReport
from swingshift.runtime.observations import Attempt, Outcome
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.presets import load_scenario
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.run import run_scenario
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate


def watched(folder: Path, **changes: object) -> tuple[World, list[CycleReport]]:
    """A small run that lends, with its event files."""
    files = EventFiles(folder)
    reports: list[CycleReport] = []

    def on_report(report: CycleReport) -> None:
        reports.append(report)
        files.decided(report.decisions)

    values = {"num_prompts": 96, "replica_cost": ReplicaCost(step_base_s=0.05), **changes}
    world = simulate(
        WorldConfig(on_report=on_report, on_span=files.spans, **values),  # type: ignore[arg-type]
        lambda world: files.watch(world.session),
    )
    files.close()
    (folder / "metrics.jsonl").write_text("")
    return world, reports


def test_every_switch_has_its_decision(tmp_path: Path) -> None:
    world, reports = watched(tmp_path)
    decisions = RunFolder(tmp_path).decisions()
    answers = Counter((d["question"], d["answer"]) for d in decisions)
    costs = world.session.controller.costs
    assert answers["lend", "yes"] == answers["rebalance", "full"] == costs.num_activations > 2
    assert answers["take_back", "yes"] == costs.num_deactivations
    assert [d.reason for report in reports for d in report.decisions] == [d["reason"] for d in decisions]
    for decision in decisions:
        assert decision["deactivate_ratio"] >= 0 and decision["step_required_samples"] == 8
    lend = [d for d in decisions if d["question"] == "lend"]
    assert all(d["reason"].startswith("lend" if d["answer"] == "yes" else "keep") for d in lend[:-1])
    assert lend[-1]["answer"] == "no" and lend[-1]["reason"].startswith("the last cycle")
    taken = [d for d in decisions if d["question"] == "take_back"]
    assert all(d["queued_samples"] >= d["wanted_samples"] or "enough" not in d["reason"] for d in taken)
    times = [d["time_s"] for d in decisions]
    assert times == sorted(times)


def test_the_attempts_of_a_group_generated_its_tokens(tmp_path: Path) -> None:
    """Nothing is lost between aborted attempts, and nothing is told twice."""
    _, reports = watched(tmp_path, lengths=lognormal_lengths(40, 0.8, 100, seed=3))
    attempts = RunFolder(tmp_path).attempts()
    tokens: Counter[str] = Counter()
    for attempt in attempts:
        assert attempt.end_s >= attempt.start_s and attempt.every == 1
        tokens[attempt.request] += attempt.num_tokens
    groups = [group for report in reports for group in report.groups]
    assert len(groups) > 20
    for group in groups:
        assert tokens[str(group.group_id)] == group.num_tokens
    outcomes = Counter(attempt.outcome for attempt in attempts)
    assert outcomes["aborted"] > 0 and outcomes["finished"] >= len(groups)


def test_levels_are_the_rollouters(tmp_path: Path) -> None:
    world, reports = watched(tmp_path)
    levels = RunFolder(tmp_path).levels()
    numbers = world.session.rollouter.numbers
    assert (np.diff(levels["time_s"]) > 0).all()
    assert levels["queued"].max() <= levels["staleness_samples"].max() <= numbers.max_required_samples
    assert (levels["queued"] + levels["in_flight"] <= levels["staleness_samples"]).all()
    # After each sync what is outstanding is what counts; the row says the same.
    for report in reports[:-1]:
        after = np.searchsorted(levels["time_s"], report.row["training/time_s"] + 1e-6) - 1
        assert levels["staleness_samples"][after] >= report.row["fully_async/count/staleness_samples"]


def test_a_replica_that_fails_or_goes_away_is_told(tmp_path: Path) -> None:
    watched(tmp_path, faults=PlannedFaults(errors={("standalone-0", "generate", 5): ReplicaError("hiccup")}))
    attempts = RunFolder(tmp_path).attempts()
    failed = [attempt for attempt in attempts if attempt.outcome == "failed"]
    assert len(failed) == 1 and failed[0].num_tokens == 0
    again = [a for a in attempts if a.request == failed[0].request and a.start_s >= failed[0].end_s]
    assert again[-1].outcome == "finished"


def test_training_in_global_steps_tells_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary = run_scenario(load_scenario("separate-async-24xh100", ["workload.num_cycles=2"]), out=folder)
    run = RunFolder(folder)
    answers = Counter((d["question"], d["answer"]) for d in run.decisions())
    assert answers["take_back", "yes"] == summary["num_deactivations"] > 0
    assert answers["lend", "yes"] + answers["lend", "no"] == 3, "the start of the run, and each step"
    levels = run.levels()
    assert levels["queued"].max() > 0 and levels["staleness_samples"][-1] == 0
    assert any(attempt.outcome == "aborted" for attempt in run.attempts())


# --- bounds ---------------------------------------------------------------------------------------------------------


def attempt(name: int | str) -> Attempt:
    number = int(str(name).rpartition("-")[2])
    return Attempt(str(name), "standalone-0", float(number), number + 0.5, Outcome.FINISHED, 2, 10, 3)


def test_attempts_are_thinned_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "LINES_BEFORE_THINNING", 100)
    log = AttemptLog(tmp_path / "attempts.jsonl")
    for number in range(3200):
        log.write(attempt(number))
        log.write(attempt(number))
    log.close()
    lines = list(read_lines(tmp_path / "attempts.jsonl"))
    assert len(lines) <= 100 * 7
    assert lines[0]["every"] == 1 and lines[-1]["every"] >= 32
    assert all(int(line["request"]) % line["every"] == 0 for line in lines)
    # Only groups that were under way when the log was thinned lack what came after.
    assert sum(count < 2 for count in Counter(line["request"] for line in lines).values()) <= 6


@pytest.mark.parametrize(("num_groups", "num_validations"), [(50_000, 1000), (0, 1000), (50_000, 0)])
def test_validations_are_thinned_too_and_cost_training_nothing(
    num_groups: int, num_validations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many short validations, or few long ones: the file grows with the logarithm of either."""
    monkeypatch.setattr(event_files, "LINES_BEFORE_THINNING", 100)
    log = AttemptLog(tmp_path / "attempts.jsonl")
    for version in range(num_validations):
        for index in range(50):
            for _ in range(2):
                log.write(attempt(f"val-{version}-{index}"))
            if num_groups:
                log.write(attempt(version * 50 + index))
    for number in range(num_validations * 50, num_groups):
        log.write(attempt(number))
    log.close()
    lines = list(read_lines(tmp_path / "attempts.jsonl"))
    validated = [line for line in lines if line["request"].startswith("val-")]
    trained = [line for line in lines if not line["request"].startswith("val-")]
    assert len(trained) <= 100 * 10 and len(validated) <= 100 * 13
    assert all(int(line["request"]) % line["every"] == 0 for line in trained)
    if num_groups:
        # As many groups as without any validation.
        assert len(trained) > 100 * 8 and trained[-1]["every"] == 2 ** (len(trained) // 100)
    if num_validations:
        assert len(validated) > 100 * 8 and validated[-1]["every"] > 256
        counts = Counter(line["request"] for line in validated)
        assert sum(count < 2 for count in counts.values()) <= 13, "followed whole or not at all"
        versions = [int(request.split("-")[1]) for request in counts]
        assert max(versions) > 900, "still some near the end"


def test_levels_are_thinned_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "LINES_BEFORE_THINNING", 100)
    log = LevelLog(tmp_path / "levels.jsonl")
    for i in range(50_000):
        if log.is_due(i / 10):
            log.write(i / 10, i % 7, i % 5, 10)
    log.close()
    times = [line["time_s"] for line in read_lines(tmp_path / "levels.jsonl")]
    assert 300 < len(times) < 1200
    assert times[:3] == [0.0, 0.1, 0.2] and times[-1] > 4900


# --- reading back ---------------------------------------------------------------------------------------------------


def test_a_resumed_run_has_one_history(tmp_path: Path) -> None:
    """It wrote cycles 3 and 4, was killed, and went on from the checkpoint of cycle 2."""
    steps = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (3, 3.5)]
    write(tmp_path / "metrics.jsonl", [f'{{"step": {s}, "training/time_s": {t}}}' for s, t in steps])
    spans = [(0.0, 2.5, "train"), (2.5, 4.0, "idle"), (2.0, 3.0, "rollout"), (3.0, 3.5, "train")]
    span = '{{"device": "hybrid-0", "state": "{2}", "start_s": {0}, "end_s": {1}}}'
    write(tmp_path / "timeline.jsonl", [span.format(*s) for s in spans])
    write(tmp_path / "decisions.jsonl", [f'{{"time_s": {t}, "question": "lend"}}' for t in (1.0, 2.0, 3.0, 2.2)])
    run = RunFolder(tmp_path)
    cycles = run.cycles(("training/time_s",))
    assert cycles["step"].tolist() == [1, 2, 3] and cycles["training/time_s"].tolist() == [1.0, 2.0, 3.5]
    (lane,) = run.lanes()
    assert lane.start_s.tolist() == [0.0, 2.0, 3.0] and lane.end_s.tolist() == [2.0, 3.0, 3.5]
    assert [d["time_s"] for d in run.decisions()] == [1.0, 2.0, 2.2]


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a/run", "b/run"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert [name for name, _ in open_runs(folders)] == ["a/run", "b/run"]
    assert [name for name, _ in open_runs([folders[0], folders[0]])] == ["a/run", "a/run (2)"]
    assert [name for name, _ in open_runs(folders[:1])] == ["run"]


def test_settings_are_flat(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a:\n  b: 1\n  c: {}\nd: [1, 2]\n")
    assert RunFolder(tmp_path).settings() == {"a.b": 1, "a.c": {}, "d": [1, 2]}
