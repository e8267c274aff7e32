"""Everything a run writes and shows while it goes, behind one object."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swingshift.config.schema import SwingshiftConfig
from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState, SampleGroup, WeightVersion
from swingshift.observe.console import Console
from swingshift.observe.consumed import CONSUMED_FILE, ConsumedLog
from swingshift.observe.event_files import EventFiles
from swingshift.observe.guard import Guard
from swingshift.observe.live_run import LiveRun
from swingshift.observe.loggers import open_loggers
from swingshift.observe.metric_rows import is_closing
from swingshift.observe.prometheus_targets import TARGETS_FILE
from swingshift.observe.samples import SampleLog
from swingshift.observe.sinks import FanOut, JsonlSink
from swingshift.observe.summary import RunTotals, render_summary, summarise, write_summary
from swingshift.runtime.cycle_report import CycleReport
from swingshift.runtime.ports import RunOutcome
from swingshift.runtime.session import Session

logger = logging.getLogger(__name__)

METRICS_FILE = "metrics.jsonl"
LOG_FILE = "run.log"


class RunFiles:
    """``num_cycles`` is how many the run is expected to have, for the progress bar."""

    def __init__(
        self,
        folder: Path,
        config: SwingshiftConfig,
        decode: Callable[[Sequence[int]], str],
        num_cycles: int | None,
    ) -> None:
        self._folder = folder
        self._num_cycles = num_cycles
        self.events = EventFiles(folder)
        self._samples = SampleLog(folder / "samples.jsonl", decode, config.trainer.log_samples_per_cycle)
        self._consumed = ConsumedLog(folder / CONSUMED_FILE)
        self._rows = JsonlSink(folder / METRICS_FILE)
        self._sinks = FanOut([self._rows, *open_loggers(config, folder)])
        self._totals = RunTotals()
        has_console = "console" in config.trainer.logger
        self._console = Console(title=config.trainer.experiment_name) if has_console else None
        self.live = LiveRun(folder, config, self._console, num_cycles, self.events.flush)
        self._files_guard = Guard("run files")
        self._validation: dict[str, float] = {}
        self._row: dict[str, float] = {}
        self._num_failed = self._num_evicted = 0

    def start(self) -> None:
        """Inside the event loop: from now on what is shown is kept up to date."""
        self.live.start()
        if self.live.metrics_url is not None:
            self.note(f"metrics for Prometheus: {self.live.metrics_url} ({TARGETS_FILE})")

    def go_on(self, num_consumed: int, version: WeightVersion) -> None:
        """Before training: what is left of a session that came further than this, the session to come does again."""
        self._consumed.go_on(num_consumed)
        self._samples.go_on(version)
        with self._files_guard():
            self._rows.go_on(version)
        self._totals = RunTotals.of_file(self._folder / METRICS_FILE)

    def note(self, text: str) -> None:
        """One line for the person who watches, and for the log."""
        logger.info("%s", text)
        if self._console is not None:
            self._console.note(text)

    def on_span(self, span: DeviceSpan) -> None:
        with self._files_guard():
            self.events.spans(span)
            if self._console is not None:
                self._console.on_span(span)

    def on_trained(self, groups: Sequence[SampleGroup], version: WeightVersion) -> None:
        self._consumed.log(groups, version)

    def closing(self, session: Session) -> None:
        """Once it has ended, however it did: what came after its last row. A validation gets a row of its own."""
        row, ledger = session.closing_row(), session.rollouter.ledger
        self._num_failed, self._num_evicted = ledger.num_failed, ledger.num_evicted
        if row:
            assert is_closing(row), f"metrics of a cycle after the last one: {sorted(row)}"
            self._validated(row)
            self._sinks.log(session.train_loop.version, row)
            self.live.show_row({**self._row, **row})

    def _validated(self, row: Mapping[str, float]) -> None:
        """A validation ended; the newest one's ``val/…`` values go into the summary."""
        found = {name: value for name, value in row.items() if name.startswith("val/")}
        if found:
            self._validation = found
            reward = found.get("val/reward/mean", float("nan"))
            self.note(f"validation of version {found['val/version']:.0f}: reward {reward:.3f}")

    async def on_cycle(self, report: CycleReport) -> None:
        self._totals.add(report.row)
        self._row = report.row
        self._validated(report.row)
        self._sinks.log(report.version, report.row)
        self.live.show_row(report.row)
        self._consumed.flush()
        with self._files_guard():
            self._samples.log(report.version, report.groups)
            self.events.decided(report.decisions)
            self.events.flush()
        if self._console is not None:
            self._console.update(
                report.row, state=report.state, num_cycles=self._num_cycles, decision=report.decision
            )

    def close(
        self, device_seconds: Mapping[str, Mapping[DeviceState, float]], wall_s: float, exit_reason: str
    ) -> dict[str, Any]:
        """Write the summary and the picture, show the table, and return the summary."""
        self.live.stop()
        self.events.close()
        self._samples.close()
        self._consumed.close()
        is_known = exit_reason in (RunOutcome.FINISHED, RunOutcome.INTERRUPTED)
        self._sinks.close(RunOutcome(exit_reason) if is_known else RunOutcome.FAILED)
        if self._console is not None:
            self._console.close()
        summary = summarise(
            self._totals,
            device_seconds,
            wall_s=wall_s,
            exit_reason=exit_reason,
            num_failed=self._num_failed,
            num_dropped=self._num_evicted,
        )
        summary["validation"] = self._validation
        write_summary(self._folder / "summary.json", summary)
        self.live.close()
        if summary["num_cycles"]:
            self._draw()
        if self._console is not None:
            hint = " (run.png shows who did what when)" if summary["num_cycles"] else ""
            self._console.conclude(render_summary(summary), f"everything is in {self._folder}/{hint}")
        return summary

    def _draw(self) -> None:
        with Guard("picture")():
            from swingshift.observe.picture import draw_run  # takes its time, so not before training begins

            draw_run(self._folder)
