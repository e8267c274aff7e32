"""Brings replicas back that failed: restarted with back-off, given weights, and only then routable.

A standalone replica that dies again and again without surviving a weight sync ends the run with an error that says
so. A hybrid one shares the trainer's process, so only its engine is made anew; if that fails again and again without
surviving a lending, it stays out, since training can go on without lending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from swingshift.core.types import ReplicaId, ReplicaKind
from swingshift.errors import ReplicaError, TooManyFailuresError
from swingshift.runtime.ports import Replica, ReplicaStarter
from swingshift.runtime.signals import Signal, WaitBoard

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """``max_restarts`` in a row of one replica; 0: a replica that died stays out and the run goes on without it."""

    max_restarts: int = 3
    first_back_off_s: float = 1.0
    longest_back_off_s: float = 60.0
    start_timeout_s: float = 600.0

    def back_off_s(self, num_deaths: int) -> float:
        return min(self.first_back_off_s * 2.0 ** (num_deaths - 1), self.longest_back_off_s)


class ReplicaRestarts:
    """``join`` gives a new standalone replica weights and lets it serve; ``rejoin`` also restarts (hybrid ones)."""

    def __init__(
        self,
        starter: ReplicaStarter | None,
        settings: RestartSettings,
        board: WaitBoard,
        join: Callable[[Replica], Awaitable[None]],
        rejoin: Callable[[Replica, Callable[[Replica], Awaitable[Replica]]], Awaitable[None]],
    ) -> None:
        self._starter = starter
        self._settings = settings
        self._join = join
        self._rejoin = rejoin
        self._changed = Signal(board)
        self._tasks: asyncio.TaskGroup | None = None
        self._under_way: dict[ReplicaId, asyncio.Task[None]] = {}
        self._deaths: dict[ReplicaId, int] = {}
        self._joined: set[ReplicaId] = set()
        self.num_restarts = 0
        self._stopped = False

    def stop(self) -> None:
        """The run is about to end: nobody waits for replicas any more."""
        self._stopped = True
        self._changed.notify()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    async def cancel(self) -> None:
        """The run ends: nobody needs new replicas."""
        self._tasks = None
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_pending(self) -> bool:
        """Is a replica about to come back?"""
        return bool(self._under_way)

    def lost(self, replica: Replica, error: Exception) -> None:
        """A replica was taken out."""
        if self._starter is None or self._settings.max_restarts == 0 or self._tasks is None:
            return
        assert replica.id not in self._under_way, f"{replica.id} was lost twice"
        task = self._tasks.create_task(self._bring_back(replica, error), name=f"restart of {replica.id}")
        self._under_way[replica.id] = task

    def survived(self, replicas: Sequence[Replica]) -> None:
        """These came through a weight sync or a lending: whatever killed them before is over."""
        for replica in replicas:
            if replica.id in self._joined:
                self._joined.discard(replica.id)
                self._deaths.pop(replica.id, None)

    async def wait(self) -> bool:
        """Wait until a replica is back; False if none is about to come, or the run is stopped."""
        if not self.is_pending or self._stopped:
            return False
        before = self.num_restarts
        await self._changed.until(
            lambda: self.num_restarts > before or not self.is_pending or self._stopped,
            who="train loop",
            what=lambda: f"the restart of {', '.join(self._under_way)}",
        )
        return self.num_restarts > before

    async def _bring_back(self, replica: Replica, error: Exception) -> None:
        try:
            while self._may_try(replica, error):
                delay_s = self._settings.back_off_s(self._deaths[replica.id])
                logger.warning("replica %s is restarted in %g s", replica.id, delay_s)
                await asyncio.sleep(delay_s)
                try:
                    await self._restart(replica)
                except ReplicaError as failed:
                    logger.warning("replica %s did not come back: %s", replica.id, failed)
                    error = failed
                    continue
                self.num_restarts += 1
                self._joined.add(replica.id)
                logger.warning("replica %s is back", replica.id)
                return
        finally:
            self._under_way.pop(replica.id, None)
            self._changed.notify()

    def _may_try(self, replica: Replica, error: Exception) -> bool:
        """Count a death. After too many in a row: TooManyFailuresError, or False for a replica that can be spared."""
        deaths = self._deaths[replica.id] = self._deaths.get(replica.id, 0) + 1
        if deaths <= self._settings.max_restarts:
            return True
        failed = (
            f"replica {replica.id} failed {deaths} times in a row, more than "
            f"async_training.max_replica_restarts={self._settings.max_restarts} allows; the latest: {error}"
        )
        if replica.kind is ReplicaKind.HYBRID:
            logger.error("%s. It stays out", failed)
            return False
        raise TooManyFailuresError(failed) from error

    async def _restart(self, replica: Replica) -> None:
        """Raises ReplicaError if no other replica has joined in its place."""
        assert self._starter is not None
        if replica.kind is ReplicaKind.HYBRID:
            await self._rejoin(replica, self._starter.restart)
        else:
            await self._join(await self._start_another(replica))

    async def _start_another(self, replica: Replica) -> Replica:
        assert self._starter is not None
        timeout_s = self._settings.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await self._starter.restart(replica)
        except TimeoutError:
            raise ReplicaError(f"{replica.id} was not ready within {timeout_s:g} s") from None
