"""One save at a time. What it does to the disk cannot be called back, so it outlives who asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from swingshift.errors import CheckpointError

logger = logging.getLogger(__name__)


class SaveCall:
    """Threads and the trainer go on writing when whoever waits for them is cancelled. A save that began meanwhile
    would clear away what they write, so none does."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._newest: asyncio.Future[object] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._newest is not None and not self._newest.done()

    async def run(self, begin: Callable[[], Awaitable[object]], what: str) -> None:
        """``begin`` a save once no other is under way, and wait for its end. CheckpointError past the deadline.

        If this task is cancelled the save goes on, see ``settle``.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                while self.is_under_way:
                    await self._end()
                self._newest = asyncio.ensure_future(begin())
                await asyncio.shield(self._newest)
        except TimeoutError:
            raise CheckpointError(
                f"{what} was not written within {self._timeout_s:g} s (async_training.train_timeout_s)"
            ) from None

    async def settle(self, timeout_s: float) -> None:
        """After an error elsewhere: let the save under way finish, as far as it does within ``timeout_s``."""
        if not self.is_under_way:
            return
        await self._end(timeout_s)
        assert self._newest is not None
        if self._newest.done() and not self._newest.cancelled() and self._newest.exception() is not None:
            logger.error("the checkpoint under way could not be written: %s", self._newest.exception())

    async def abandon(self) -> None:
        """Leave no call behind. What its thread is doing then, it does to the end."""
        if self.is_under_way:
            assert self._newest is not None
            self._newest.cancel()
            await self._end()

    async def _end(self, timeout_s: float | None = None) -> None:
        assert self._newest is not None
        await asyncio.wait([self._newest], timeout=timeout_s)
