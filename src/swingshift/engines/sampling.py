"""Drawing the next token of every row at once, with the log-probability under the distribution drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swingshift.core.types import SamplingParams
from swingshift.errors import DataError

_NO_TOP_P = 2.0
"""Larger than any cumulative probability, so that rounding never cuts a row that asked for no cut."""
_BELOW_ONE = 1.0 - 2.0**-52


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Sampling parameters of all rows, [rows, 1] each; None: no row needs it.

    ``top_k``/``top_p`` of rows without truncation are the vocabulary size and ``_NO_TOP_P``.
    """

    temperature: Tensor | None
    greedy: Tensor | None
    all_greedy: bool
    top_k: Tensor | None
    top_p: Tensor | None
    max_top_k: int

    @classmethod
    def build(cls, rows: Sequence[SamplingParams], vocab_size: int, device: torch.device) -> SamplingBatch:
        greedy = [p.temperature == 0 for p in rows]
        temperatures = [1.0 if g else p.temperature for p, g in zip(rows, greedy, strict=True)]
        top_k = [
            min(p.top_k, vocab_size) if p.top_k > 0 and not g else vocab_size
            for p, g in zip(rows, greedy, strict=True)
        ]
        top_p = [p.top_p if p.top_p < 1 and not g else _NO_TOP_P for p, g in zip(rows, greedy, strict=True)]
        truncates = min(top_k) < vocab_size or min(top_p) < _NO_TOP_P

        def column(values: Sequence[object], needed: bool) -> Tensor | None:
            return torch.tensor(values, device=device)[:, None] if needed else None

        return cls(
            temperature=column(temperatures, any(t != 1.0 for t in temperatures)),
            greedy=column(greedy, any(greedy)),
            all_greedy=all(greedy),
            top_k=column(top_k, truncates),
            top_p=column(top_p, truncates),
            max_top_k=max(top_k),
        )


def check_sampling(params: SamplingParams) -> None:
    """Raise DataError for values no distribution has."""
    t, p, k = params.temperature, params.top_p, params.top_k
    if not (math.isfinite(t) and t >= 0):
        raise DataError(f"sampling temperature is {t}; use 0 (greedy) or a positive number")
    if not 0 < p <= 1:
        raise DataError(f"sampling top_p is {p}; use a number in (0, 1]")
    if k == 0 or k < -1:
        raise DataError(f"sampling top_k is {k}; use -1 (off) or a positive number")


def sample(logits: Tensor, batch: SamplingBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens [rows] and their log-probs [rows] (float32) from ``logits`` [rows, vocab] (float32).

    Log-probs are under the distribution after temperature, then top-k, then top-p. A greedy row
    (temperature 0) reports the model's own log-prob (temperature 1, no truncation), since under the
    degenerate distribution every token would have log-prob 0.
    """
    if batch.all_greedy:
        return _pick(logits.argmax(-1, keepdim=True), logits.log_softmax(-1), None)
    scores = logits if batch.temperature is None else logits / batch.temperature
    order = None
    if batch.top_k is not None:
        scores, order = _truncate(scores, batch)
    log_probs = scores.log_softmax(-1)
    choice = _draw(log_probs, generator)
    if batch.greedy is not None:
        choice = torch.where(batch.greedy, scores.argmax(-1, keepdim=True), choice)
    return _pick(choice, log_probs, order)


def _pick(choice: Tensor, log_probs: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    tokens = choice if order is None else order.gather(1, choice)
    return tokens.squeeze(1), log_probs.gather(1, choice).squeeze(1)


def _truncate(scores: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """Scores from best to worst with what top-k and top-p cut set to -inf, and the tokens they belong to."""
    assert batch.top_k is not None and batch.top_p is not None
    width = batch.max_top_k
    if width < scores.shape[1]:
        scores, order = scores.topk(width, dim=-1)
    else:
        scores, order = scores.sort(dim=-1, descending=True)
    rank = torch.arange(width, device=scores.device)
    scores = scores.masked_fill(rank >= batch.top_k, -math.inf)
    probs = scores.softmax(-1)
    before = probs.cumsum(-1) - probs
    cut = before >= batch.top_p
    cut[:, 0] = False
    return scores.masked_fill(cut, -math.inf), order


def _draw(log_probs: Tensor, generator: torch.Generator) -> Tensor:
    """Invert the cumulative distribution, in float64 so that large vocabularies keep their tails.

    The first index whose cumulative probability exceeds the draw has a probability above zero, and the draw
    stays below the total, so a cut token is never chosen.
    """
    cumulative = log_probs.exp().cumsum(-1, dtype=torch.float64)
    shape = (log_probs.shape[0], 1)
    draw = torch.rand(shape, generator=generator, device=log_probs.device, dtype=torch.float64)
    draw.mul_(cumulative[:, -1:] * _BELOW_ONE)
    # NaN (a broken model) compares as past the end; the caller sees it in the log-prob.
    return torch.searchsorted(cumulative, draw, right=True).clamp_(max=log_probs.shape[1] - 1)
