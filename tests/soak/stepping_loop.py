"""A virtual loop that state machines step: tasks live on between two rules."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from swingshift.sim.loop import VirtualTimeLoop

T = TypeVar("T")
TURNS = 60


class SteppingLoop:
    def __init__(self) -> None:
        self.loop = VirtualTimeLoop()
        self._runner = asyncio.Runner(loop_factory=lambda: self.loop)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(main)

    def settle(self) -> None:
        """Let everything happen that can happen without time passing."""

        async def turns() -> None:
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.run(turns())

    def close(self) -> None:
        self._runner.close()
