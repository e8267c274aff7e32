"""Validation between two global steps: run to its end or given up, and what it cost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from swingshift.core.types import WeightVersion
from swingshift.runtime.step_rollouter import StepRollouter
from swingshift.runtime.validator import finish_or_give_up

logger = logging.getLogger(__name__)


class StepValidation:
    """Training's own groups in flight go on meanwhile; what that costs is part of the next step's row."""

    def __init__(
        self,
        validate: Callable[[WeightVersion], Coroutine[Any, Any, None]],
        rollouter: StepRollouter,
        wait_for_replica: Callable[[], Awaitable[bool]],
        now: Callable[[], float],
    ) -> None:
        self._validate = validate
        self._rollouter = rollouter
        self._wait_for_replica = wait_for_replica
        self._now = now
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._cost = (0.0, 0)

    def stop(self) -> None:
        """Give up the one under way; start no other."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    def take_cost(self) -> tuple[float, int]:
        """Seconds, and groups that training generated meanwhile, since it was last called."""
        cost, self._cost = self._cost, (0.0, 0)
        return cost

    async def run(
        self,
        version: WeightVersion,
        begin: Callable[[], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        """``begin`` sees to it that somebody serves, ``end`` undoes that; both count in the cost."""
        started_s, generated = self._now(), self._rollouter.ledger.num_generated
        await begin()
        if not self._stopped:
            async with asyncio.TaskGroup() as tasks:
                self._task = tasks.create_task(self._validate(version), name="validation")
                await finish_or_give_up(
                    self._task,
                    self._rollouter.changed,
                    lambda: self._rollouter.num_replicas > 0,
                    self._wait_for_replica,
                )
            if self._task.cancelled():
                logger.warning("the validation under way is given up")
        await end()
        self._rollouter.validated()
        self._cost = (self._now() - started_s, self._rollouter.ledger.num_generated - generated)
