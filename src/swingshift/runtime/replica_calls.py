"""ReplicaCalls: the steps of transitions and syncs at one replica, each call within its deadline.

Nothing is kept between two calls. Who is called when, and who is taken out for failing, the controller knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from swingshift.core.types import ReplicaKind, WeightVersion
from swingshift.errors import ReplicaDiedError, ReplicaError
from swingshift.runtime.ports import Replica, WeightSync

logger = logging.getLogger(__name__)

SLEEP_LEVEL = 2

T = TypeVar("T")


class NoAnswerError(ReplicaDiedError):
    """The deadline passed. Whether the process lives, and what memory it holds, is unknown."""


class ReplicaCalls:
    """A step raises the ReplicaError of the first call that fails, unless it says otherwise; past a deadline
    NoAnswerError."""

    def __init__(self, weight_sync: WeightSync, timeout_s: float, release_kv_cache: bool) -> None:
        self._weight_sync = weight_sync
        self._timeout_s = timeout_s
        self._release_kv_cache = release_kv_cache

    async def bounded(self, call: Awaitable[T]) -> T:
        """One call to a replica. NoAnswerError past its deadline."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError:
            raise NoAnswerError(f"no answer within {self._timeout_s:g} s") from None

    # --- weights ----------------------------------------------------------------------------------------------

    async def make_ready(self, replica: Replica) -> None:
        """Nothing in flight, and room for weights: what must be so before they are written."""
        await self.bounded(replica.abort())
        if self._release_kv_cache:
            await self.bounded(replica.release_kv_cache())

    async def write_weights(self, replica: Replica, version: WeightVersion) -> None:
        """The published weights, and a KV cache that knows no others. The replica stays paused."""
        if replica.kind is ReplicaKind.HYBRID:
            await self.bounded(self._weight_sync.sync_hybrid(replica, version))
        else:
            await self.bounded(self._weight_sync.sync_standalone(replica, version))
        # Also where the cache was kept: prefixes cached under the old weights must be forgotten.
        await self.bounded(replica.resume_kv_cache())

    # --- lending ----------------------------------------------------------------------------------------------

    async def wake(self, replica: Replica, version: WeightVersion) -> None:
        """A hybrid replica: weights, their version, and only then the KV cache. It stays paused."""
        await self.bounded(replica.wake_up(("weights",)))
        await self.bounded(self._weight_sync.sync_hybrid(replica, version))
        await self.bounded(replica.wake_up(("kv_cache",)))

    async def resume(self, replica: Replica) -> None:
        """Run requests (again)."""
        await self.bounded(replica.resume_generation())

    async def refuse(self, replica: Replica) -> None:
        """Abort what is in flight and accept nothing until ``resume``."""
        await self.bounded(replica.abort(refuse=True))

    async def sleep(self, replica: Replica) -> None:
        """Free KV cache and weights. Only while nothing is in flight."""
        await self.bounded(replica.sleep(SLEEP_LEVEL))

    # --- rebalancing ------------------------------------------------------------------------------------------

    async def abort_and_resume(self, replica: Replica) -> None:
        """Send all its requests elsewhere. It is resumed whatever became of the abort.

        Raises ReplicaError if it cannot resume, ReplicaDiedError if the abort showed that it is gone. One that
        cannot abort but goes on serving is only warned about.
        """
        failed: ReplicaError | None = None
        try:
            await self.bounded(replica.abort())
        except ReplicaError as error:
            failed = error
        await self.resume(replica)
        if isinstance(failed, ReplicaDiedError):
            raise failed
        if failed is not None:
            _warn_of_kept_requests(replica, failed)

    async def move_requests(self, replica: Replica, request_ids: Sequence[str]) -> None:
        """Send these requests elsewhere. Raises ReplicaDiedError; after any other error they stay where they are."""
        try:
            await self.bounded(replica.abort_requests(request_ids))
        except ReplicaDiedError:
            raise
        except ReplicaError as error:
            _warn_of_kept_requests(replica, error)


def _warn_of_kept_requests(replica: Replica, error: ReplicaError) -> None:
    logger.warning("replica %s kept its requests, it could not abort them: %s", replica.id, error)
