"""What a soak run checks of requests: who gets them, and that they go on with the tokens they had."""

from __future__ import annotations

from collections.abc import Sequence

from swingshift.core.types import FinishReason, GenerationRequest, ReplicaId, TokenOutput
from swingshift.runtime.ports import Replica
from swingshift.sim.world import World


class RequestChecks:
    """Sees every request as it reaches a replica, and what comes back. ``balance`` is told of it, if there is one."""

    def __init__(self, max_tokens: int, keeps_partial: bool) -> None:
        self.balance: BalanceCheck | None = None
        self._max_tokens = max_tokens
        self._keeps_partial = keeps_partial
        self._had: dict[str, list[int]] = {}
        """By request: how many tokens each of its unfinished responses had after its newest answer."""

    def requested(self, replica_id: ReplicaId, request: GenerationRequest) -> None:
        name = request.request_id
        if self.balance is not None:
            self.balance.chosen(replica_id, name)
        had, has = self._had.get(name), [len(prefix) for prefix in request.prefixes]
        assert had is None or had == has, f"request {name} goes on with {has} tokens, its replicas returned {had}"
        for size, budget in zip(has, request.budgets, strict=True):
            assert budget == self._max_tokens - size, f"request {name} may have {budget} more tokens after {size}"

    def answered(self, request: GenerationRequest, outputs: Sequence[TokenOutput]) -> None:
        had = []
        for prefix, output in zip(request.prefixes, outputs, strict=True):
            size = len(prefix) + len(output.token_ids)
            if output.finish_reason is FinishReason.ABORT and size < self._max_tokens:
                had.append(size if self._keeps_partial else 0)
        self._had[request.request_id] = had


class BalanceCheck:
    """Least in flight, and of equals the one that has had its load longest: an oracle apart from the routing table.

    A request that was on a replica may return to it while that replica's life lasts.
    """

    def __init__(self, world: World) -> None:
        self._table = world.session.balancer.table
        self._since: dict[str, tuple[int, int]] = {}
        """By replica: its load, and how many changes of load there had been when it came to have it."""
        self._num_changes = 0
        self._best = ""
        self._last: dict[str, str] = {}
        """By request: who had it."""
        self._on_load = world.session.balancer.on_load
        world.session.balancer.on_load = self._load_changed

    def look(self) -> None:
        """Who came and went since the last time."""
        loads = self._table.loads()
        if self._since.keys() == loads.keys():
            return
        for gone in [r for r in self._since if r not in loads]:
            del self._since[gone]
            self._last = {request: r for request, r in self._last.items() if r != gone}
        for replica_id in loads:
            if replica_id not in self._since:
                # Its load is told in the calls to come.
                self._note(replica_id, 0)

    def chosen(self, replica_id: str, request_id: str) -> None:
        """Called right after the choice, in the same step."""
        if self._last.get(request_id) != replica_id:
            assert replica_id == self._best, f"{replica_id} got request {request_id}, it was {self._best}'s turn"
        self._last[request_id] = replica_id

    def _load_changed(self, replica: Replica, load: int) -> None:
        self._on_load(replica, load)
        self.look()
        if replica.id not in self._since:
            return
        if load > self._since[replica.id][0]:
            self._best = min(self._since, key=self._since.__getitem__)
        self._note(replica.id, load)

    def _note(self, replica_id: str, load: int) -> None:
        self._num_changes += 1
        self._since[replica_id] = (load, self._num_changes)
