"""DynamicResourceController: performs lending transitions and weight syncs, times them, handles their failures.

It decides nothing. The train loop (one caller, one operation at a time) asks a policy and tells the controller.
No state flips before its effect happened, and a replica is never routable before it holds current weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from swingshift.core.cost import SwitchCosts
from swingshift.core.lifecycle import LendingState, advance
from swingshift.core.types import DeviceState, WeightVersion
from swingshift.errors import NoReplicaError, ReplicaDiedError, ReplicaError, TrainerError, TransitionError
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.ports import Replica, TrainWorker, WeightSync
from swingshift.runtime.replica_calls import NoAnswerError, ReplicaCalls
from swingshift.schedule.base import Rebalance

logger = logging.getLogger(__name__)


class DynamicResourceController:
    """``standalone`` replicas start awake without weights, ``hybrid`` ones asleep; nobody is routable yet."""

    def __init__(
        self,
        *,
        standalone: Sequence[Replica],
        hybrid: Sequence[Replica],
        balancer: LoadBalancer,
        trainer: TrainWorker,
        weight_sync: WeightSync,
        lanes: DeviceLanes,
        now: Callable[[], float],
        call_timeout_s: float = 600.0,
        release_kv_cache: bool = True,
    ) -> None:
        self.state = LendingState.STANDALONE_ONLY
        self.standalone = list(standalone)
        self.hybrid = list(hybrid)
        self.version: WeightVersion = -1
        self.costs = SwitchCosts()
        self.failures: list[tuple[str, str]] = []
        """Replicas taken out, with the reason."""
        self._balancer = balancer
        self._trainer = trainer
        self._weight_sync = weight_sync
        self._lanes = lanes
        self._now = now
        self._timeout_s = call_timeout_s
        self._calls = ReplicaCalls(weight_sync, call_timeout_s, release_kv_cache)
        self._awake_failed: dict[Replica, Exception] = {}
        """Hybrid replicas taken out while lent: they must sleep before the trainer touches their devices."""
        self._busy = asyncio.Lock()
        """Held by whoever changes weights or membership: restarted replicas join between two operations."""
        self.on_lost: Callable[[Replica, Exception], None] = lambda replica, error: None
        """A replica was taken out."""
        self.on_survived: Callable[[Sequence[Replica]], None] = lambda replicas: None
        """Replicas came through a weight sync, or a lending from its beginning to its end."""
        self.expects_replicas: Callable[[], bool] = lambda: False
        """Is a replica about to come back?"""

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def is_hybrid_active(self) -> bool:
        return self.state is LendingState.HYBRID_ACTIVE

    @property
    def can_lend(self) -> bool:
        """Is there a hybrid replica to activate?"""
        return bool(self.hybrid) and self.state is LendingState.STANDALONE_ONLY

    @property
    def only_hybrid(self) -> bool:
        """No standalone replica lives: by configuration, or because the last one died."""
        return not self.standalone

    def replica_died(self, replica: Replica, error: Exception) -> None:
        """A call to the replica showed that it is gone. Training goes on without it while anybody is left."""
        self._retire(replica, error)

    # --- weights ----------------------------------------------------------------------------------------------

    async def sync_weights(self, version: WeightVersion) -> None:
        """Give every replica that serves the trainer's current weights as ``version``.

        Standalone replicas always; hybrid ones if a policy kept them active. All pause first and are routed to
        again together, so that waiting requests spread over all of them. Replicas that fail are taken out.
        """
        async with self._busy:
            assert version > self.version, "weight versions only grow"
            active_hybrid = self.hybrid if self.is_hybrid_active else []
            serving = [*self.standalone, *active_hybrid]
            devices = [d for replica in serving for d in replica.devices]
            self._balancer.suspend(serving)
            with self._lanes.phase(devices, DeviceState.SYNCING):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._trainer_call("publish weights", self._weight_sync.publish(version)))
                    tasks.create_task(self._each(serving, self._calls.make_ready))
                await self._each(self._living(serving), partial(self._calls.write_weights, version=version))
                self.version = version
                await self._each(self._living(serving), self._calls.resume)
            serving = self._living(serving)
            newcomers = [r for r in serving if r not in self._balancer.members()]
            self._balancer.restore(serving)
            if newcomers:
                self._balancer.add(newcomers)
            self.on_survived(serving)
            if not self.standalone and not self.hybrid and not self.expects_replicas():
                raise NoReplicaError(f"no replica is left: {self.why_retired()}")

    async def join(self, replica: Replica) -> None:
        """A standalone replica that was restarted: current weights first, and only then requests.

        Raises ReplicaError if it fails; it has not joined then.
        """
        async with self._busy:
            if self.version >= 0:
                with self._lanes.phase(replica.devices, DeviceState.SYNCING):
                    await self._calls.make_ready(replica)
                    await self._calls.write_weights(replica, self.version)
                    await self._calls.resume(replica)
                self._balancer.add((replica,))
            self.standalone.append(replica)

    async def rejoin(self, replica: Replica, restart: Callable[[Replica], Awaitable[Replica]]) -> None:
        """A hybrid replica that was taken out: ``restart`` replaces its engine by one that sleeps.

        Whoever else needs its device waits meanwhile. If the devices are lent, the new engine gets weights and then
        requests; else it waits to be lent. Raises ReplicaError if it fails; it has not joined then.
        """
        async with self._busy:
            another = await self._calls.bounded(restart(replica))
            # With the engine its memory is gone.
            self._awake_failed.pop(replica, None)
            if self.is_hybrid_active:
                with self._lanes.phase(another.devices, DeviceState.SWITCHING):
                    try:
                        await self._calls.wake(another, self.version)
                        await self._calls.resume(another)
                    except ReplicaError as error:
                        await self._put_back({another: error})
                        raise
                self._balancer.add((another,))
            self.hybrid.append(another)

    async def abort_all(self) -> None:
        """The end of the run: every replica returns what it has, and accepts nothing that matters any more."""
        async with self._busy:
            routable = self._balancer.routable()
            self._balancer.suspend(routable)
            await self._each(routable, lambda r: self._calls.bounded(r.abort()))

    # --- lending ----------------------------------------------------------------------------------------------

    async def activate(self) -> bool:
        """Lend: trainer memory out, weights in, then routing, then requests. False if no replica could be woken.

        Replicas that fail are put back to sleep and taken out; if one cannot even be put to sleep its memory is
        in doubt and TransitionError ends the run.
        """
        async with self._busy:
            self.state = advance(self.state, LendingState.ACTIVATING)
            started = self._now()
            with self._lanes.phase(self._trainer.devices, DeviceState.SWITCHING):
                await self._trainer_call("offload", self._trainer.offload())
                failed = await self._try_each(self.hybrid, partial(self._calls.wake, version=self.version))
                await self._put_back(failed)
                self._balancer.add(self.hybrid)
                failed = await self._try_each(self.hybrid, self._calls.resume)
                await self._put_back(failed)
                if not self.hybrid:
                    await self._put_back(self._awake_failed)
                    await self._trainer_call("onload", self._trainer.onload())
                    self.state = advance(self.state, LendingState.STANDALONE_ONLY)
                    logger.error("no hybrid replica could be woken; training goes on without lending")
                    return False
            self.state = advance(self.state, LendingState.HYBRID_ACTIVE)
            self.costs.activated(self._now() - started)
            return True

    async def deactivate(self) -> None:
        """Take back: routing first, then requests, then rollout memory, and only then the trainer's memory."""
        async with self._busy:
            self.state = advance(self.state, LendingState.DEACTIVATING)
            started = self._now()
            with self._lanes.phase(self._trainer.devices, DeviceState.SWITCHING):
                self._balancer.remove(self.hybrid)
                failed = await self._try_each(self.hybrid, self._calls.refuse)
                failed |= await self._try_each(self._without(failed), self._calls.sleep)
                await self._put_back(failed | self._awake_failed)
                await self._trainer_call("onload", self._trainer.onload())
            self.state = advance(self.state, LendingState.STANDALONE_ONLY)
            self.costs.deactivated(self._now() - started)
            self.on_survived(self.hybrid)

    async def rebalance(self, kind: Rebalance) -> None:
        """Redistribute requests in flight. Every replica that was paused is resumed, whatever fails.

        A replica that cannot abort but goes on serving stays in; one that cannot resume is taken out.
        """
        async with self._busy:
            table = self._balancer.table
            routable = self._balancer.routable()
            if kind is Rebalance.FULL:
                table.clear_sticky()
                await self._each(routable, self._calls.abort_and_resume)
                return
            excess = table.excess()
            for request_ids in excess.values():
                table.forget_sticky(request_ids)
            moving = [r for r in routable if r.id in excess]
            await self._each(moving, lambda r: self._calls.move_requests(r, excess[r.id]))

    async def _put_back(self, failed: dict[Replica, Exception]) -> None:
        """Take hybrid replicas that failed a step out; their device must be free of rollout memory afterwards."""
        for replica, error in list(failed.items()):
            self._balancer.remove((replica,))
            try:
                await self._calls.refuse(replica)
                await self._calls.sleep(replica)
            except NoAnswerError as late:
                raise _not_safe(replica, error, late) from error
            except ReplicaDiedError:
                logger.info("replica %s is gone, and its memory with it", replica.id)
            except ReplicaError as sleep_error:
                raise _not_safe(replica, error, sleep_error) from error
            self._retire(replica, error)
            self._awake_failed.pop(replica, None)

    # --- calls ------------------------------------------------------------------------------------------------

    async def _trainer_call(self, what: str, call: Awaitable[object]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await call
        except TimeoutError:
            raise TrainerError(
                f"the trainer did not {what} within {self._timeout_s:g} s (async_training.call_timeout_s)"
            ) from None

    async def _try_each(
        self, replicas: Iterable[Replica], step: Callable[[Replica], Awaitable[object]]
    ) -> dict[Replica, Exception]:
        """Run a step (of bounded calls) on all replicas at once; returns those that failed it."""
        chosen = list(replicas)
        results = await asyncio.gather(*(step(r) for r in chosen), return_exceptions=True)
        failed: dict[Replica, Exception] = {}
        for replica, result in zip(chosen, results, strict=True):
            if isinstance(result, ReplicaError):
                failed[replica] = result
            elif isinstance(result, BaseException):
                raise result
        return failed

    async def _each(self, replicas: Iterable[Replica], step: Callable[[Replica], Awaitable[object]]) -> None:
        """Run a step on all replicas at once; whoever fails is taken out."""
        for replica, error in (await self._try_each(replicas, step)).items():
            self._retire(replica, error)

    def _living(self, replicas: Iterable[Replica]) -> list[Replica]:
        return [r for r in replicas if r in self.standalone or r in self.hybrid]

    def _without(self, failed: dict[Replica, Exception]) -> list[Replica]:
        return [r for r in self.hybrid if r not in failed]

    def _retire(self, replica: Replica, error: Exception) -> None:
        for group in (self.standalone, self.hybrid):
            if replica in group:
                if group is self.hybrid and self.state is not LendingState.STANDALONE_ONLY:
                    self._awake_failed[replica] = error
                group.remove(replica)
                self.failures.append((replica.id, str(error)))
                logger.error("replica %s is taken out: %s", replica.id, error)
                self.on_lost(replica, error)
        self._balancer.retire(replica)

    def why_retired(self) -> str:
        """Who was taken out and why, in one line."""
        return "; ".join(f"{replica_id}: {reason}" for replica_id, reason in self.failures) or "none was configured"


def _not_safe(replica: Replica, error: Exception, sleep_error: Exception) -> TransitionError:
    return TransitionError(
        f"{replica.id} failed ({error}) and could not be put to sleep either ({sleep_error}): "
        "the trainer's device is not safe to use"
    )
