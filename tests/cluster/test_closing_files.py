"""What comes after the last cycle, and how the run ended, reaches every sink and the summary."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swingshift.cluster import run_files
from swingshift.cluster.run_files import RunFiles
from swingshift.config.loading import load_config
from swingshift.core.buffer import StoreRules
from swingshift.core.types import SampleGroup
from swingshift.errors import DataError
from swingshift.observe.line_file import read_lines
from swingshift.runtime.cycle_report import CycleReport
from swingshift.runtime.ports import RunOutcome
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_policy import EveryStepPolicy
from swingshift.sim.world import World, WorldConfig, simulate


class Recorder:
    def __init__(self) -> None:
        self.outcome: RunOutcome | None = None

    def log(self, step: int, row: object) -> None:
        pass

    def close(self, outcome: RunOutcome) -> None:
        self.outcome = outcome


@pytest.mark.parametrize(
    ("exit_reason", "outcome"),
    [
        ("finished", RunOutcome.FINISHED),
        ("interrupted", RunOutcome.INTERRUPTED),
        ("failed to start", RunOutcome.FAILED),
        ("TrainerError: finished", RunOutcome.FAILED),
    ],
)
def test_every_sink_learns_how_the_run_ended(
    exit_reason: str, outcome: RunOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(run_files, "open_loggers", lambda config, folder: [recorder])
    RunFiles(tmp_path, load_config([], []), str, None).close({}, 1.0, exit_reason)
    assert recorder.outcome is outcome


# --- after the last cycle -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UselessAfter:
    """Groups beyond the first few score all alike, or fail."""

    num_good: int
    fails: bool = False

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        if group.group_id < self.num_good:
            return tuple(float(i) for i in range(len(group.samples)))
        if self.fails:
            raise DataError("no score")
        return (1.0,) * len(group.samples)


async def validate(client: object, version: int) -> dict[str, float]:
    await asyncio.sleep(1e-3)
    return {"val/version": float(version), "val/reward/mean": version / 4}


def steps_world(**options: Any) -> WorldConfig:
    """Two steps of 8 groups each."""
    mode = StepMode(StepSettings(8, 2), EveryStepPolicy(8), StoreRules(filter_metric="reward"))
    world = {"ppo_mini_batch_size": 4, "trigger_parameter_sync_step": 2, "num_prompts": 16, **options}
    return WorldConfig(step_mode=mode, **world)


def files_of(folder: Path, config: WorldConfig, *settings: str) -> tuple[RunFiles, World]:
    """The files of a run in virtual time, up to what the launcher tells when it has ended."""
    files = RunFiles(folder, load_config([], settings), str, None)
    world = simulate(config)
    for row in world.rows:
        report = CycleReport(row, (), int(row["training/global_step"]), "HYBRID_ACTIVE", "")
        asyncio.run(files.on_cycle(report))
    files.closing(world.session)
    return files, world


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_evicted_or_fails_in_a_step_that_trains_nothing_is_in_the_summary(
    fails: bool, tmp_path: Path
) -> None:
    config = steps_world(reward=UselessAfter(8, fails), max_failed_ratio=1.0)
    files, world = files_of(tmp_path, config)
    ledger = world.session.rollouter.ledger
    summary = files.close({}, 1.0, "finished")
    assert (summary["num_cycles"], summary["num_consumed_groups"], ledger.num_consumed) == (1, 8, 8)
    assert world.rows[-1]["fully_async/count/dropped_samples"] == 0
    assert (summary["num_dropped_groups"], summary["num_failed_groups"]) == ((0, 8) if fails else (8, 0))


@pytest.mark.parametrize("in_steps", [True, False])
def test_a_validation_after_the_last_cycle_is_in_every_sink(
    in_steps: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    build = steps_world if in_steps else WorldConfig
    config = build(test_freq=1, validate=validate, num_prompts=16, reward=UselessAfter(16))
    files, world = files_of(tmp_path, config, "trainer.logger=[console,tensorboard]", "trainer.prometheus.port=0")
    last = len(world.rows)
    assert files.live.metrics_url is not None
    with urllib.request.urlopen(files.live.metrics_url) as page:
        exported = page.read().decode()
    files.close({}, 1.0, "finished")
    *rows, closing = read_lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, last + 1)) and closing["step"] == last
    assert [row.get("val/version") for row in (*rows, closing)] == [None, *range(1, last + 1)]
    cost = {f"separate_async/validate/{name}" for name in ("seconds", "generated_samples")} if in_steps else set()
    assert closing.keys() == {"step", "wall_time", "val/version", "val/reward/mean", *cost}
    assert f"swingshift_val_reward_mean {last / 4}" in exported and "swingshift_perf_tokens" in exported
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = {name: [point.step for point in events.Scalars(name)] for name in ("val/version", *cost, "perf/tokens")}
    assert shown["val/version"][-1] == last and shown["perf/tokens"] == list(range(1, last + 1))
    assert all(shown[name] == [*range(1, last + 1), last] for name in cost)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["validation"]["val/version"] == last == summary["num_cycles"]
    assert f"validation of version {last}: reward {last / 4:.3f}" in capsys.readouterr().out


def test_a_run_without_validation_has_no_closing_row(tmp_path: Path) -> None:
    files, world = files_of(tmp_path, WorldConfig(num_prompts=16))
    files.close({}, 1.0, "finished")
    assert len(list(read_lines(tmp_path / "metrics.jsonl"))) == len(world.rows)
