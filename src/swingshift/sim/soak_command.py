"""``swingshift soak``: its options and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from swingshift.errors import ConfigError
from swingshift.sim.fault_draw import draw_case
from swingshift.sim.soak import MOST_TRACES, SoakReport, describe, soak, trace_of
from swingshift.sim.soak_case_text import from_text, to_text
from swingshift.sim.soak_run import SoakCase, run_case


class SoakCommand:
    """``lines`` as they come; afterwards ``failed`` says whether any seed did."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises ConfigError for wrong input."""
        for option, least in (("seeds", 1), ("start", 0), ("jobs", 1)):
            value = getattr(args, option)
            if value is not None and value < least:
                raise ConfigError(f"--{option}={value}: must be at least {least}")
        self._args = args
        self._case = _case_of(args.replay) if args.replay is not None else None
        self.failed = False

    def lines(self) -> Iterator[str]:
        if self._case is not None:
            yield from self._replay(self._case)
            return
        report = self._soak()
        self.failed = bool(report.failures)
        for seed in list(report.failures)[:MOST_TRACES]:
            yield trace_of(draw_case(seed)) + "\n"
        if len(report.failures) > MOST_TRACES:
            yield f"failed too: {', '.join(map(str, list(report.failures)[MOST_TRACES:]))}\n"
        yield describe(report)

    def _soak(self) -> SoakReport:
        seeds = range(self._args.start, self._args.start + self._args.seeds)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("soaking", total=len(seeds))
            return soak(seeds, self._args.jobs, lambda num_done: progress.advance(task, num_done))

    def _replay(self, case: SoakCase) -> Iterator[str]:
        result = run_case(case)
        self.failed = bool(result.failure)
        yield f"{to_text(case)}\n"
        yield "".join(f"{where} met: {fault}\n" for where, fault in result.fired)
        yield f"sessions ended: {', '.join(result.outcomes) or 'none'}\n"
        if self.failed:
            yield trace_of(case)
        yield f"{1 - self.failed} passed, {int(self.failed)} failed\n"


def _case_of(text: str) -> SoakCase:
    return draw_case(int(text)) if text.isdecimal() else from_text(text)
