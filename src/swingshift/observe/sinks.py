"""Where metric rows go. Sinks share the ``MetricSink`` port: ``log(step, row)`` and ``close(outcome)``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swingshift.observe.guard import Guard
from swingshift.observe.line_file import LineFile
from swingshift.runtime.ports import MetricSink, RunOutcome


class JsonlSink:
    """``metrics.jsonl``: one flat object a cycle with ``step`` and ``wall_time`` (Unix seconds), flushed."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = LineFile(path, flush_each=True)
        self._clock = clock

    def go_on(self, step: int) -> None:
        """Cut off what comes after ``step``: a run that goes on from there tells it again."""
        self._file.cut(lambda row: row["step"] <= step)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._file.write({"step": step, "wall_time": round(self._clock(), 3), **row})

    def close(self, outcome: RunOutcome = RunOutcome.FINISHED) -> None:
        self._file.close()


class FanOut:
    """Hands every row to every sink. A sink that fails is warned about once; nothing reaches the caller."""

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self._sinks = [(sink, Guard(f"metric sink {type(sink).__name__}")) for sink in sinks]

    def log(self, step: int, row: Mapping[str, float]) -> None:
        for sink, guard in self._sinks:
            with guard():
                sink.log(step, row)

    def close(self, outcome: RunOutcome) -> None:
        for sink, guard in self._sinks:
            with guard():
                sink.close(outcome)
