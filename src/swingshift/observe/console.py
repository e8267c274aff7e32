"""What a person sees while a run goes on: a live panel on a terminal, single lines anywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from swingshift.observe.summary import format_seconds

_LINE_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Status:
    """The newest cycle in words."""

    cycle: int
    reward: float
    queue: int
    lent: str
    train: float
    rollout: float
    cluster: float
    tokens_per_s: float
    decision: str

    def parts(self) -> tuple[str, ...]:
        return (
            f"reward {self.reward:.3f}",
            f"queue {self.queue}",
            self.lent,
            f"utilization {self.cluster:.0%} (train {self.train:.0%}, rollout {self.rollout:.0%})",
            f"{self.tokens_per_s:,.0f} tok/s",
        )


_LENT = {
    "STANDALONE_ONLY": "trainer keeps its devices",
    "ACTIVATING": "lending …",
    "HYBRID_ACTIVE": "devices lent",
    "DEACTIVATING": "taking devices back …",
}


def read_status(row: Mapping[str, float], state: str, decision: str) -> Status:
    """``row`` is one of ``CycleMetrics``; what it lacks is shown as 0."""

    def get(name: str) -> float:
        return float(row.get(name, 0.0))

    return Status(
        cycle=int(get("training/global_step")),
        reward=get("critic/rewards/mean"),
        queue=int(get("dynamic_resource/mq_size")),
        lent=_LENT.get(state.upper(), state),
        train=get("dynamic_resource/train_resource_utilization"),
        rollout=get("dynamic_resource/rollout_resource_utilization"),
        cluster=get("dynamic_resource/resource_utilization"),
        tokens_per_s=get("perf/tokens_per_s"),
        decision=decision,
    )


class _Terminal(RichConsole):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more (``… | head``). Rich would end the program; training goes on unseen."""
        self.quiet = True
        # What is still buffered must go somewhere when the interpreter closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Console:
    """``update`` after every cycle, ``note`` for what happens in between, ``close`` at the end.

    Without a terminal it prints at most one line per ``line_interval_s``, and the last one always.
    ``now_fn`` gives wall seconds, for the time left and the line interval.
    """

    def __init__(
        self,
        console: RichConsole | None = None,
        *,
        line_interval_s: float = _LINE_INTERVAL_S,
        now_fn: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rich = console or _Terminal()
        self._now = now_fn
        self._line_interval_s = line_interval_s
        self._start_s = now_fn()
        self._first_cycle: tuple[int, float] | None = None
        self._last_line_s: float | None = None
        self._unprinted: str | None = None
        self._panel = _Panel(self.rich) if self.rich.is_terminal else None

    def update(self, row: Mapping[str, float], *, state: str, num_cycles: int | None, decision: str) -> None:
        """Show a cycle. ``state`` is the lending state's name; ``num_cycles`` the run's total, if known."""
        now = self._now()
        status = read_status(row, state, decision)
        if self._first_cycle is None:
            self._first_cycle = (status.cycle, now)
        left_s = self._seconds_left(status.cycle, num_cycles, now)
        if self._panel is not None:
            self._panel.show(status, num_cycles, left_s)
            return
        self._unprinted = _line(status, num_cycles, now - self._start_s, left_s)
        if self._last_line_s is None or now - self._last_line_s >= self._line_interval_s:
            self._print_line(now)

    def note(self, text: str) -> None:
        """Print a line of its own, above the panel on a terminal."""
        self.rich.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Print what was held back and leave the terminal as it was. May be called twice."""
        self._print_line(self._now())
        if self._panel is not None:
            self._panel.stop()
            self._panel = None

    def _print_line(self, now: float) -> None:
        if self._unprinted is not None:
            self.rich.print(Text(self._unprinted), soft_wrap=True)
            self._unprinted, self._last_line_s = None, now

    def _seconds_left(self, cycle: int, num_cycles: int | None, now: float) -> float | None:
        """From the pace since the first cycle shown, which a resumed run does not start at 1."""
        assert self._first_cycle is not None
        first, first_s = self._first_cycle
        if num_cycles is None or cycle <= first:
            return None
        return max(0.0, (num_cycles - cycle) * (now - first_s) / (cycle - first))


def _cycle_text(cycle: int, num_cycles: int | None) -> str:
    return f"cycle {cycle}" if num_cycles is None else f"cycle {cycle}/{num_cycles}"


def _line(status: Status, num_cycles: int | None, elapsed_s: float, left_s: float | None) -> str:
    parts = [f"[{format_seconds(elapsed_s)}] {_cycle_text(status.cycle, num_cycles)}", *status.parts()]
    if left_s is not None:
        parts.append(f"{format_seconds(left_s)} left")
    if status.decision:
        parts.append(status.decision)
    return " | ".join(parts)


class _Panel:
    """A spinner and bar over cycles, and below it the newest cycle in words."""

    def __init__(self, console: RichConsole) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=40),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task = self._progress.add_task("waiting for the first cycle", total=None, left="")
        self._live = Live(
            Group(self._progress),
            console=console,
            refresh_per_second=8,
            # What goes to a file or a pipe must still get there.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()

    def show(self, status: Status, num_cycles: int | None, left_s: float | None) -> None:
        self._progress.update(
            self._task,
            description=_cycle_text(status.cycle, num_cycles),
            completed=status.cycle,
            total=num_cycles,
            left="" if left_s is None else f"{format_seconds(left_s)} left",
        )
        lines: list[RenderableType] = [self._progress, Text("  " + "  ·  ".join(status.parts()))]
        if status.decision:
            lines.append(Text("  " + status.decision, style="dim", overflow="ellipsis", no_wrap=True))
        self._live.update(Group(*lines))

    def stop(self) -> None:
        self._live.stop()
