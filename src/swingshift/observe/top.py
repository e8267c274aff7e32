"""``swingshift top``: the live view of a run from the files in its folder, whoever runs it and wherever."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState
from swingshift.errors import ConfigError
from swingshift.observe.console import Pace
from swingshift.observe.event_files import DECISIONS_FILE, SPANS_FILE
from swingshift.observe.live_file import LiveRecord, read_live
from swingshift.observe.live_lanes import LaneHistory
from swingshift.observe.live_view import LiveView, Status, read_status
from swingshift.observe.metric_rows import is_closing
from swingshift.observe.run_reader import METRICS_FILE, RunFolder
from swingshift.observe.summary import format_seconds
from swingshift.observe.tail import Tail
from swingshift.runtime.observations import Question

_ROWS_BYTES = 2_000_000
_SPANS_BYTES = 1_000_000
_DECISIONS_BYTES = 50_000
_SILENT_AFTER_S = 10.0
REFRESH_S = 1.0


class RunWatch:
    """Follows a run folder; ``view`` reads what is new and says what there is to see.

    Raises ConfigError if no run made the folder. ``clock`` is Unix time, to tell how old the news are.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = RunFolder(folder)
        self._clock = clock
        self._rows = Tail(folder / METRICS_FILE, _ROWS_BYTES)
        self._spans = Tail(folder / SPANS_FILE, _SPANS_BYTES)
        self._decisions = Tail(folder / DECISIONS_FILE, _DECISIONS_BYTES)
        self._title = self._folder.name
        self._forget()

    def _forget(self) -> None:
        self._lanes = LaneHistory()
        self._pace = Pace()
        self._rewards: deque[float] = deque(maxlen=200)
        self._row: Mapping[str, Any] | None = None
        self._decision = ""

    def view(self) -> LiveView:
        """Raises ConfigError if the files cannot be read."""
        with self._reading():
            record = read_live(self._folder.folder)
            self._follow()
            live = record.state if record is not None else None
            num_cycles = record.num_cycles if record is not None else None
            status = self._status(live.lending if live is not None else "")
            return LiveView(
                title=self._title,
                elapsed_s=live.time_s if live is not None else self._time_s(),
                lanes=self._lanes,
                status=status,
                live=live,
                num_cycles=num_cycles,
                left_s=self._pace.seconds_left(num_cycles),
                rewards=tuple(self._rewards),
                news=self._news(record, status),
            )

    @property
    def has_ended(self) -> bool:
        """Raises ConfigError if that cannot be read."""
        with self._reading():
            return read_live(self._folder.folder) is None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except ConfigError:
            raise
        except OSError as error:
            raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}); check the folder") from error
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"{self._folder.folder}: its files are not those of a run ({error!r}); restore or remove them"
            ) from error

    def _follow(self) -> None:
        restarts = self._rows.num_restarts + self._spans.num_restarts
        rows, spans, decisions = self._rows.read(), self._spans.read(), self._decisions.read()
        if self._rows.num_restarts + self._spans.num_restarts > restarts:
            self._forget()
        for row in rows:
            if not is_closing(row):
                self._see_row(row)
        if self._row is not None:
            self._lanes.fit_cycle(float(self._row.get("fully_async/rollouter/version_time_s") or 0.0))
        for span in spans:
            state = DeviceState(span["state"])
            self._lanes.add(DeviceSpan(str(span["device"]), state, float(span["start_s"]), float(span["end_s"])))
        for decision in decisions:
            if decision.get("question") == Question.LEND:
                self._decision = str(decision["reason"])

    def _see_row(self, row: Mapping[str, Any]) -> None:
        self._row = row
        reward = row.get("critic/rewards/mean")
        if reward is not None and math.isfinite(reward):
            self._rewards.append(reward)
        if row.get("training/time_s") is not None:
            self._pace.add(int(row.get("training/global_step") or 0), float(row["training/time_s"]))

    def _status(self, lending: str) -> Status | None:
        return None if self._row is None else read_status(self._row, lending, self._decision)

    def _time_s(self) -> float:
        row_s = float(self._row.get("training/time_s") or 0.0) if self._row is not None else 0.0
        return max(row_s, self._lanes.end_s)

    def _news(self, record: LiveRecord | None, status: Status | None) -> str:
        if record is None:
            summary = self._folder.summary()
            if summary is not None:
                return f"ended: {summary.get('exit_reason', 'finished')}"
            return "not running" if status is not None else "nothing written yet"
        silent_s = self._clock() - record.wall_time
        if silent_s > _SILENT_AFTER_S:
            return f"no news for {format_seconds(silent_s)}: process {record.pid} is busy, stopped or gone"
        return "" if status is not None else "waiting for the first cycle"


def follow(watch: RunWatch, console: Console | None = None, wait: Callable[[float], None] = time.sleep) -> None:
    """Show the run again and again until it has ended or Ctrl-C."""
    live = Live(watch.view(), console=console, auto_refresh=False)
    try:
        live.start(refresh=True)
        while not watch.has_ended:
            wait(REFRESH_S)
            live.update(watch.view(), refresh=True)
        live.update(watch.view(), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        live.stop()
