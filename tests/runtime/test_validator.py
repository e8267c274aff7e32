"""A validation's row by hand."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup, SamplingParams
from swingshift.errors import DataError, ReplicaDiedError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.validator import Validator


class Client:
    async def generate(self, request_id: str, prompt: Prompt, n: int, sampling: SamplingParams) -> tuple[Sample, ...]:
        if prompt.uid == "dies":
            raise ReplicaDiedError("gone")
        return (Sample((1,), (0.0,), ((0, 1),), FinishReason.STOP),) * n


class Reward:
    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        if group.prompt.uid == "odd":
            raise DataError("not a number")
        return {"good": (1.0, 0.5), "bad": (0.0, 0.25)}[group.prompt.uid]


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (
            ["good", "dies", "bad", "odd"],
            {"val/num_failed": 2.0, "val/num_responses": 4.0, "val/reward/sum": 1.75, "val/reward/mean": 1.75 / 4},
        ),
        (["dies"], {"val/num_failed": 1.0, "val/num_responses": 0.0, "val/reward/sum": 0.0}),
    ],
)
def test_a_mean_and_what_it_is_made_of(prompts: list[str], expected: dict[str, float]) -> None:
    chosen = [Prompt(uid, (1,)) for uid in prompts]
    validator = Validator(chosen, Reward(), SamplingParams(max_tokens=1), num_responses=2, max_in_flight=2)
    row: dict[str, Any] = asyncio.run(validator(cast(GenerationClient, Client()), 7))
    assert row == {"val/version": 7.0, **expected}
