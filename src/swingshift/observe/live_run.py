"""All that shows a run while it goes: the view on the terminal, ``live.json`` for ``swingshift top``, Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from swingshift.config.schema import SwingshiftConfig
from swingshift.observe.console import Console
from swingshift.observe.guard import Guard
from swingshift.observe.live_file import LiveFile
from swingshift.observe.live_state import LiveProbe, LiveState
from swingshift.observe.prometheus_server import PrometheusExporter, check_address
from swingshift.observe.ticker import Ticker
from swingshift.runtime.session import Session


class LiveRun:
    """``start`` inside the event loop, ``watch`` a session before it runs, ``stop`` and ``close`` at the end.

    ``flush`` is called at every tick, so that files followed from outside are up to date. Raises ConfigError if
    Prometheus cannot be served where the configuration says.
    """

    def __init__(
        self,
        folder: Path,
        config: SwingshiftConfig,
        console: Console | None,
        num_cycles: int | None,
        flush: Callable[[], None],
    ) -> None:
        self._console = console
        self._flush = flush
        self._file, self._file_guard = LiveFile(folder, num_cycles), Guard("live.json")
        self._prometheus, self._prometheus_guard = _exporter(config, folder), Guard("Prometheus exporter")
        self._probe: Callable[[], LiveState] | None = None
        self._ticker = Ticker("live view", self._tick)

    @property
    def metrics_url(self) -> str | None:
        """Where Prometheus can read the metrics, if anywhere."""
        return None if self._prometheus is None else f"http://{self._prometheus.address}/metrics"

    def start(self) -> None:
        self._ticker.start()

    def watch(self, session: Session) -> None:
        """Before it runs. Members that come and go are told to Prometheus at once, all else at the next tick."""
        self._probe = probe = LiveProbe(session)
        told = session.balancer.on_members

        def members_changed() -> None:
            told()
            self._show_prometheus(probe())

        if self._prometheus is not None:
            session.balancer.on_members = members_changed

    def show_row(self, row: Mapping[str, float]) -> None:
        if self._prometheus is not None:
            with self._prometheus_guard():
                self._prometheus.show_row(row)

    def stop(self) -> None:
        """The run is over: nothing changes any more."""
        self._ticker.stop()
        if self._console is not None:
            self._console.tick(None)
        if self._prometheus is not None:
            with self._prometheus_guard():
                self._prometheus.close()

    def close(self) -> None:
        """Once the summary is written, which tells from now on how the run ended."""
        with self._file_guard():
            self._file.close()

    def _tick(self) -> None:
        live = self._probe() if self._probe is not None else None
        self._flush()
        with self._file_guard():
            self._file.write(live)
        if live is not None:
            self._show_prometheus(live)
        if self._console is not None:
            self._console.tick(live)

    def _show_prometheus(self, live: LiveState) -> None:
        if self._prometheus is not None:
            with self._prometheus_guard():
                self._prometheus.show_live(live)


def check_exporter(config: SwingshiftConfig) -> None:
    """Raise ConfigError if Prometheus cannot be served as configured. Before anything is written."""
    prometheus = config.trainer.prometheus
    if prometheus.port is not None:
        check_address(prometheus.host, prometheus.port)


def _exporter(config: SwingshiftConfig, folder: Path) -> PrometheusExporter | None:
    trainer = config.trainer
    if trainer.prometheus.port is None:
        return None
    labels = {"project": trainer.project_name, "experiment": trainer.experiment_name}
    return PrometheusExporter(folder, trainer.prometheus.host, trainer.prometheus.port, labels)
