"""Group-relative advantages (GRPO): a response is judged against the other responses to its prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swingshift.core.types import SampleGroup
from swingshift.errors import TrainerError

STD_EPSILON = 1e-6


def group_advantages(rewards: Sequence[float], *, norm_by_std: bool) -> tuple[float, ...] | None:
    """One advantage per response: reward minus the group's mean, divided by (sample std + 1e-6) if asked.

    None if the group carries no signal: all rewards equal, or a single response (nothing to compare with).
    Equality is tested on the rewards themselves, since rounding of the mean would turn equal rewards into
    tiny advantages, which the division would then blow up.
    """
    if not rewards or min(rewards) == max(rewards):
        return None
    mean = math.fsum(rewards) / len(rewards)
    centred = [r - mean for r in rewards]
    if not norm_by_std:
        return tuple(centred)
    std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - 1))
    return tuple(c / (std + STD_EPSILON) for c in centred)


def advantages_of(groups: Sequence[SampleGroup], *, norm_by_std: bool) -> list[tuple[float, ...] | None]:
    """``group_advantages`` of every group. Raises TrainerError for a missing or non-finite reward."""
    return [group_advantages(_rewards(g), norm_by_std=norm_by_std) for g in groups]


def _rewards(group: SampleGroup) -> list[float]:
    rewards = []
    for i, reward in enumerate(group.rewards):
        if reward is None or not math.isfinite(reward):
            raise TrainerError(
                f"group {group.group_id}: response {i} has reward {reward}; every response needs a finite one"
            )
        rewards.append(reward)
    return rewards
