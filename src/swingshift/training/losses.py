"""The actor's loss, token by token: clipped policy gradient, optional entropy bonus and KL to a reference.

Everything here works on flat vectors over response tokens ([N]); padding never gets this far. How tokens are
averaged is in ``weights`` [N], one factor per token that already holds the global denominator, so that sums
over micro-batches and ranks give the mean over the mini-batch (see ``batch.token_weights``).

The clipped ratio is against the *old* log-probs. In bypass mode those are the rollout's. In decoupled PPO
(Hilton et al. 2021, arXiv:2110.00641) they are those of the weights at the start of the cycle, so that clipping
measures this cycle's movement alone; importance weights then correct for who really sampled the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

KLKind = Literal["kl", "k2", "low_var_kl"]

# exp() of a difference of log-probs is only taken within this range, as the field does: beyond it a token is
# clipped anyway and float32 would overflow.
MAX_LOG_RATIO = 20.0
MAX_LOW_VAR_KL = 10.0

SUM_NAMES = ("pg_loss", "kl_loss", "entropy", "ppo_kl", "ratio", "clipped", "tokens", "rollout_is", "truncated")
"""Entries of ``ActorLoss.sums``: the first two weighted as in the loss, the others plain sums over tokens."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """``apply_rollout_is``: in decoupled PPO, weigh tokens by importance, truncated at ``rollout_is_threshold``."""

    clip_low: float
    clip_high: float
    entropy_coeff: float = 0.0
    kl_coef: float = 0.0
    kl_kind: KLKind = "low_var_kl"
    apply_rollout_is: bool = True
    rollout_is_threshold: float | None = 2.0


@dataclass(frozen=True, slots=True)
class ActorLoss:
    """``loss``: scalar with gradient. ``sums``: detached, as named by SUM_NAMES. The maxima: scalars."""

    loss: Tensor
    sums: Tensor
    ratio_max: Tensor
    rollout_is_max: Tensor


def token_log_probs(
    logits: Tensor, targets: Tensor, temperature: float, *, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs of ``targets`` [N] and entropies [N] under softmax(``logits`` [N, V] / temperature).

    Both in float32. ``entropy_grad``: whether gradients flow through the entropies.
    """
    scaled = logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    all_log_probs = torch.log_softmax(scaled, dim=-1)
    log_probs = all_log_probs.gather(-1, targets[:, None])[:, 0]
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        source = all_log_probs if entropy_grad else all_log_probs.detach()
        entropy = -(source.exp() * source).sum(-1)
    return log_probs, entropy


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-token loss, ratio to the old policy, and whether clipping changed the loss (all [N])."""
    ratio = (log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.maximum(unclipped, clipped), ratio, clipped > unclipped


def importance_weights(
    old_log_probs: Tensor, rollout_log_probs: Tensor, threshold: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Per-token weight old / rollout policy, the same truncated at ``threshold``, and where that changed it."""
    weights = (old_log_probs - rollout_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if threshold is None:
        return weights, weights, torch.zeros_like(weights, dtype=torch.bool)
    return weights, weights.clamp(max=threshold), weights > threshold


def kl_penalty(log_probs: Tensor, ref_log_probs: Tensor, kind: KLKind) -> Tensor:
    """Per-token estimate [N] of KL(policy || reference) from the sampled token alone.

    ``kl`` (k1): unbiased, noisy, may be negative. ``k2``: half the squared log-ratio.
    ``low_var_kl`` (k3): exp(d) - d - 1 with d = ref - policy; unbiased and never negative.
    """
    if kind == "kl":
        return log_probs - ref_log_probs
    if kind == "k2":
        return 0.5 * (log_probs - ref_log_probs).square()
    assert kind == "low_var_kl", kind
    diff = (ref_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (diff.exp() - diff - 1).clamp(max=MAX_LOW_VAR_KL)


def actor_loss(
    log_probs: Tensor,
    entropy: Tensor,
    rollout_log_probs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    settings: LossSettings,
    ref_log_probs: Tensor | None = None,
    old_log_probs: Tensor | None = None,
) -> ActorLoss:
    """This micro-batch's share of the mini-batch's loss (sum over tokens of weight × token loss).

    Without ``old_log_probs`` (bypass mode) the rollout's serve as such, and no importance weights are needed.
    """
    old = rollout_log_probs if old_log_probs is None else old_log_probs
    pg, ratio, clipped = clipped_policy_loss(log_probs, old, advantages, settings.clip_low, settings.clip_high)
    threshold = settings.rollout_is_threshold if settings.apply_rollout_is else None
    rollout_is, factors, truncated = importance_weights(old, rollout_log_probs, threshold)
    if old_log_probs is not None and settings.apply_rollout_is:
        pg = factors * pg
    pg_loss = (weights * pg).sum()
    kl_loss = torch.zeros_like(pg_loss)
    loss = pg_loss
    if settings.entropy_coeff:
        loss = loss - settings.entropy_coeff * (weights * entropy).sum()
    if ref_log_probs is not None:
        kl_loss = (weights * kl_penalty(log_probs, ref_log_probs, settings.kl_kind)).sum()
        loss = loss + settings.kl_coef * kl_loss
    with torch.no_grad():
        counts = (clipped, torch.ones_like(ratio), rollout_is, truncated)
        per_token = (entropy, old - log_probs, ratio, *counts)
        sums = torch.stack([v.double().sum() for v in (pg_loss, kl_loss, *per_token)])
    return ActorLoss(loss, sums, ratio.detach().max(), rollout_is.max())
