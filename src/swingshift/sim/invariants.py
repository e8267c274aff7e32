"""The invariants of the design, checked on a live session and its simulated ports after every event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swingshift.core.lifecycle import LendingState
from swingshift.runtime.session import Session
from swingshift.sim.device import SimDevice
from swingshift.sim.replica import SimReplica


def check_invariants(
    session: Session,
    standalone: Sequence[SimReplica],
    hybrid: Sequence[SimReplica],
    devices: Iterable[SimDevice],
) -> None:
    _conservation(session)
    _routing(session, [*standalone, *hybrid])
    for device in devices:
        device.check()
    _lending(session, hybrid)


def _conservation(session: Session) -> None:
    """Every submitted group is in flight, queued, consumed or failed, and the budget holds."""
    rollouter = session.rollouter
    rollouter.ledger.check()
    assert rollouter.ledger.num_queued == len(rollouter.queue)
    assert len(rollouter.queue) <= rollouter.queue.capacity
    assert rollouter.budget.staleness_samples >= len(rollouter.ledger.live), "an outstanding group is not budgeted"
    assert rollouter.budget.staleness_samples <= rollouter.budget.max_required_samples


def _routing(session: Session, replicas: Sequence[SimReplica]) -> None:
    """Routable replicas are awake, hold the current version and never more requests than were routed to them."""
    version = session.controller.version
    table = session.balancer.table
    for replica in replicas:
        if replica.id not in table:
            continue
        assert replica.is_dead or replica.has_weights, f"{replica.id} is routable without weights"
        assert replica.is_dead or replica.has_kv_cache, f"{replica.id} is routable without a KV cache"
        assert replica.version == version, f"{replica.id} is routable with version {replica.version}, not {version}"
        # Between a routing decision and its arrival, or an answer and its release, a request is only counted.
        assert replica.num_requests <= table.load(replica.id), f"{replica.id} runs requests nobody routed to it"


def _lending(session: Session, hybrid: Sequence[SimReplica]) -> None:
    """The state says what is true."""
    state = session.controller.state
    routable = [r.id for r in hybrid if r.id in session.balancer.table]
    if state is LendingState.STANDALONE_ONLY:
        assert not routable, f"{routable} are routable while nothing is lent"
        awake = [r.id for r in hybrid if r.device.rollout_awake]
        assert not awake, f"{awake} are awake while nothing is lent"
