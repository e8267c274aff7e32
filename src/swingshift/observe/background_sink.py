"""A metric sink in a thread of its own: a slow disk or a service that hangs must not hold up the control process."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Mapping
from threading import Thread

from swingshift.observe.guard import Guard
from swingshift.runtime.ports import MetricSink, RunOutcome

logger = logging.getLogger(__name__)


class BackgroundSink:
    """``open_sink`` is called in the thread too, since connecting to a service may take its time.

    Rows wait in a queue; beyond ``max_rows`` of them further ones are left out. Whatever goes wrong is warned about
    once. ``close`` gives the sink ``close_timeout_s`` to write what is left.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], MetricSink],
        *,
        max_rows: int = 1000,
        close_timeout_s: float = 30.0,
    ) -> None:
        self.num_left_out = 0
        self._name = name
        self._open = open_sink
        self._close_timeout_s = close_timeout_s
        self._rows: queue.Queue[tuple[int, dict[str, float]] | RunOutcome] = queue.Queue(max_rows)
        self._guard = Guard(f"metric sink {name}")
        self._thread = Thread(target=self._run, name=f"metric sink {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if not self._thread.is_alive():  # It could not be opened, and said so.
            return
        try:
            self._rows.put_nowait((step, dict(row)))
        except queue.Full:
            self.num_left_out += 1
            if self.num_left_out == 1:
                logger.warning("metric sink %s does not keep up: rows are left out", self._name)

    def close(self, outcome: RunOutcome) -> None:
        with contextlib.suppress(queue.Full):
            self._rows.put(outcome, timeout=self._close_timeout_s if self._thread.is_alive() else 0.0)
        self._thread.join(self._close_timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "metric sink %s did not finish within %g s: its last rows may be missing",
                self._name,
                self._close_timeout_s,
            )

    def _run(self) -> None:
        sink: MetricSink | None = None
        with self._guard():
            sink = self._open()
        if sink is None:
            return
        while not isinstance(item := self._rows.get(), RunOutcome):
            with self._guard():
                sink.log(*item)
        with self._guard():
            sink.close(item)
