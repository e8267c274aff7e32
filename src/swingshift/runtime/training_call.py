"""One optimizer pass at a time on the trainer's devices. It cannot be taken back, so it outlives who asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from swingshift.core.types import DeviceState, SampleGroup, WeightVersion
from swingshift.errors import TrainerError
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.ports import TrainResult, TrainWorker

logger = logging.getLogger(__name__)


OnTrained = Callable[[Sequence[SampleGroup], WeightVersion], None]
"""Told of the groups of one optimizer pass and the version it began from, as soon as it has succeeded."""


class TrainingCall:
    """Knows at any moment which groups were handed to the trainer without (yet) having been trained on."""

    def __init__(
        self,
        trainer: TrainWorker,
        lanes: DeviceLanes,
        timeout_s: float,
        on_trained: OnTrained = lambda groups, version: None,
    ) -> None:
        self.devices = trainer.devices
        self._trainer = trainer
        self._lanes = lanes
        self._timeout_s = timeout_s
        self._on_trained = on_trained
        self._under_way: tuple[list[SampleGroup], asyncio.Future[TrainResult]] | None = None

    async def run(self, groups: list[SampleGroup], version: WeightVersion) -> TrainResult:
        """Train. If this task is cancelled the call goes on, see ``settle``. TrainerError past the deadline."""
        with self._lanes.phase(self.devices, DeviceState.TRAIN):
            call = asyncio.ensure_future(self._train(groups, version))
            self._under_way = (groups, call)
            try:
                async with asyncio.timeout(self._timeout_s):
                    result = await asyncio.shield(call)
            except TimeoutError:
                raise TrainerError(
                    f"training on {len(groups)} groups did not end within {self._timeout_s:g} s "
                    "(async_training.train_timeout_s)"
                ) from None
            self._under_way = None
            return result

    async def _train(self, groups: list[SampleGroup], version: WeightVersion) -> TrainResult:
        result = await self._trainer.train(groups, version)
        # Within the call, so that it is told even if nobody waits for the call any more.
        self._on_trained(groups, version)
        return result

    @property
    def is_under_way(self) -> bool:
        return self._under_way is not None

    @property
    def is_in_doubt(self) -> bool:
        """Nobody can say yet whether the groups under way are being trained on or will be."""
        return self._under_way is not None and not self._under_way[1].done()

    def untrained(self) -> list[SampleGroup]:
        """Groups taken for training whose training has not succeeded (yet)."""
        if self._under_way is None:
            return []
        groups, call = self._under_way
        succeeded = call.done() and not call.cancelled() and call.exception() is None
        return [] if succeeded else list(groups)

    async def settle(self, timeout_s: float) -> None:
        """After an error elsewhere: let training under way finish, so that it is known what was trained."""
        if self._under_way is not None:
            await asyncio.wait([self._under_way[1]], timeout=timeout_s)
            num_untrained = len(self.untrained())
            if num_untrained:
                logger.error("the training of %d groups did not succeed; they count as not consumed", num_untrained)

    async def abandon(self) -> None:
        """Leave no call behind."""
        if self._under_way is not None and not self._under_way[1].done():
            self._under_way[1].cancel()
            await asyncio.wait([self._under_way[1]])
