"""Made-up moments of a run for the tests of what shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swingshift.observe.live_state import LiveState, ReplicaState, ReplicaStatus

SERVING, PAUSED, ASLEEP, DEAD = ReplicaStatus


def replica(name: str, num_inflight: int = 0, status: ReplicaStatus = SERVING) -> ReplicaState:
    return ReplicaState(name, name.rpartition("-")[0], status, num_inflight)


LENT = LiveState(
    time_s=100.0,
    version=7,
    lending="HYBRID_ACTIVE",
    decision="lend: 5 groups short × 0.4 s > 0.3 s",
    num_queued=12,
    queue_capacity=48,
    staleness_samples=31,
    max_required_samples=48,
    num_inflight=7,
    max_concurrent_samples=8,
    replicas=(replica("standalone-0", 4), replica("hybrid-0", 3)),
    devices={"standalone-0": "rollout", "hybrid-0": "rollout"},
)
KEPT = replace(
    LENT,
    lending="STANDALONE_ONLY",
    num_inflight=4,
    max_concurrent_samples=4,
    replicas=(replica("standalone-0", 4), replica("hybrid-0", status=ASLEEP)),
    devices={"standalone-0": "rollout", "hybrid-0": "train"},
)


def lent(**changes: Any) -> LiveState:
    return replace(LENT, **changes)
