"""The validations of one run: when one is due, the one that runs beside training, and the row it leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from swingshift.core.types import WeightVersion
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.validator import finish_or_give_up

logger = logging.getLogger(__name__)

Validate = Callable[[GenerationClient, WeightVersion], Awaitable[dict[str, float]]]
"""Generates, scores, and returns the row of metrics."""


class Validations:
    """``validate``: None if there is nothing to validate on. ``test_freq``: versions from one to the next."""

    def __init__(
        self,
        validate: Validate | None,
        test_freq: int,
        client: GenerationClient,
        balancer: LoadBalancer,
        controller: DynamicResourceController,
        wait_for_replica: Callable[[], Awaitable[bool]],
    ) -> None:
        self._validate = validate
        self._test_freq = test_freq
        self._client = client
        self._balancer = balancer
        self._controller = controller
        self._wait_for_replica = wait_for_replica
        self._under_way: asyncio.Task[None] | None = None
        self._row: dict[str, float] = {}

    def is_due(self, version: WeightVersion) -> bool:
        return self._validate is not None and self._test_freq > 0 and version % self._test_freq == 0

    async def run(self, version: WeightVersion) -> None:
        assert self._validate is not None
        self._row = await self._validate(self._client, version)

    def start(self, tasks: asyncio.TaskGroup, version: WeightVersion) -> None:
        """Beside training, which it shares the engines with and never holds up; one at a time."""
        if self._under_way is None or self._under_way.done():
            self._under_way = tasks.create_task(self.run(version), name="validation")

    async def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Wait for the one under way, with lent devices if nobody else is there to generate."""
        if self._under_way is None or self._under_way.done():
            return
        alone = self._balancer.num_members == 0
        lent = alone and self._controller.can_lend and not is_stopped() and await self._controller.activate()
        if is_stopped() or (alone and not lent):
            logger.warning("the validation under way is given up")
            self._under_way.cancel()
        await finish_or_give_up(
            self._under_way, self._balancer.changed, lambda: self._balancer.num_members > 0, self._wait_for_replica
        )
        if lent:
            await self._controller.deactivate()

    def take_row(self) -> dict[str, float]:
        """Metrics of a validation that ended since this was last called."""
        row, self._row = self._row, {}
        return row
