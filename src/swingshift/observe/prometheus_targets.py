"""The scrape file: Prometheus' ``file_sd`` reads from it whom to scrape, and notices when it changes.

A target for the session, and one for each replica that is a member now, hybrid ones only while they are lent.
Engines have no HTTP server of their own: the session answers for each under a path of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from swingshift.observe.live_state import ReplicaState

TARGETS_FILE = "prometheus_targets.json"


def replica_path(replica_id: str) -> str:
    return f"/replicas/{replica_id}/metrics"


def scrape_targets(
    address: str, run_labels: Mapping[str, str], members: Iterable[ReplicaState]
) -> list[dict[str, Any]]:
    """``address`` is ``host:port`` of the session."""
    groups = [{"targets": [address], "labels": {**run_labels, "role": "session"}}]
    for replica in members:
        labels = {
            "role": "replica",
            "replica": replica.id,
            "kind": replica.kind,
            "__metrics_path__": replica_path(replica.id),
        }
        groups.append({"targets": [address], "labels": {**run_labels, **labels}})
    return groups


class TargetsFile:
    """Written anew, all or nothing, when the members are others than before; empty once the run has ended."""

    def __init__(self, folder: Path, address: str, run_labels: Mapping[str, str]) -> None:
        self.path = folder / TARGETS_FILE
        self._address = address
        self._labels = run_labels
        self._written: list[dict[str, Any]] | None = None

    def update(self, members: Iterable[ReplicaState]) -> None:
        self._write(scrape_targets(self._address, self._labels, members))

    def close(self) -> None:
        self._write([])

    def _write(self, targets: list[dict[str, Any]]) -> None:
        if targets == self._written:
            return
        partial = self.path.with_name(f"{TARGETS_FILE}.tmp")
        partial.write_text(json.dumps(targets, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.path)
        self._written = targets
