"""The invariants of the design, checked on a live session and its simulated ports after every batch of events.

Conservation is checked whenever a group moved. Replicas and devices are all checked whenever weights, lending or
routing changed and after every nth batch, in between only those to which something happened: a world of a thousand
replicas does not pay for all of them at each event. With n = 1 (small worlds, tests) everything is checked always.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swingshift.core.lifecycle import LendingState
from swingshift.runtime.session import Session
from swingshift.sim.device import SimDevice
from swingshift.sim.replica import SimReplica

_SMALL_WORLD = 8
_RARELY = 512


class InvariantChecker:
    """``full_check_every``: batches of events between two checks of everything; None: 1 with few replicas."""

    def __init__(
        self,
        session: Session,
        standalone: Sequence[SimReplica],
        hybrid: Sequence[SimReplica],
        devices: Sequence[SimDevice],
        full_check_every: int | None = None,
    ) -> None:
        self._session = session
        self._standalone = standalone
        self._hybrid = hybrid
        self._devices = devices
        self._every = full_check_every or (1 if len(self._replicas()) <= _SMALL_WORLD else _RARELY)
        self._batches = 0
        self._seen: tuple[object, ...] = ()
        self._counts: tuple[int, ...] = ()
        self._touched: dict[SimReplica, None] = {}
        for replica in self._replicas():
            replica.touched = self._touched

    def _replicas(self) -> list[SimReplica]:
        """Those of now: one that was restarted has another object in its place."""
        return [*self._standalone, *self._hybrid]

    def after_events(self) -> None:
        """One batch of events was handled."""
        controller, table = self._session.controller, self._session.balancer.table
        state = (controller.version, controller.state, len(table))
        self._batches += 1
        if state != self._seen or self._batches % self._every == 0:
            self._seen = state
            self.check_all()
            return
        counts = _counts(self._session)
        if counts != self._counts:
            self._counts = counts
            check_conservation(self._session)
        if self._touched:
            check_routing(self._session, self._touched)
            for replica in self._touched:
                for device in replica.sim_devices:
                    device.check()
            self._touched.clear()

    def check_all(self) -> None:
        self._touched.clear()
        check_conservation(self._session)
        check_routing(self._session, self._replicas())
        for device in self._devices:
            device.check()
        check_lending(self._session, self._hybrid)


def _counts(session: Session) -> tuple[int, ...]:
    """As long as they are the same no group moved: conservation need not be checked again."""
    return session.rollouter.counts()


def check_conservation(session: Session) -> None:
    """Every submitted group is in flight, queued, consumed, evicted or failed, and the budget holds."""
    session.rollouter.check()


def check_routing(session: Session, replicas: Iterable[SimReplica]) -> None:
    """Routable replicas are awake, hold the current version and never more requests than were routed to them."""
    version = session.controller.version
    table = session.balancer.table
    for replica in replicas:
        if replica.id not in table or replica.is_dead:
            continue
        assert replica.has_weights, f"{replica.id} is routable without weights"
        assert replica.has_kv_cache, f"{replica.id} is routable without a KV cache"
        assert not replica.is_kv_stale, f"{replica.id} is routable with a cache made with older weights"
        assert replica.version == version, f"{replica.id} is routable with version {replica.version}, not {version}"
        # Between a routing decision and its arrival, or an answer and its release, a request is only counted.
        assert replica.num_requests <= table.load(replica.id), f"{replica.id} runs requests nobody routed to it"


def check_lending(session: Session, hybrid: Sequence[SimReplica]) -> None:
    """The state says what is true."""
    state = session.controller.state
    routable = [r.id for r in hybrid if r.id in session.balancer.table]
    if state in (LendingState.STANDALONE_ONLY, LendingState.DEACTIVATING):
        assert not routable, f"{routable} are routable in state {state}"
    if state is LendingState.STANDALONE_ONLY:
        awake = [r.id for r in hybrid if r.is_awake]
        assert not awake, f"{awake} are awake while nothing is lent"
    elif state is LendingState.HYBRID_ACTIVE:
        lent = {r.id for r in session.controller.hybrid}
        for replica in hybrid:
            if replica.id in lent and not replica.is_dead:
                assert replica.has_weights, f"{replica.id} counts as lent without weights"
