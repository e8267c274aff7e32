"""Validation: generate answers to held-out prompts with the serving replicas, beside training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swingshift.core.types import Prompt, SampleGroup, SamplingParams, WeightVersion
from swingshift.errors import DataError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.ports import RewardFn


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
        """Mean reward over all answers; prompts whose reward fails are counted and left out."""
        scores = await asyncio.gather(*(self._one(client, version, i) for i in range(len(self._prompts))))
        rewards = [r for score in scores if score is not None for r in score]
        row = {"val/version": float(version), "val/num_failed": float(scores.count(None))}
        if rewards:
            row["val/reward/mean"] = sum(rewards) / len(rewards)
        return row

    async def _one(self, client: GenerationClient, version: WeightVersion, index: int) -> tuple[float, ...] | None:
        prompt = self._prompts[index]
        async with self._slots:
            samples = await client.generate(f"val-{version}-{index}", prompt, self._num_responses, self._sampling)
            try:
                return await self._reward.score(SampleGroup(index, prompt, samples, version))
            except DataError:
                return None
