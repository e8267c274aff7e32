"""The load balancer against a simple model: members, lives, leases, and who waits while nothing is routable."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stepping_loop import SteppingLoop

from swingshift.core.routing import Lease, RoutingTable
from swingshift.core.types import ReplicaKind
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.ports import Replica
from swingshift.runtime.signals import WaitBoard

NAMES = st.sampled_from([f"r{i}" for i in range(4)])
REQUESTS = st.sampled_from([f"q{i}" for i in range(8)])


class FakeReplica:
    kind = ReplicaKind.STANDALONE
    devices = ("d",)

    def __init__(self, name: str) -> None:
        self.id = name


class BalancerMachine(RuleBasedStateMachine):
    """``running``: lease and task by request. ``lives``: requests of each routable replica's life, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.stepping = SteppingLoop()
        self.board = WaitBoard()
        self.balancer = self.stepping.run(self._make())
        self.replicas: dict[str, Any] = {f"r{i}": FakeReplica(f"r{i}") for i in range(4)}
        self.members: list[str] = []
        self.lives: dict[str, list[str]] = {}
        self.running: dict[str, Lease] = {}
        self.waiting: dict[str, asyncio.Task[tuple[Lease, Replica]]] = {}
        self.last: dict[str, str] = {}
        self.told: dict[str, int] = {}

    async def _make(self) -> LoadBalancer:
        balancer = LoadBalancer(RoutingTable(), self.board, 1e9)
        balancer.on_load = lambda replica, load: self.told.__setitem__(replica.id, load)
        return balancer

    def teardown(self) -> None:
        self.stepping.close()

    # --- membership -------------------------------------------------------------------------------------------

    @rule(names=st.sets(NAMES, min_size=1))
    def add(self, names: set[str]) -> None:
        new = sorted(names - set(self.members))
        self.balancer.add([self.replicas[n] for n in new])
        self.members += new
        self.lives.update({n: [] for n in new})
        self._admit()

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.balancer.remove([self.replicas[name]])
        if name in self.members:
            self.members.remove(name)
        self._end_life(name)

    @rule(name=NAMES)
    def suspend(self, name: str) -> None:
        self.balancer.suspend([self.replicas[name]])
        self._end_life(name)

    @rule()
    def restore(self) -> None:
        self.balancer.restore([self.replicas[n] for n in sorted(self.replicas)])
        self.lives.update({n: [] for n in self.members if n not in self.lives})
        self._admit()

    def _end_life(self, name: str) -> None:
        self.lives.pop(name, None)
        self.last = {q: r for q, r in self.last.items() if r != name}

    # --- requests ---------------------------------------------------------------------------------------------

    @rule(request=REQUESTS)
    def ask(self, request: str) -> None:
        if request in self.running or request in self.waiting:
            return

        async def start() -> asyncio.Task[tuple[Lease, Replica]]:
            return asyncio.ensure_future(self.balancer.acquire(request))

        self.waiting[request] = self.stepping.run(start())
        self._admit()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        """Perhaps from a life that is over, perhaps twice."""
        request = data.draw(st.sampled_from(sorted(self.running)))
        lease = self.running.pop(request)
        for _ in range(1 + twice):
            self.balancer.release(lease)
        if self._is_alive(lease):
            self.lives[lease.replica_id].remove(request)

    @rule()
    def clear_sticky(self) -> None:
        num_cleared, loads = self.balancer.table.clear_sticky()
        assert loads == {name: len(requests) for name, requests in self.lives.items()}
        assert num_cleared >= len(self.last)
        self.last.clear()

    def _is_alive(self, lease: Lease) -> bool:
        return lease.request_id in self.lives.get(lease.replica_id, []) and self.balancer.table.is_alive(lease)

    def _admit(self) -> None:
        """Whoever waited has been let in if anything is routable, and to the right one."""
        self.stepping.settle()
        for request, task in list(self.waiting.items()):
            assert task.done() == bool(self.lives), f"{request} waits while {list(self.lives)} are routable"
            if not task.done():
                continue
            lease, replica = task.result()
            assert (lease.replica_id, lease.request_id) == (replica.id, request) and replica.id in self.lives
            if (home := self.last.get(request)) is not None:
                assert replica.id == home, "a sticky request moved"
            else:
                assert len(self.lives[replica.id]) == min(map(len, self.lives.values())), "not the least loaded"
            self.lives[replica.id].append(request)
            self.last[request] = replica.id
            self.running[request] = lease
            del self.waiting[request]

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def counts_are_those_of_the_lives(self) -> None:
        table = self.balancer.table
        assert table.loads() == {name: len(requests) for name, requests in self.lives.items()}
        assert {name: table.request_ids(name) for name in self.lives} == self.lives
        assert table.total_inflight == sum(map(len, self.lives.values()))
        assert {r.id for r in self.balancer.members()} == set(self.members)
        assert {r.id for r in self.balancer.routable()} == set(self.lives)
        assert self.balancer.num_members == len(self.members)

    @invariant()
    def loads_were_told(self) -> None:
        told = {name: self.told.get(name, 0) for name in self.replicas}
        assert told == {name: len(self.lives.get(name, [])) for name in self.replicas}

    @invariant()
    def only_who_must_waits(self) -> None:
        assert not (self.waiting and self.lives)
        waits = self.board.describe(0.0)
        assert all(f"request {q} waits" in waits for q in self.waiting)
        assert self.waiting or waits == "nobody waits"


TestBalancer = BalancerMachine.TestCase
TestBalancer.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
