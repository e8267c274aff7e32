"""The HTTP side: ``/metrics`` of the session and ``/replicas/ID/metrics`` of each replica that is a member."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from swingshift.errors import ConfigError
from swingshift.observe.live_state import LiveState
from swingshift.observe.prometheus_metrics import ReplicaCollector, RunCollector
from swingshift.observe.prometheus_targets import TargetsFile, replica_path

_EVERYWHERE = ("", "0.0.0.0", "::")


class PrometheusExporter:
    """Serves a run from a thread until ``close``. ``show_row`` and ``show_live`` are told what is new.

    Raises ConfigError if it cannot listen on host and port; port 0 is any free one.
    """

    def __init__(self, folder: Path, host: str, port: int, run_labels: Mapping[str, str]) -> None:
        self._collector = RunCollector(run_labels)
        self._server = _listen(host, port)
        self._server.collector = self._collector
        reachable = socket.gethostname() if host in _EVERYWHERE else host
        shown = f"[{reachable}]" if ":" in reachable else reachable
        self.address = f"{shown}:{self._server.server_address[1]}"
        self._targets = TargetsFile(folder, self.address, run_labels)
        self.targets_path = self._targets.path
        self._targets.update(())
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="prometheus", daemon=True)
        self._thread.start()

    def show_row(self, row: Mapping[str, float]) -> None:
        self._collector.show_row(row)

    def show_live(self, live: LiveState) -> None:
        """Replicas that came are answered for before the scrape file names them."""
        self._collector.live = live
        self._targets.update(live.members())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._targets.close()


def check_address(host: str, port: int) -> None:
    """Raise ConfigError if nobody can listen there. Before anything is written."""
    _listen(host, port).server_close()


def _listen(host: str, port: int) -> _Server:
    try:
        return _Server6((host, port), _Handler) if ":" in host else _Server((host, port), _Handler)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"trainer.prometheus.port={port}: cannot listen on {host}:{port} ({reason}); give another port, "
            "0 for any free one, or another trainer.prometheus.host"
        ) from error


class _Server(ThreadingMixIn, TCPServer):
    """Not http.server's own, which asks the name service for our name."""

    collector: RunCollector
    daemon_threads = True
    allow_reuse_address = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30

    def do_GET(self) -> None:
        collector = self._collector_of(self.path.partition("?")[0])
        if collector is None:
            self.send_error(HTTPStatus.NOT_FOUND, "no such page; see /metrics")
            return
        registry = CollectorRegistry()
        registry.register(collector)
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        body = encode(registry)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _collector_of(self, path: str) -> Collector | None:
        if path == "/metrics":
            return self.server.collector
        live = self.server.collector.live
        members = live.members() if live is not None else ()
        return next((ReplicaCollector(r) for r in members if path == replica_path(r.id)), None)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are no news."""
