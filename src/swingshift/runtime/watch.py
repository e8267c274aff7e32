"""Watches a run from the side: replicas that do not answer, and a run in which nothing moves any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from swingshift.errors import ReplicaDiedError, ReplicaError, StalledError
from swingshift.runtime.ports import Replica
from swingshift.runtime.signals import WaitBoard

logger = logging.getLogger(__name__)


class HealthChecks:
    """Asks every serving replica each ``interval_s`` whether it still works.

    Generation has no deadline of its own, so without this a hung engine would be found at the next weight sync.
    """

    def __init__(
        self,
        serving: Callable[[], Sequence[Replica]],
        on_death: Callable[[Replica, Exception], None],
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._serving = serving
        self._on_death = on_death
        self._interval_s = interval_s
        self._timeout_s = timeout_s

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.gather(*(self._check(replica) for replica in self._serving()))

    async def _check(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await replica.health()
        except TimeoutError:
            error: Exception = ReplicaDiedError(f"{replica.id} did not answer a health check")
        except ReplicaError as failed:
            error = failed
        else:
            return
        # It may have been lent and returned, or taken out, while it was asked.
        if replica in self._serving():
            self._on_death(replica, error)


class Watchdog:
    """Ends a run in which nothing has moved for ``timeout_s``, with an error that says who waits for what.

    ``progress()`` is equal twice if nothing moved in between; ``is_excused()`` is true while something is under way
    that has a deadline of its own, such as training.
    """

    def __init__(
        self,
        progress: Callable[[], object],
        is_excused: Callable[[], bool],
        board: WaitBoard,
        *,
        timeout_s: float,
    ) -> None:
        self._progress = progress
        self._is_excused = is_excused
        self._board = board
        self._timeout_s = timeout_s

    async def run(self) -> None:
        """Raises StalledError."""
        loop = asyncio.get_running_loop()
        seen, since_s = self._progress(), loop.time()
        while True:
            await asyncio.sleep(self._timeout_s / 4)
            now, progress = loop.time(), self._progress()
            if progress != seen or self._is_excused():
                seen, since_s = progress, now
            elif now - since_s >= self._timeout_s:
                raise StalledError(
                    f"nothing has moved for {now - since_s:.0f} s (async_training.watchdog_timeout_s="
                    f"{self._timeout_s:g}): {self._board.describe(now)}"
                )
