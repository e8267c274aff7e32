"""Many soak cases over many processes, what they exercised, and the shortest trace of those that failed."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swingshift.sim.fault_draw import draw_case
from swingshift.sim.fault_plan import Fault
from swingshift.sim.pool import Workers
from swingshift.sim.shrink import shrink
from swingshift.sim.soak_case_text import to_text
from swingshift.sim.soak_run import CaseResult, SoakCase, run_case

CHUNK = 50
"""Seeds a process takes at once."""
MOST_TRACES = 5
"""Failed seeds that are made smaller; the others are only named."""

Point = tuple[str, str, str]
"""A port call or a process, what happened to it, and in which mode."""


@dataclass(slots=True)
class SoakReport:
    """Of some seeds. ``failures``: seed to how it failed."""

    num_passed: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    points: set[Point] = field(default_factory=set)
    num_events: int = 0
    wall_s: float = 0.0

    @property
    def num_seeds(self) -> int:
        return self.num_passed + len(self.failures)

    def add(self, other: SoakReport) -> None:
        self.num_passed += other.num_passed
        self.failures.update(other.failures)
        self.outcomes.update(other.outcomes)
        self.points |= other.points
        self.num_events += other.num_events


def soak(
    seeds: range, num_processes: int | None = None, on_done: Callable[[int], None] = lambda n: None
) -> SoakReport:
    """Run them all. ``on_done`` is told how many more are done."""
    report, started = SoakReport(), time.perf_counter()
    chunks = [seeds[i : i + CHUNK] for i in range(0, len(seeds), CHUNK)]
    with Workers(num_processes) as workers:
        for index, part in workers.map(run_seeds, chunks):
            report.add(part)
            on_done(len(chunks[index]))
    report.failures = dict(sorted(report.failures.items()))
    report.wall_s = time.perf_counter() - started
    return report


def run_seeds(seeds: Sequence[int]) -> SoakReport:
    report = SoakReport()
    for seed in seeds:
        case = draw_case(seed)
        result = run_case(case)
        report.outcomes.update(result.outcomes)
        report.points |= points(case, result)
        report.num_events += result.num_events
        if result.failure:
            report.failures[seed] = result.failure
        else:
            report.num_passed += 1
    return report


def points(case: SoakCase, result: CaseResult) -> set[Point]:
    """The fault points that a case came by."""
    return {(_role(where), _kind(fault), case.world.mode.value) for where, fault in result.fired}


def _role(where: str) -> str:
    """Whichever replica it was."""
    return re.sub(r"-\d+", "", where)


def _kind(fault: Fault) -> str:
    return f"{fault.kind.value} at a moment" if fault.is_timed else fault.kind.value


def describe(report: SoakReport) -> str:
    """All but the traces; the last line is what a script looks for."""
    ended = ", ".join(f"{name} {count}" for name, count in report.outcomes.most_common())
    speed = report.num_seeds / report.wall_s if report.wall_s else 0.0
    return (
        f"{report.num_seeds} seeds in {report.wall_s:.1f} s ({speed:.0f} seeds/s), {report.num_events} events\n"
        f"sessions ended: {ended or 'none'}\n"
        f"{len(report.points)} distinct fault points (port call × kind × mode)\n"
        f"{report.num_passed} passed, {len(report.failures)} failed\n"
    )


def trace_of(case: SoakCase) -> str:
    """The smallest case that fails as this one does, as a short text; empty if it passes."""
    if not run_case(case).failure:
        return ""
    smallest, failure = shrink(case, lambda tried: run_case(tried).failure)
    result = run_case(smallest, keep_calls=True)
    lines = [f"seed {case.seed}: {failure}"]
    if failure != (given := run_case(case).failure):
        lines.append(f"  as drawn: {given}")
    lines += [f"  fault: {fault}" for fault in smallest.plan] or ["  without any fault"]
    if result.outcomes:
        lines.append(f"  sessions before: {', '.join(result.outcomes)}")
    lines.append(f"  waiting: {result.waits or 'nobody'}")
    lines += ["  last port calls:", *(f"    {call}" for call in result.last_calls)]
    lines.append(f"  replay: swingshift soak --replay '{to_text(smallest)}'")
    return "".join(f"{line}\n" for line in lines)
