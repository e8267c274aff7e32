"""Waiting on conditions by events, never by polling, and knowing at any time who waits for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait in progress."""

    who: str
    what: Callable[[], str]
    since_s: float


class WaitBoard:
    """Every wait in progress, for deadlock reports and watchdogs."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self._keys = count()

    def enter(self, wait: Wait) -> int:
        key = next(self._keys)
        self._waits[key] = wait
        return key

    def leave(self, key: int) -> None:
        del self._waits[key]

    def describe(self, now: float, limit: int = 12) -> str:
        """One line: who waits for what, and since when; the oldest waits first."""
        waits = list(self._waits.values())
        lines = [f"{w.who} waits for {w.what()} since {now - w.since_s:.3g} s" for w in waits[:limit]]
        if len(waits) > limit:
            lines.append(f"and {len(waits) - limit} more")
        return "; ".join(lines) or "nobody waits"


class Signal:
    """Something changed. Waiters name a predicate and wake once it holds.

    Predicates are evaluated by whoever notifies, so a wake-up that nobody needs costs no task switch.
    """

    def __init__(self, board: WaitBoard) -> None:
        self._board = board
        self._waiters: dict[int, tuple[Callable[[], bool], asyncio.Future[None]]] = {}
        self._keys = count()

    def notify(self) -> None:
        for predicate, future in self._waiters.values():
            if not future.done() and predicate():
                future.set_result(None)

    async def until(
        self,
        predicate: Callable[[], bool],
        *,
        who: str,
        what: Callable[[], str],
        timeout_s: float | None = None,
    ) -> None:
        """Return once ``predicate()`` holds; TimeoutError after ``timeout_s``."""
        if predicate():
            return
        loop = asyncio.get_running_loop()
        board_key = self._board.enter(Wait(who, what, loop.time()))
        key = next(self._keys)
        try:
            async with asyncio.timeout(timeout_s):
                # Another waiter may have consumed what woke this one: look again.
                while not predicate():
                    future: asyncio.Future[None] = loop.create_future()
                    self._waiters[key] = (predicate, future)
                    await future
        except TimeoutError:
            # The deadline may fall on the very moment of the wake-up.
            if not predicate():
                raise
        finally:
            self._waiters.pop(key, None)
            self._board.leave(board_key)
