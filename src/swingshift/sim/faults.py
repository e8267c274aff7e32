"""Faults to inject at port calls: delays, errors and deaths, by replica or trainer name and verb."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

FaultHook = Callable[[str, str], Awaitable[None]]
"""Awaited at the start of every port call with the port's name and the verb; may sleep or raise."""


async def no_faults(name: str, verb: str) -> None:
    pass


@dataclass(slots=True)
class PlannedFaults:
    """The nth call of ``(name, verb)`` meets the given error or delay; ``log`` keeps the order of all calls."""

    errors: dict[tuple[str, str, int], Exception] = field(default_factory=dict)
    delays_s: dict[tuple[str, str], float] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)

    async def __call__(self, name: str, verb: str) -> None:
        self.log.append((name, verb))
        count = self._counts[name, verb] = self._counts.get((name, verb), 0) + 1
        delay_s = self.delays_s.get((name, verb), 0.0)
        if delay_s:
            await asyncio.sleep(delay_s)
        error = self.errors.get((name, verb, count))
        if error is not None:
            raise error
