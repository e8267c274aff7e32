"""Routes requests to replicas and lets them wait while there is none.

Membership and routing are two things. A *member* counts towards capacity; it is *routable* unless suspended for
a weight sync. Only routable replicas are in the routing table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swingshift.core.routing import Lease, RoutingTable
from swingshift.core.types import ReplicaId
from swingshift.errors import NoReplicaError
from swingshift.runtime.ports import Replica
from swingshift.runtime.signals import Signal, WaitBoard


class LoadBalancer:
    """``on_load(replica, num_inflight)``, ``on_members()`` and ``on_retired(replica)`` tell who needs to know."""

    def __init__(self, table: RoutingTable, board: WaitBoard, wait_timeout_s: float) -> None:
        self.table = table
        self.board = board
        self.changed = Signal(board)
        self._wait_timeout_s = wait_timeout_s
        self._members: dict[ReplicaId, Replica] = {}
        self.on_load: Callable[[Replica, int], None] = lambda replica, num_inflight: None
        self.on_members: Callable[[], None] = lambda: None
        self.on_retired: Callable[[Replica], None] = lambda replica: None

    # --- membership -------------------------------------------------------------------------------------------

    def add(self, replicas: Iterable[Replica]) -> None:
        """New members, routable at once. All together, so that waiting requests spread over all of them."""
        for replica in replicas:
            assert replica.id not in self._members, f"{replica.id} is a member already"
            self._members[replica.id] = replica
            self.table.add(replica.id)
        self._members_changed()

    def remove(self, replicas: Iterable[Replica]) -> None:
        """Cut routing and end membership. Unknown replicas are ignored: they may have been removed as dead."""
        for replica in replicas:
            if self._members.pop(replica.id, None) is not None:
                self.table.remove(replica.id)
                self.on_load(replica, 0)
        self._members_changed()

    def retire(self, replica: Replica) -> None:
        """Remove a replica that failed. Nobody may wait for its answers any longer."""
        self.remove((replica,))
        self.on_retired(replica)

    def suspend(self, replicas: Iterable[Replica]) -> None:
        """Cut routing, keep membership."""
        for replica in replicas:
            if self.table.remove(replica.id):
                self.on_load(replica, 0)

    def restore(self, replicas: Iterable[Replica]) -> None:
        """Route to suspended members again, to all at once."""
        for replica in replicas:
            if replica.id in self._members and replica.id not in self.table:
                self.table.add(replica.id)
        self.changed.notify()

    def members(self) -> list[Replica]:
        return list(self._members.values())

    @property
    def num_members(self) -> int:
        return len(self._members)

    def routable(self) -> list[Replica]:
        return [r for r in self._members.values() if r.id in self.table]

    # --- requests ---------------------------------------------------------------------------------------------

    async def acquire(self, request_id: str, num_tokens: int = 0) -> tuple[Lease, Replica]:
        """A lease on a replica; waits while nothing is routable.

        Raises NoReplicaError after ``async_training.replica_wait_timeout_s``.
        """
        while (lease := self.table.acquire(request_id, num_tokens)) is None:
            try:
                await self.changed.until(
                    lambda: len(self.table) > 0,
                    who=f"request {request_id}",
                    what=lambda: "a replica that accepts requests",
                    timeout_s=self._wait_timeout_s,
                )
            except TimeoutError:
                raise NoReplicaError(
                    f"request {request_id} waited {self._wait_timeout_s:g} s for a replica and none appeared; "
                    "see async_training.replica_wait_timeout_s"
                ) from None
        replica = self._members[lease.replica_id]
        self.on_load(replica, self.table.load(replica.id))
        return lease, replica

    def release(self, lease: Lease) -> None:
        if self.table.release(lease):
            self.on_load(self._members[lease.replica_id], self.table.load(lease.replica_id))

    def _members_changed(self) -> None:
        self.on_members()
        self.changed.notify()
