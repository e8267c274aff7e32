"""Synthetic prompts, response lengths, tool calls and rewards.

Everything drawn is a function of a seed, the group (its request id) and the index of the response in it: the same
in every process, whatever was drawn before and in whatever order.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import NormalDist
from typing import Any

from swingshift.core.types import Prompt, SampleGroup
from swingshift.errors import ConfigError
from swingshift.sim.responses import Lengths, Pauses
from swingshift.sim.tokens import Pause

_NORMAL = NormalDist()


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


def _uniform(*key: object) -> float:
    """A number in (0, 1) that depends on the key alone (Python's own hash differs from process to process)."""
    digest = blake2b(repr(key).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "little") >> 12) + 0.5) * 2.0**-52


def _lognormal(median: float, sigma: float, uniform: float) -> float:
    return median * math.exp(sigma * _NORMAL.inv_cdf(uniform))


def _clip(length: float, longest: int) -> int:
    return max(1, min(longest, round(length)))


# --- lengths ------------------------------------------------------------------------------------------------------


def constant_lengths(length: int) -> Lengths:
    return lambda request_id, index: length


def lognormal_lengths(median: float, sigma: float, longest: int, seed: int = 0) -> Lengths:
    """Lognormal, clipped to ``longest`` tokens."""

    def draw(request_id: str, index: int) -> int:
        return _clip(_lognormal(median, sigma, _uniform(seed, request_id, index)), longest)

    return draw


def heavy_tailed_lengths(
    median: float,
    sigma: float,
    longest: int,
    *,
    tail_share: float = 0.1,
    tail_start: float | None = None,
    alpha: float = 1.2,
    seed: int = 0,
) -> Lengths:
    """A lognormal body; a share of responses is Pareto from ``tail_start`` (twice the median) up instead.

    The smaller ``alpha``, the heavier the tail; at 1 and below only the clip keeps its mean finite.
    """
    _check_share("tail_share", tail_share)
    start = 2 * median if tail_start is None else tail_start

    def draw(request_id: str, index: int) -> int:
        u = _uniform(seed, request_id, index)
        if u < tail_share:
            return _clip(start * (u / tail_share) ** (-1 / alpha), longest)
        return _clip(_lognormal(median, sigma, (u - tail_share) / (1 - tail_share)), longest)

    return draw


def drifting_lengths(
    first: float, last: float, num_groups: int, sigma: float, longest: int, seed: int = 0, *, linear: bool = True
) -> Lengths:
    """Lognormal with a median that goes from ``first`` to ``last`` over ``num_groups`` groups and then stays.

    It grows by the same number of tokens a group, or, if not ``linear``, by the same factor. Requests that are no
    group's (validation) have the first median.
    """

    def draw(request_id: str, index: int) -> int:
        group = int(request_id) if request_id.isdecimal() else 0
        x = min(1.0, group / max(1, num_groups - 1))
        median = first + (last - first) * x if linear else first * (last / first) ** x
        return _clip(_lognormal(median, sigma, _uniform(seed, request_id, index)), longest)

    return draw


def empirical_lengths(lengths: Sequence[int], longest: int | None = None, seed: int = 0) -> Lengths:
    """One of the given lengths, each as likely as the others."""
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"lengths: {len(lengths)} response lengths; give at least one, none below 1 token")
    clipped = tuple(min(n, longest or n) for n in lengths)
    return lambda request_id, index: clipped[int(_uniform(seed, request_id, index) * len(clipped))]


def read_lengths(file: Path) -> list[int]:
    """Response lengths from a JSON list of integers, or from a file with one integer a line (JSONL).

    Raises ConfigError if the file is missing, empty or holds anything else.
    """
    try:
        text = file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise ConfigError(f"response lengths: cannot read {file}: {error}; correct workload.lengths.file") from None
    try:
        if text.lstrip().startswith("["):
            values = json.loads(text)
        else:
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"response lengths: {file}: neither a JSON list nor one integer a line: {error}") from None
    for number, value in enumerate(values, 1):
        if type(value) is not int or value < 1:
            raise ConfigError(f"response lengths: value {number} of {file} is {value!r}; give integers from 1 up")
    if not values:
        raise ConfigError(f"response lengths: {file} is empty; give at least one integer")
    return list(values)


# --- tool calls ---------------------------------------------------------------------------------------------------


def tool_pauses(
    num_turns: int, median_wait_s: float, sigma: float = 0.5, longest_wait_s: float = 600.0, seed: int = 0
) -> Pauses:
    """Responses of up to ``num_turns`` turns of equal length, a lognormal wait for a tool between two of them.

    The tokens that a tool answers with are left out.
    """
    if num_turns < 1:
        raise ConfigError(f"num_turns={num_turns} must be at least 1")

    def draw(request_id: str, index: int, length: int) -> tuple[Pause, ...]:
        turns = min(num_turns, length)
        pauses = []
        for turn in range(1, turns):
            wait_s = _lognormal(median_wait_s, sigma, _uniform(seed, "tools", request_id, index, turn))
            pauses.append((length * turn // turns, min(longest_wait_s, wait_s)))
        return tuple(pauses)

    return draw


# --- rewards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimReward:
    """Scores after ``seconds``; ``score_fn(group_id)``, the score of all its responses, may raise DataError."""

    seconds: float = 0.0
    score_fn: Callable[[int], float] = float

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return (self.score_fn(group.group_id),) * len(group.samples)


@dataclass(frozen=True, slots=True)
class BernoulliReward:
    """Each response of a group is right (1) or wrong (0) with the group's own chance, ``chance`` ± ``spread``."""

    chance: float = 0.5
    spread: float = 0.0
    seconds: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_share("chance", self.chance)

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        if self.seconds:
            await asyncio.sleep(self.seconds)
        own = self.chance + self.spread * (2 * _uniform(self.seed, "chance", group.group_id) - 1)
        draws = (_uniform(self.seed, "reward", group.group_id, index) for index in range(len(group.samples)))
        return tuple(float(u < own) for u in draws)


def constant_reward(value: float, seconds: float = 0.0) -> SimReward:
    return SimReward(seconds, partial(_constant, value))


def _constant(value: float, group_id: int) -> float:
    return value


def _check_share(key: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{key}={value:g} must be in [0, 1]")
