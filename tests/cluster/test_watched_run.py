"""A run and everything that watches it, together: the real session in virtual time, the real files and exporter."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swingshift.cluster.run_files import RunFiles
from swingshift.config.loading import load_config
from swingshift.observe.live_file import read_live
from swingshift.observe.live_state import LiveState
from swingshift.observe.top import RunWatch
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

COST = ReplicaCost(step_base_s=0.01, step_per_sequence_s=0.002, max_num_seqs=4)
WORLD = WorldConfig(lengths=lognormal_lengths(60, 0.8, 300), max_tokens=300, replica_cost=COST, num_prompts=256)


class Watched:
    """Runs a world with the observers of ``swingshift train``; ``seen`` is what ``top`` would see every second."""

    def __init__(self, folder: Path, *overrides: str, disturb: Any = None) -> None:
        self.folder = folder
        self.config = load_config([], ["trainer.logger=[tensorboard]", "trainer.prometheus.port=0", *overrides])
        self.seen: list[LiveState] = []
        self.pages: list[str] = []
        self.disturb = disturb

    def run(self) -> World:
        reports: list[Any] = []
        spans: list[Any] = []
        config = replace(WORLD, on_report=reports.append, on_span=spans.append)
        files: RunFiles

        def script(world: World) -> None:
            nonlocal files
            files = RunFiles(self.folder, self.config, str, 32)
            world.session.timeline._on_span = files.on_span
            world.session._on_cycle = files.on_cycle
            files.events.watch(world.session)
            files.live.watch(world.session)
            files.start()
            if self.disturb is not None:
                self.disturb(files)
            asyncio.get_running_loop().call_later(0.5, self._look, files)

        world = simulate(config, script)
        files.close(world.session.timeline.totals(world.session.now()), world.session.now(), world.exit_reason)
        return world

    def _look(self, files: RunFiles) -> None:
        record = read_live(self.folder)
        assert record is not None and record.state is not None and record.num_cycles == 32
        self.seen.append(record.state)
        assert files.live.metrics_url is not None
        with urllib.request.urlopen(files.live.metrics_url, timeout=10) as page:
            self.pages.append(page.read().decode())
        asyncio.get_running_loop().call_later(1.0, self._look, files)


def test_a_run_is_seen_while_it_goes_and_leaves_its_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    watched = Watched(tmp_path)
    watched.run()
    times = [state.time_s for state in watched.seen]
    assert len(times) > 5 and times == sorted(times)
    assert {state.lending for state in watched.seen} >= {"STANDALONE_ONLY", "HYBRID_ACTIVE"}
    assert "swingshift_live_queue_samples" in watched.pages[0]
    assert f"swingshift_training_global_step {float(watched.seen[-1].version)}" in watched.pages[-1]

    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    points = [(p.step, p.value) for p in events.Scalars("critic/rewards/mean")]
    assert points == [(row["step"], pytest.approx(row["critic/rewards/mean"])) for row in rows] and len(rows) == 32
    assert not (tmp_path / "live.json").exists()
    assert json.loads((tmp_path / "prometheus_targets.json").read_text()) == []
    assert RunWatch(tmp_path).view().news == "ended: finished"


def test_observers_that_fail_do_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder of live.json goes away and TensorBoard's is a file: each says so once."""
    (tmp_path / "tensorboard").write_text("in the way")

    def disturb(files: RunFiles) -> None:
        files.live._file._path = tmp_path / "gone" / "live.json"

    watched = Watched(tmp_path, disturb=disturb)
    watched._look = lambda files: None  # type: ignore[method-assign]
    world = watched.run()
    assert world.exit_reason == "finished" and len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 32
    warned = [record.getMessage() for record in caplog.records if "training goes on" in record.getMessage()]
    assert sorted(warned) == [
        "live.json failed; training goes on without it",
        "metric sink tensorboard failed; training goes on without it",
    ]
