"""What a run is doing at this moment, in a few numbers: taken in the control process, shown anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from swingshift.core.lifecycle import LendingState
from swingshift.runtime.ports import Replica
from swingshift.runtime.rollouter import Rollouter
from swingshift.runtime.session import Session
from swingshift.schedule.base import DynamicSchedulePolicyBase


class ReplicaStatus(StrEnum):
    SERVING = "serving"
    PAUSED = "paused"
    """A member that gets no requests: its weights are being written."""
    ASLEEP = "asleep"
    """Not a member: a hybrid replica whose device trains, or one that has not started yet."""
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    id: str
    kind: str
    status: ReplicaStatus
    num_inflight: int
    """Requests, that is sample groups."""


@dataclass(frozen=True, slots=True)
class LiveState:
    """One moment. ``time_s`` is on the clock of the timeline; ``devices`` says what each device does."""

    time_s: float
    version: int
    lending: str
    decision: str
    num_queued: int
    queue_capacity: int | None
    staleness_samples: int | None
    max_required_samples: int | None
    """These three belong to the staleness budget; None where training goes in global steps, which have none."""
    num_inflight: int
    max_concurrent_samples: int
    replicas: tuple[ReplicaState, ...]
    devices: Mapping[str, str]

    @property
    def is_lent(self) -> bool:
        return self.lending == LendingState.HYBRID_ACTIVE

    def members(self) -> tuple[ReplicaState, ...]:
        """Replicas that generate, those paused for a weight sync included."""
        return tuple(r for r in self.replicas if r.status in (ReplicaStatus.SERVING, ReplicaStatus.PAUSED))

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        replicas = [
            {"id": r.id, "kind": r.kind, "status": r.status, "num_inflight": r.num_inflight} for r in self.replicas
        ]
        return values | {"replicas": replicas}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> LiveState:
        """Raises KeyError, TypeError and ValueError for what ``to_json`` did not write."""
        known = {name: values[name] for name in cls.__slots__}
        known["replicas"] = tuple(
            ReplicaState(r["id"], r["kind"], ReplicaStatus(r["status"]), r["num_inflight"])
            for r in values["replicas"]
        )
        return cls(**known)


class LiveProbe:
    """Takes the ``LiveState`` of a session. Make it before the session runs, when every replica still lives."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._replicas: tuple[Replica, ...] = (*session.controller.standalone, *session.controller.hybrid)

    def __call__(self) -> LiveState:
        session = self._session
        rollouter, policy = session.rollouter, session.policy
        budget = rollouter.budget if isinstance(rollouter, Rollouter) else None
        limit = None if budget is None else budget.max_required_samples
        return LiveState(
            time_s=session.now(),
            version=session.train_loop.version,
            lending=session.controller.state.value,
            decision=policy.decision if isinstance(policy, DynamicSchedulePolicyBase) else "",
            num_queued=rollouter.ledger.num_queued,
            queue_capacity=limit,
            staleness_samples=None if budget is None else budget.staleness_samples,
            max_required_samples=limit,
            num_inflight=rollouter.ledger.num_in_flight,
            max_concurrent_samples=rollouter.max_concurrent_samples,
            replicas=self._replica_states(),
            devices=self._device_states(),
        )

    def _replica_states(self) -> tuple[ReplicaState, ...]:
        loads = self._session.balancer.table.loads()
        members = {replica.id for replica in self._session.balancer.members()}
        dead = {replica_id for replica_id, _ in self._session.controller.failures}

        def status(replica_id: str) -> ReplicaStatus:
            if replica_id in loads:
                return ReplicaStatus.SERVING
            if replica_id in members:
                return ReplicaStatus.PAUSED
            return ReplicaStatus.DEAD if replica_id in dead else ReplicaStatus.ASLEEP

        return tuple(ReplicaState(r.id, r.kind.value, status(r.id), loads.get(r.id, 0)) for r in self._replicas)

    def _device_states(self) -> dict[str, str]:
        timeline = self._session.timeline
        states = ((device, timeline.state_of(device)) for device in timeline.devices)
        return {device: state.value for device, state in states if state is not None}
