"""One simulated run: its summary, and the files a training run would have written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from swingshift.config.document import to_yaml
from swingshift.config.run_dir import RUN_FILES
from swingshift.core.timeline import DeviceSpan
from swingshift.errors import ConfigError
from swingshift.observe.event_files import EventFiles
from swingshift.observe.sinks import JsonlSink
from swingshift.observe.summary import RunTotals, summarise, write_summary
from swingshift.runtime.cycle_report import CycleReport
from swingshift.sim.bound import binding_term, lending_bound_s, static_bound_s
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_world import split_of, to_world
from swingshift.sim.work import ConsumedTokens, TokenCounts, work_of
from swingshift.sim.world import simulate

SCENARIO_FILE = "scenario.yaml"
Observer = Callable[[CycleReport], None]


class RunFolder:
    """Metrics, events, ``summary.json``, ``run.png`` and the resolved scenario."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        """Raises ConfigError if the folder cannot be used or holds something."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = next(folder.iterdir(), None)
            if taken is not None:
                advice = "delete it" if taken.name in (*RUN_FILES, SCENARIO_FILE) else "move it away"
                raise ConfigError(
                    f"--out={folder}: is not empty (has {taken.name}); {advice}, or name another folder"
                )
            (folder / SCENARIO_FILE).write_text(to_yaml(scenario), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--out={folder}: cannot be used ({error.strerror}); name another folder") from error
        self.folder = folder
        self._time_s = 0.0
        # Virtual seconds instead of Unix time: the same run writes the same bytes.
        self._metrics = JsonlSink(folder / "metrics.jsonl", lambda: self._time_s)
        self.events = EventFiles(folder)

    def on_report(self, report: CycleReport) -> None:
        self._time_s = report.row["training/time_s"]
        self._metrics.log(report.version, report.row)
        self.events.decided(report.decisions)

    def on_span(self, span: DeviceSpan) -> None:
        self.events.spans(span)

    def close(self, summary: dict[str, Any] | None) -> None:
        """With a summary: also the picture. Without one the run failed."""
        self._metrics.close()
        self.events.close()
        if summary is not None:
            from swingshift.observe.picture import draw_run

            write_summary(self.folder / "summary.json", summary)
            draw_run(self.folder)


def run_scenario(
    scenario: Scenario, *, out: Path | None = None, on_report: Observer = lambda report: None
) -> dict[str, Any]:
    """Simulate to the end; returns a run's summary (``wall_s`` in virtual seconds) and the bound's terms."""
    totals, consumed = RunTotals(), ConsumedTokens()
    folder = None if out is None else RunFolder(out, scenario)

    def observe(report: CycleReport) -> None:
        totals.add(report.row)
        consumed.add(report.row)
        if folder is not None:
            folder.on_report(report)
        on_report(report)

    config = replace(to_world(scenario), on_report=observe, keep_history=False)
    if folder is not None:
        config.on_span = folder.on_span
    summary: dict[str, Any] | None = None
    try:
        world = simulate(config, None if folder is None else lambda world: folder.events.watch(world.session))
        device_seconds = world.session.timeline.totals(world.wall_s)
        ledger = world.session.rollouter.ledger
        summary = summarise(
            totals,
            device_seconds,
            wall_s=world.wall_s,
            exit_reason=world.exit_reason,
            num_failed=ledger.num_failed,
            num_dropped=ledger.num_evicted,
        )
        tokens = consumed.counts(scenario.generation.prompt_length)
        bound = bound_of(scenario, tokens, world.wall_s)
        summary |= {"name": scenario.name, "seed": scenario.workload.seed, **bound}
    finally:
        if folder is not None:
            folder.close(summary)
    return summary


def bound_of(scenario: Scenario, tokens: TokenCounts, wall_s: float) -> dict[str, Any]:
    """The bound of this split with lending for what was trained on, and how near the run came."""
    split = split_of(scenario)
    work = work_of(scenario, tokens)
    bound_s = lending_bound_s(work, split)
    alone_s = static_bound_s(work_of(scenario, tokens, lending=False), split)
    return {
        "bound_s": bound_s,
        "efficiency": bound_s / wall_s,
        "static_bound_s": None if split.num_standalone == 0 else alone_s,
        "train_work_device_s": work.train_s,
        "rollout_work_device_s": work.rollout_s,
        "bound_by": binding_term(work, split),
        "split": asdict(split),
    }


def with_seed(scenario: Scenario, seed: int) -> Scenario:
    """The same scenario with other random draws."""
    workload = scenario.workload.model_copy(update={"seed": seed})
    return scenario.model_copy(update={"workload": workload})
