"""Which replica serves a request: sticky sessions first, then a strategy over the loads. Pure.

Counts belong to a replica's *life*: a replica that leaves and returns starts a new life, and a lease released
from an earlier one changes nothing. Least in-flight is kept in buckets by load, so that choosing costs the same
with 4 replicas as with 1,000, and a replica that was just chosen goes to the back of its bucket: ties rotate.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from swingshift.core.types import ReplicaId


class Lease(NamedTuple):
    """The right to run one request on one life of a replica."""

    replica_id: ReplicaId
    life: int
    request_id: str
    num_tokens: int


@dataclass(slots=True)
class Life:
    """One replica from the moment it joins routing until it leaves."""

    number: int
    leases: dict[str, Lease] = field(default_factory=dict)
    num_tokens: int = 0


Strategy = Callable[["RoutingTable", str], ReplicaId]


class RoutingTable:
    """Loads of the routable replicas, and who serves which request.

    ``strategy`` is a key of STRATEGIES; ``randbelow`` supplies randomness to ``power_of_two``.
    """

    def __init__(
        self,
        strategy: str = "least_inflight",
        sticky_capacity: int = 10_000,
        randbelow: Callable[[int], int] | None = None,
    ) -> None:
        self._choose = STRATEGIES[strategy]
        self._sticky_capacity = sticky_capacity
        self._randbelow = randbelow
        self._lives: dict[ReplicaId, Life] = {}
        self._buckets: list[OrderedDict[ReplicaId, None]] = []
        self._least = 0
        self._sticky: OrderedDict[str, tuple[ReplicaId, int]] = OrderedDict()
        self._num_lives = 0
        self._ids: list[ReplicaId] = []

    def add(self, replica_id: ReplicaId) -> None:
        assert replica_id not in self._lives, f"{replica_id} is routable already"
        self._num_lives += 1
        self._lives[replica_id] = Life(self._num_lives)
        self._put(replica_id, 0)
        self._ids = sorted(self._lives)

    def remove(self, replica_id: ReplicaId) -> bool:
        """Cut routing to a replica and end its life; False if it was not routable."""
        life = self._lives.pop(replica_id, None)
        if life is None:
            return False
        self._take(replica_id, len(life.leases))
        self._ids = sorted(self._lives)
        return True

    def acquire(self, request_id: str, num_tokens: int = 0) -> Lease | None:
        """Choose a replica and count the request on it; None while nothing is routable."""
        if not self._lives:
            return None
        replica_id = self._sticky_replica(request_id)
        if replica_id is None:
            replica_id = self._choose(self, request_id)
        life = self._lives[replica_id]
        assert request_id not in life.leases, f"request {request_id} is on {replica_id} already"
        load = len(life.leases)
        lease = Lease(replica_id, life.number, request_id, num_tokens)
        life.leases[request_id] = lease
        life.num_tokens += num_tokens
        self._take(replica_id, load)
        self._put(replica_id, load + 1)
        self._remember(request_id, replica_id, life.number)
        return lease

    def release(self, lease: Lease) -> bool:
        """Uncount a request; False if the replica's life that gave the lease is over."""
        life = self._lives.get(lease.replica_id)
        if life is None or life.number != lease.life or lease.request_id not in life.leases:
            return False
        load = len(life.leases)
        del life.leases[lease.request_id]
        life.num_tokens -= lease.num_tokens
        self._take(lease.replica_id, load)
        self._put(lease.replica_id, load - 1)
        return True

    def is_alive(self, lease: Lease) -> bool:
        """Is the replica's life that gave the lease still routable?"""
        life = self._lives.get(lease.replica_id)
        return life is not None and life.number == lease.life

    def clear_sticky(self) -> tuple[int, dict[ReplicaId, int]]:
        """Forget every sticky session; returns how many there were, and the loads."""
        num_cleared = len(self._sticky)
        self._sticky.clear()
        return num_cleared, self.loads()

    def forget_sticky(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._sticky.pop(request_id, None)

    def loads(self) -> dict[ReplicaId, int]:
        return {replica_id: len(life.leases) for replica_id, life in self._lives.items()}

    def load(self, replica_id: ReplicaId) -> int:
        life = self._lives.get(replica_id)
        return 0 if life is None else len(life.leases)

    def request_ids(self, replica_id: ReplicaId) -> list[str]:
        """Requests on a replica, longest-running first."""
        life = self._lives.get(replica_id)
        return [] if life is None else list(life.leases)

    @property
    def total_inflight(self) -> int:
        return sum(len(life.leases) for life in self._lives.values())

    def __len__(self) -> int:
        return len(self._lives)

    def __contains__(self, replica_id: object) -> bool:
        return replica_id in self._lives

    def excess(self) -> dict[ReplicaId, list[str]]:
        """Requests to move for an even load: per overloaded replica its youngest ones beyond the fair share."""
        if not self._lives:
            return {}
        fair, num_larger = divmod(self.total_inflight, len(self._lives))
        by_load = sorted(self._lives, key=lambda r: (-self.load(r), r))
        moved = {}
        for rank, replica_id in enumerate(by_load):
            share = fair + 1 if rank < num_larger else fair
            requests = self.request_ids(replica_id)
            if len(requests) > share:
                moved[replica_id] = requests[share:]
        return moved

    def _sticky_replica(self, request_id: str) -> ReplicaId | None:
        entry = self._sticky.get(request_id)
        if entry is None:
            return None
        life = self._lives.get(entry[0])
        if life is not None and life.number == entry[1]:
            return entry[0]
        del self._sticky[request_id]
        return None

    def _remember(self, request_id: str, replica_id: ReplicaId, life: int) -> None:
        self._sticky[request_id] = (replica_id, life)
        self._sticky.move_to_end(request_id)
        if len(self._sticky) > self._sticky_capacity:
            self._sticky.popitem(last=False)

    def _put(self, replica_id: ReplicaId, load: int) -> None:
        while load >= len(self._buckets):
            self._buckets.append(OrderedDict())
        self._buckets[load][replica_id] = None
        if load < self._least or len(self._lives) == 1:
            self._least = load

    def _take(self, replica_id: ReplicaId, load: int) -> None:
        del self._buckets[load][replica_id]
        last = len(self._buckets) - 1
        while self._least < last and not self._buckets[self._least]:
            self._least += 1


def _least_inflight(table: RoutingTable, request_id: str) -> ReplicaId:
    return next(iter(table._buckets[table._least]))


def _least_tokens(table: RoutingTable, request_id: str) -> ReplicaId:
    lives = table._lives
    return min(lives, key=lambda r: (lives[r].num_tokens, len(lives[r].leases)))


def _power_of_two(table: RoutingTable, request_id: str) -> ReplicaId:
    assert table._randbelow is not None, "power_of_two needs a source of randomness"
    ids = table._ids
    a, b = ids[table._randbelow(len(ids))], ids[table._randbelow(len(ids))]
    return a if table.load(a) <= table.load(b) else b


def _deterministic(table: RoutingTable, request_id: str) -> ReplicaId:
    # Python's own string hash differs from process to process.
    return table._ids[crc32(request_id.encode()) % len(table._ids)]


STRATEGIES: dict[str, Strategy] = {
    "least_inflight": _least_inflight,
    "least_tokens": _least_tokens,
    "power_of_two": _power_of_two,
    "deterministic": _deterministic,
}
