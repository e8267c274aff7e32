"""The controller against a simple model: replicas whose ports fail leave, all others stay, and the state is true."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepping_loop import SteppingLoop

from swingshift.core.lifecycle import LendingState
from swingshift.core.routing import RoutingTable
from swingshift.core.timeline import Timeline
from swingshift.core.types import ReplicaKind
from swingshift.errors import NoReplicaError, ReplicaDiedError, ReplicaError
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.signals import WaitBoard
from swingshift.schedule import Rebalance
from swingshift.sim.device import SimDevice
from swingshift.sim.replica import ReplicaCost, SimReplica
from swingshift.sim.trainer import SimTrainer, SimWeightSync, TrainerCost
from swingshift.sim.workload import constant_lengths

STANDALONE = [f"standalone-{i}" for i in range(2)]
HYBRID = [f"hybrid-{i}" for i in range(2)]
SYNC_VERBS = ("abort", "release_kv_cache", "resume_kv_cache", "resume_generation")
VERBS = (*SYNC_VERBS, "sleep", "wake_up")
TIMEOUT_S = 5.0


class ControllerMachine(RuleBasedStateMachine):
    """``armed``: by replica the verb that fails the next time it is called, and how."""

    @initialize()
    def begin(self) -> None:
        self.armed: dict[str, tuple[str, str]] = {}
        self.alive = [*STANDALONE, *HYBRID]
        self.is_lent = False
        self.is_over = False
        self.version = -1
        self.met: set[str] = set()
        self.stepping = SteppingLoop()
        self.stepping.run(self._build())

    async def _build(self) -> None:
        devices = {name: SimDevice(name) for name in self.alive}
        self.replicas = {
            name: SimReplica(
                name,
                ReplicaKind(name.partition("-")[0]),
                [devices[name]],
                ReplicaCost(),
                constant_lengths(5),
                self._fault,
            )
            for name in self.alive
        }
        self.trainer = SimTrainer([devices[name] for name in HYBRID], TrainerCost())
        self.devices = devices
        board = WaitBoard()
        self.balancer = LoadBalancer(RoutingTable(), board, 1e9)
        now = asyncio.get_running_loop().time
        self.controller = DynamicResourceController(
            standalone=[self.replicas[name] for name in STANDALONE],
            hybrid=[self.replicas[name] for name in HYBRID],
            balancer=self.balancer,
            trainer=self.trainer,
            weight_sync=SimWeightSync(self.trainer),
            lanes=DeviceLanes(Timeline(), now, devices),
            now=now,
            call_timeout_s=TIMEOUT_S,
        )

    async def _fault(self, name: str, verb: str) -> None:
        if self.armed.get(name, ("", ""))[0] != verb:
            return
        _, how = self.armed.pop(name)
        self.met.add(name)
        event(f"{verb} {how}")
        if how == "hangs":
            await asyncio.get_running_loop().create_future()
        raise ReplicaDiedError("died") if how == "dies" else ReplicaError("fails")

    def teardown(self) -> None:
        if hasattr(self, "stepping"):
            self.stepping.close()

    # --- operations -------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_over)
    @rule(data=st.data(), verb=st.sampled_from(VERBS), how=st.sampled_from(["fails", "dies", "hangs"]))
    def arm(self, data: st.DataObject, verb: str, how: str) -> None:
        if self.alive:
            self.armed[data.draw(st.sampled_from(self.alive))] = (verb, how)

    @precondition(lambda self: not self.is_over)
    @rule()
    def sync(self) -> None:
        self.version += 1
        try:
            self._run(self.controller.sync_weights(self.version))
        except NoReplicaError:
            assert not self.alive
            self.is_over = True
        else:
            assert self.alive

    @precondition(lambda self: not self.is_over and self.version >= 0 and not self.is_lent and self._hybrid())
    @rule()
    def activate(self) -> None:
        self.is_lent = self._run(self.controller.activate())
        assert self.is_lent is bool(self._hybrid())

    @precondition(lambda self: not self.is_over and self.is_lent)
    @rule()
    def deactivate(self) -> None:
        self._run(self.controller.deactivate())
        self.is_lent = False

    @precondition(lambda self: not self.is_over and self.version >= 0)
    @rule(kind=st.sampled_from(Rebalance))
    def rebalance(self, kind: Rebalance) -> None:
        keeps = {name for name, (verb, how) in self.armed.items() if verb == "abort" and how == "fails"}
        self._run(self.controller.rebalance(kind), keeps if kind is Rebalance.FULL else set())

    @precondition(lambda self: not self.is_over and self.version >= 0)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """While it serves: a request of the client shows it."""
        serving = sorted(self._serving())
        if serving:
            name = data.draw(st.sampled_from(serving))
            self.replicas[name].die()
            self.controller.replica_died(self.replicas[name], ReplicaDiedError("seen by the client"))
            self.alive.remove(name)

    @precondition(lambda self: not self.is_over and len(self.alive) < len(STANDALONE) + len(HYBRID))
    @rule(
        data=st.data(),
        verb=st.sampled_from(["nothing", *VERBS]),
        how=st.sampled_from(["fails", "dies", "hangs"]),
        dies_first=st.booleans(),
    )
    def come_back(self, data: st.DataObject, verb: str, how: str, dies_first: bool) -> None:
        """A replica that is out is restarted, perhaps with a fault on its way."""
        name = data.draw(st.sampled_from([n for n in (*STANDALONE, *HYBRID) if n not in self.alive]))
        old = self.replicas[name]
        if dies_first and not old.is_dead:
            old.die()
        self.armed[name] = (verb, how)
        try:
            self._run(self._restarted(old))
        except ReplicaError:
            assert verb != "nothing"
            if not self.replicas[name].is_dead:
                self.replicas[name].die()
        else:
            self.alive = [n for n in (*STANDALONE, *HYBRID) if n in {*self.alive, name}]
            event(f"{name} is back, lent: {self.is_lent}")
        self.armed.pop(name, None)

    async def _restarted(self, old: SimReplica) -> None:
        if old.kind is ReplicaKind.STANDALONE:
            await self.controller.join(await self._start_another(old))
        else:
            await self.controller.rejoin(old, self._start_another)

    async def _start_another(self, old: Any) -> SimReplica:
        if not old.is_dead:
            old.die()
        self.replicas[old.id] = old.another()
        return self.replicas[old.id]

    @precondition(lambda self: self.is_over)
    @rule()
    def start_again(self) -> None:
        self.stepping.close()
        self.begin()

    def _run(self, operation: Any, keeps: set[str] | None = None) -> Any:
        """Whoever met a fault is out afterwards, unless it ``keeps`` serving."""
        self.met.clear()
        try:
            return self.stepping.run(operation)
        finally:
            self.alive = [name for name in self.alive if name not in self.met - (keeps or set())]
            self.armed = {name: fault for name, fault in self.armed.items() if name in self.alive}

    def _hybrid(self) -> list[str]:
        return [name for name in HYBRID if name in self.alive]

    def _serving(self) -> set[str]:
        lent = self._hybrid() if self.is_lent else []
        standalone = [name for name in STANDALONE if name in self.alive] if self.version >= 0 else []
        return {*standalone, *lent}

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def members_are_who_serves(self) -> None:
        if not hasattr(self, "controller") or self.is_over:
            return
        controller, serving = self.controller, self._serving()
        assert {r.id for r in self.balancer.members()} == {r.id for r in self.balancer.routable()} == serving
        assert sorted(r.id for r in (*controller.standalone, *controller.hybrid)) == sorted(self.alive)
        gone = {*STANDALONE, *HYBRID} - set(self.alive)
        assert {name for name, _ in controller.failures} >= gone
        assert all(r is self.replicas[r.id] for r in (*controller.standalone, *controller.hybrid))
        for name in serving:
            replica = self.replicas[name]
            assert replica.has_weights and replica.has_kv_cache and replica.is_accepting and not replica.is_refusing
            assert replica.version == self.version

    @invariant()
    def the_state_is_true(self) -> None:
        if not hasattr(self, "controller") or self.is_over:
            return
        state = LendingState.HYBRID_ACTIVE if self.is_lent else LendingState.STANDALONE_ONLY
        assert self.controller.state is state
        assert self.controller.can_lend is (bool(self._hybrid()) and not self.is_lent)
        assert self.controller.only_hybrid is not any(name in self.alive for name in STANDALONE)
        for name in HYBRID:
            device, replica = self.devices[name], self.replicas[name]
            device.check()
            assert device.training_loaded is not self.is_lent
            if not self.is_lent:
                assert not replica.is_awake, f"{name} holds memory on the trainer's device"


TestController = ControllerMachine.TestCase
TestController.settings = settings(max_examples=100, stateful_step_count=30, deadline=None, derandomize=True)
