"""What a collection trains on, step by step. Pure: the order comes from the random generator it is given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from swingshift.config.schema import ActorConfig
from swingshift.core.row_sharing import responses_per_row
from swingshift.core.types import SampleGroup, Tokens
from swingshift.training.advantages import advantages_of
from swingshift.training.batch import (
    AggMode,
    Row,
    TrainResponse,
    balance,
    check_lengths,
    responses_of,
    rows_of,
    split_by_tokens,
    token_weights,
)


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """A sample group with signal: the part of it that is trained on."""

    prompt_ids: Tokens
    responses: list[TrainResponse]


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """One optimizer step: its place in the collection and its groups with signal, of all ranks."""

    label: str
    groups: list[TrainGroup]


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of each mini-batch one rank computes. ``hidden_size`` None: rows share no prompts."""

    rank: int
    world_size: int
    hidden_size: int | None
    max_tokens: int


def train_groups(groups: Sequence[SampleGroup], *, norm_by_std: bool, max_tokens: int) -> list[TrainGroup | None]:
    """Every group with its advantages, None without signal.

    All checks of the data are here, on all groups and every rank, so that no optimizer step precedes an
    error.
    """
    parts: list[TrainGroup | None] = []
    for group, advantages in zip(groups, advantages_of(groups, norm_by_std=norm_by_std), strict=True):
        responses = responses_of(group, advantages) if advantages else []
        check_lengths(group.prompt.token_ids, responses, max_tokens)
        parts.append(TrainGroup(group.prompt.token_ids, responses) if responses else None)
    return parts


def mini_batches(
    groups: Sequence[SampleGroup],
    parts: Sequence[TrainGroup | None],
    actor: ActorConfig,
    rng: np.random.Generator,
) -> Iterator[MiniBatch]:
    """Shuffled mini-batches of ``ppo_mini_batch_size`` groups (the last may be smaller), per epoch."""
    size = actor.ppo_mini_batch_size
    num = math.ceil(len(groups) / size)
    for epoch in range(actor.ppo_epochs):
        order = rng.permutation(len(groups))
        for i in range(num):
            # Order within a mini-batch means nothing: sorted, equal batches give equal bits.
            members = sorted(order[i * size : (i + 1) * size])
            ids = [groups[m].group_id for m in members]
            label = f"mini-batch {i + 1} of {num} (epoch {epoch + 1}, groups {ids})"
            yield MiniBatch(label, [p for m in members if (p := parts[m]) is not None])


def rank_chunks(mini_batch: MiniBatch, mode: AggMode, share: Share) -> list[list[Row]]:
    """What this rank computes of a mini-batch, micro-batch by micro-batch."""
    return split_by_tokens(rank_rows(mini_batch, mode, share), share.max_tokens)


def rank_rows(mini_batch: MiniBatch, mode: AggMode, share: Share) -> list[Row]:
    """Weigh tokens over the whole mini-batch, then lay out the groups that fall to this rank."""
    groups = mini_batch.groups
    weights = iter(token_weights([len(r.token_ids) for g in groups for r in g.responses], mode))
    owners = balance([sum(len(r.token_ids) for r in g.responses) for g in groups], share.world_size)
    rows: list[Row] = []
    for group, owner in zip(groups, owners, strict=True):
        weighted = [replace(r, weight=next(weights)) for r in group.responses]
        if owner == share.rank:
            rows += _group_rows(group.prompt_ids, weighted, share)
    return rows


def _group_rows(prompt_ids: Tokens, responses: list[TrainResponse], share: Share) -> list[Row]:
    per_row = 1
    if share.hidden_size is not None:
        lengths = [len(r.token_ids) for r in responses]
        per_row = responses_per_row(len(prompt_ids), lengths, share.hidden_size)
    return rows_of(prompt_ids, responses, per_row, share.max_tokens)
