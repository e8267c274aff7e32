"""What a person sees while a run goes on: the live view on a terminal, single lines anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from swingshift.core.timeline import DeviceSpan
from swingshift.observe.guard import Guard
from swingshift.observe.live_lanes import LaneHistory
from swingshift.observe.live_state import LiveState
from swingshift.observe.live_view import LiveView, Status, cycle_text, read_status
from swingshift.observe.standard_streams import give_up, settle
from swingshift.observe.summary import format_seconds

_LINE_INTERVAL_S = 5.0
_NUM_REWARDS = 200


class _Terminal(RichConsole):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more (``… | head``). Rich would end the program; training goes on unseen."""
        self.quiet = True
        give_up(sys.stdout)


class Console:
    """``update`` after every cycle, ``note`` for what happens in between, ``close`` and ``conclude`` at the end.

    An output that cannot be written is warned about once and tried again with what comes next; nothing reaches the
    caller.

    On a terminal ``tick`` draws the live view again, and ``on_span`` feeds its lanes. Without one it prints at most
    one line per ``line_interval_s``, and the last one always. ``now_fn`` gives wall seconds, for the time left and
    the line interval.
    """

    def __init__(
        self,
        console: RichConsole | None = None,
        *,
        title: str = "swingshift",
        line_interval_s: float = _LINE_INTERVAL_S,
        now_fn: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rich = console or _Terminal()
        self._now = now_fn
        self._line_interval_s = line_interval_s
        self._start_s = now_fn()
        self._pace = Pace()
        self._last_line_s: float | None = None
        self._unprinted: str | None = None
        self._guard = Guard("console")
        self._panel: _Panel | None = None
        with self._writing():
            self._panel = _Panel(self.rich, title, now_fn) if self.rich.is_terminal else None

    def update(self, row: Mapping[str, float], *, state: str, num_cycles: int | None, decision: str) -> None:
        """Show a cycle. ``state`` is the lending state's name; ``num_cycles`` the run's total, if known."""
        with self._writing():
            now = self._now()
            status = read_status(row, state, decision)
            self._pace.add(status.cycle, now)
            left_s = self._pace.seconds_left(num_cycles)
            if self._panel is not None:
                self._panel.show(status, num_cycles, left_s)
                return
            self._unprinted = _line(status, num_cycles, now - self._start_s, left_s)
            if self._last_line_s is None or now - self._last_line_s >= self._line_interval_s:
                self._print_line(now)

    def on_span(self, span: DeviceSpan) -> None:
        if self._panel is not None:
            self._panel.lanes.add(span)

    def tick(self, live: LiveState | None) -> None:
        """A moment passed; ``live`` is what the run does now, None before it has begun."""
        if self._panel is not None:
            with self._writing():
                self._panel.tick(live)

    def note(self, text: str) -> None:
        """Print a line of its own, above the view on a terminal."""
        with self._writing():
            self.rich.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Print what was held back and leave the terminal as it was. May be called twice."""
        self._print_line(self._now())
        panel, self._panel = self._panel, None
        if panel is not None:
            with self._writing():
                panel.stop()

    def conclude(self, summary: RenderableType, hint: str) -> None:
        """The last words, after ``close``."""
        with self._writing():
            self.rich.print(summary)
        self.note(hint)
        with self._writing():
            settle(self.rich.file)

    def _print_line(self, now: float) -> None:
        if self._unprinted is not None:
            with self._writing():
                self.rich.print(Text(self._unprinted), soft_wrap=True)
            self._unprinted, self._last_line_s = None, now

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._guard():
            try:
                yield
            except Exception:
                self._forget_unwritten()
                raise

    def _forget_unwritten(self) -> None:
        """Rich keeps what it could not write, and would write all of it again with every line to come."""
        was_quiet, self.rich.quiet = self.rich.quiet, True
        self.rich.print()
        self.rich.quiet = was_quiet


class Pace:
    """How long the rest takes, from the pace since the first cycle seen, which a resumed run does not start at 1."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def add(self, cycle: int, time_s: float) -> None:
        self._first = self._first or (cycle, time_s)
        self._last = (cycle, time_s)

    def seconds_left(self, num_cycles: int | None) -> float | None:
        if num_cycles is None or self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        (first, first_s), (last, last_s) = self._first, self._last
        return max(0.0, (num_cycles - last) * (last_s - first_s) / (last - first))


def _line(status: Status, num_cycles: int | None, elapsed_s: float, left_s: float | None) -> str:
    parts = [f"[{format_seconds(elapsed_s)}] {cycle_text(status.cycle, num_cycles)}", *status.parts()]
    if left_s is not None:
        parts.append(f"{format_seconds(left_s)} left")
    if status.decision:
        parts.append(status.decision)
    return " | ".join(parts)


class _Panel:
    """Holds what the view shows and draws it anew at every tick: no thread of its own, no work in between."""

    def __init__(self, console: RichConsole, title: str, now_fn: Callable[[], float]) -> None:
        self.lanes = LaneHistory()
        self._title = title
        self._now = now_fn
        self._start_s = now_fn()
        self._status: Status | None = None
        self._status_s = 0.0
        self._num_cycles: int | None = None
        self._left_s: float | None = None
        self._live: LiveState | None = None
        self._rewards: deque[float] = deque(maxlen=_NUM_REWARDS)
        self._news = "waiting for the first cycle"
        self._display = Live(
            self._view(),
            console=console,
            auto_refresh=False,
            # What goes to a file or a pipe must still get there.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        )
        self._display.start(refresh=True)

    def show(self, status: Status, num_cycles: int | None, left_s: float | None) -> None:
        self._status, self._status_s = status, self._now()
        self._num_cycles, self._left_s = num_cycles, left_s
        self.lanes.fit_cycle(status.cycle_s)
        if math.isfinite(status.reward):
            self._rewards.append(status.reward)
        # Several cycles a second need no drawing each; but the last one must be on the screen.
        self._display.update(self._view())

    def tick(self, live: LiveState | None) -> None:
        self._live = live
        if live is not None and self._status is None:
            self.lanes.fit(live.time_s)  # how long cycles are is not known yet
        self._display.update(self._view(), refresh=True)

    def stop(self) -> None:
        self._news, self._left_s = "", None
        self._display.update(self._view())
        self._display.stop()

    def _view(self) -> LiveView:
        now = self._now()
        left_s = None if self._left_s is None else max(0.0, self._left_s - (now - self._status_s))
        return LiveView(
            title=self._title,
            elapsed_s=now - self._start_s,
            lanes=self.lanes,
            status=self._status,
            live=self._live,
            num_cycles=self._num_cycles,
            left_s=left_s,
            rewards=tuple(self._rewards),
            news="" if self._status or self._live else self._news,
        )
