"""Synthetic prompts, response lengths and rewards, the same for the same seed in every process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from swingshift.core.types import Prompt, SampleGroup


@dataclass(slots=True)
class SimPrompts:
    """``num_prompts`` prompts of ``prompt_length`` tokens."""

    num_prompts: int
    prompt_length: int = 16
    cursor: int = 0

    def next(self) -> Prompt | None:
        if self.cursor == self.num_prompts:
            return None
        self.cursor += 1
        return Prompt(str(self.cursor - 1), (0,) * self.prompt_length)

    def remaining(self) -> int:
        return self.num_prompts - self.cursor

    def state_dict(self) -> dict[str, Any]:
        return {"cursor": self.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.cursor = state["cursor"]


def constant_lengths(length: int) -> Callable[[str, int], int]:
    return lambda request_id, index: length


def lognormal_lengths(median: int, sigma: float, longest: int, seed: int = 0) -> Callable[[str, int], int]:
    """Clipped lognormal lengths; each response's is a function of the seed, its request and its index."""

    def draw(request_id: str, index: int) -> int:
        rng = random.Random(crc32(f"{seed}/{request_id}/{index}".encode()))
        return max(1, min(longest, round(median * rng.lognormvariate(0.0, sigma))))

    return draw


@dataclass(frozen=True, slots=True)
class SimReward:
    """Scores after ``seconds``; ``score_fn(group_id)`` may raise DataError."""

    seconds: float = 0.0
    score_fn: Callable[[int], float] = float

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return (self.score_fn(group.group_id),) * len(group.samples)
