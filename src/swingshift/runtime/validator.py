"""Validation: generate answers to held-out prompts with the serving replicas, beside training."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from swingshift.core.types import Prompt, SampleGroup, SamplingParams, WeightVersion
from swingshift.errors import DataError, ReplicaError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.ports import RewardFn
from swingshift.runtime.signals import Signal

logger = logging.getLogger(__name__)


class Validator:
    """At most ``max_in_flight`` prompts at once, so that training's own requests are not starved.

    Validation goes on while training does: an answer may span weight versions like any other response.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        reward: RewardFn,
        sampling: SamplingParams,
        num_responses: int,
        max_in_flight: int,
    ) -> None:
        self._prompts = prompts
        self._reward = reward
        self._sampling = sampling
        self._num_responses = num_responses
        self._slots = asyncio.Semaphore(max_in_flight)

    async def __call__(self, client: GenerationClient, version: WeightVersion) -> dict[str, float]:
        """Mean reward over all answers; prompts whose generation or reward fails are counted and left out."""
        scores = await asyncio.gather(*(self._one(client, version, i) for i in range(len(self._prompts))))
        rewards = [r for score in scores if score is not None for r in score]
        row = {
            "val/version": float(version),
            "val/num_failed": float(scores.count(None)),
            "val/num_responses": float(len(rewards)),
            "val/reward/sum": float(sum(rewards)),
        }
        if rewards:
            row["val/reward/mean"] = sum(rewards) / len(rewards)
        return row

    async def _one(self, client: GenerationClient, version: WeightVersion, index: int) -> tuple[float, ...] | None:
        prompt = self._prompts[index]
        name = f"val-{version}-{index}"
        async with self._slots:
            try:
                samples = await client.generate(name, prompt, self._num_responses, self._sampling)
                return await self._reward.score(SampleGroup(index, prompt, samples, version))
            except (ReplicaError, DataError) as error:
                logger.warning("validation prompt %s failed: %s", prompt.uid, error)
                return None


async def finish_or_give_up(
    validation: asyncio.Task[None],
    changed: Signal,
    is_served: Callable[[], bool],
    wait_for_replica: Callable[[], Awaitable[bool]],
) -> None:
    """Wait for a validation while nobody else lends devices; without a replica, or one about to come, cancel it."""
    validation.add_done_callback(lambda _: changed.notify())
    while True:
        await changed.until(
            lambda: validation.done() or not is_served(), who="session", what=lambda: "the validation under way"
        )
        if not validation.done() and await wait_for_replica():
            continue
        if validation.cancel():
            logger.warning("the validation under way is given up: no replica is left to generate")
            await asyncio.wait([validation])
        return
