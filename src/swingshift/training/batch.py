"""From sample groups to padded micro-batches. Pure: no model, no device, no randomness.

A *row* is what the model reads as one sequence: a prompt followed by one or more responses to it. Responses
that share a row spare the model from reading the prompt again for each of them; an attention mask then hides
them from each other, and position ids start each right after the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from swingshift.core.types import SampleGroup, Tokens
from swingshift.errors import ConfigError, TrainerError

AggMode = Literal["token-mean", "seq-mean-token-mean"]


@dataclass(frozen=True, slots=True)
class TrainResponse:
    """One response with tokens. ``weight`` is the factor of each of its tokens in the loss."""

    token_ids: Tokens
    rollout_log_probs: tuple[float, ...]
    advantage: float
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    prompt_ids: Tokens
    responses: tuple[TrainResponse, ...]

    @property
    def num_inputs(self) -> int:
        """Tokens the model reads: the last one of a response only has to be predicted."""
        return len(self.prompt_ids) + sum(len(r.token_ids) - 1 for r in self.responses)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows padded on the right to T tokens, and flat vectors over their N response tokens.

    ``positions`` [N] index the flattened [B·T] outputs that predict ``targets`` [N]. ``position_ids`` [B, T]
    and ``mask`` [B, 1, T, T] (true: may attend) are None if every row holds one response: then causal
    attention already keeps padding out of sight, and faster kernels apply.
    """

    input_ids: Tensor
    positions: Tensor
    targets: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    weights: Tensor
    position_ids: Tensor | None
    mask: Tensor | None
    num_padding: int

    def to(self, device: torch.device) -> MicroBatch:
        if self.input_ids.device == device:
            return self
        return MicroBatch(
            input_ids=self.input_ids.to(device),
            positions=self.positions.to(device),
            targets=self.targets.to(device),
            rollout_log_probs=self.rollout_log_probs.to(device),
            advantages=self.advantages.to(device),
            weights=self.weights.to(device),
            position_ids=None if self.position_ids is None else self.position_ids.to(device),
            mask=None if self.mask is None else self.mask.to(device),
            num_padding=self.num_padding,
        )


# --- what to train on ---


def responses_of(group: SampleGroup, advantages: Sequence[float]) -> list[TrainResponse]:
    """The group's responses that have tokens. Raises TrainerError for an empty prompt."""
    if not group.prompt.token_ids:
        raise TrainerError(f"group {group.group_id}: its prompt has no tokens, so nothing predicts the first one")
    return [
        TrainResponse(s.token_ids, s.log_probs, advantage)
        for s, advantage in zip(group.samples, advantages, strict=True)
        if s.token_ids
    ]


def token_weights(lengths: Sequence[int], mode: AggMode) -> list[float]:
    """The factor of each token of each response, so that the weighted sum over the mini-batch is the mean.

    ``token-mean``: every token counts the same. ``seq-mean-token-mean``: every response counts the same.
    ``lengths`` must be those of the whole mini-batch over all ranks: the denominators are global.
    """
    if mode == "token-mean":
        num_tokens = sum(lengths)
        return [1 / num_tokens for _ in lengths]
    assert mode == "seq-mean-token-mean", mode
    return [1 / (len(lengths) * n) for n in lengths]


def balance(loads: Sequence[int], num_ranks: int) -> list[int]:
    """Give each item to a rank, heaviest first to the least loaded; returns one rank per item."""
    owners = [0] * len(loads)
    totals = [0] * num_ranks
    for item in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        owners[item] = min(range(num_ranks), key=lambda r: (totals[r], r))
        totals[owners[item]] += loads[item]
    return owners


# --- rows and micro-batches ---


def rows_of(prompt_ids: Tokens, responses: Sequence[TrainResponse], per_row: int, max_tokens: int) -> list[Row]:
    """Fill rows with up to ``per_row`` responses, as evenly as can be, and up to ``max_tokens`` tokens."""
    per_row = math.ceil(len(responses) / math.ceil(len(responses) / per_row))
    rows: list[Row] = []
    for response in responses:
        if rows and len(rows[-1].responses) < per_row:
            longer = Row(prompt_ids, (*rows[-1].responses, response))
            if longer.num_inputs <= max_tokens:
                rows[-1] = longer
                continue
        rows.append(Row(prompt_ids, (response,)))
    return rows


def check_lengths(prompt_ids: Tokens, responses: Sequence[TrainResponse], max_tokens: int) -> None:
    """Raises ConfigError if a response with its prompt alone is over the limit of a micro-batch."""
    for response in responses:
        num_tokens = len(prompt_ids) + len(response.token_ids)
        if num_tokens - 1 > max_tokens:
            raise ConfigError(
                f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu={max_tokens}: a prompt and response of "
                f"{num_tokens} tokens does not fit; raise it to at least data.max_prompt_length + "
                "actor_rollout_ref.rollout.response_length"
            )


def split_by_tokens(rows: Sequence[Row], max_tokens: int) -> list[list[Row]]:
    """Chunks of at most ``max_tokens`` tokens, padding included; similar lengths together, longest first."""
    chunks: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: -r.num_inputs):
        if chunks and (len(chunks[-1]) + 1) * chunks[-1][0].num_inputs <= max_tokens:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks


def micro_batch(rows: Sequence[Row]) -> MicroBatch:
    """Lay the rows out, padded on the right to the longest."""
    width = max(row.num_inputs for row in rows)
    input_ids = np.zeros((len(rows), width), dtype=np.int64)
    position_ids = np.zeros((len(rows), width), dtype=np.int64)
    segments = np.full((len(rows), width), -1, dtype=np.int64)
    positions: list[np.ndarray] = []
    for i, row in enumerate(rows):
        start = len(row.prompt_ids)
        input_ids[i, :start] = row.prompt_ids
        position_ids[i, :start] = np.arange(start)
        segments[i, :start] = 0
        last_of_prompt = i * width + start - 1
        for j, response in enumerate(row.responses, start=1):
            n = len(response.token_ids) - 1
            input_ids[i, start : start + n] = response.token_ids[:-1]
            position_ids[i, start : start + n] = np.arange(n) + len(row.prompt_ids)
            segments[i, start : start + n] = j
            positions.append(np.array([last_of_prompt, *range(i * width + start, i * width + start + n)]))
            start += n
    shared = any(len(row.responses) > 1 for row in rows)
    responses = [r for row in rows for r in row.responses]
    lengths = [len(r.token_ids) for r in responses]
    return MicroBatch(
        input_ids=torch.from_numpy(input_ids),
        positions=torch.from_numpy(np.concatenate(positions)),
        targets=_flat((r.token_ids for r in responses), np.int64),
        rollout_log_probs=_flat((r.rollout_log_probs for r in responses), np.float32),
        advantages=_repeat([r.advantage for r in responses], lengths),
        weights=_repeat([r.weight for r in responses], lengths),
        position_ids=torch.from_numpy(position_ids) if shared else None,
        mask=_shared_prompt_mask(torch.from_numpy(segments)) if shared else None,
        num_padding=int((segments < 0).sum()),
    )


def _shared_prompt_mask(segments: Tensor) -> Tensor:
    """[B, T] segment numbers (0 prompt, -1 padding) to a mask [B, 1, T, T].

    Every token sees the prompt and its own segment, up to itself. Padding too: a row of the mask without any
    true entry would make its softmax, and through it all gradients, NaN.
    """
    key, query = segments[:, None, :], segments[:, :, None]
    return (((key == query) | (key == 0)).tril())[:, None]


def _flat(rows: Iterable[Sequence[float]], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), dtype=dtype))


def _repeat(values: Sequence[float], lengths: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), lengths))
