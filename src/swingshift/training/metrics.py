"""What one collection's training reports: sums and counts over ranks, and the ratios made of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from swingshift.core.types import SampleGroup
from swingshift.training.batch import MicroBatch
from swingshift.training.losses import SUM_NAMES, ActorLoss


class CollectionMetrics:
    """Accumulates on the device, so that nothing waits for it before the end.

    Losses and the gradient norm are means over optimizer steps; ``entropy``, ``ppo_kl``, ``ratio_mean``,
    ``pg_clipfrac`` and what is said about importance weights (only if ``decoupled``) are means over trained tokens.
    """

    def __init__(self, device: torch.device, *, decoupled: bool = False) -> None:
        self._decoupled = decoupled
        self._sums = torch.zeros(len(SUM_NAMES) + 2, dtype=torch.float64, device=device)
        self._maxima = torch.zeros(2, device=device)
        self._grad_norms: list[float] = []
        self._lr = 0.0
        self.num_steps_without_signal = 0

    def add(self, result: ActorLoss) -> None:
        self._sums[:-2] += result.sums
        self._maxima = torch.maximum(self._maxima, torch.stack([result.ratio_max, result.rollout_is_max]))

    def count_inputs(self, batch: MicroBatch) -> None:
        """Forward tokens with padding, and how many of them are padding."""
        self._sums[-2] += batch.input_ids.numel()
        self._sums[-1] += batch.num_padding

    def add_step(self, *, grad_norm: float, lr: float) -> None:
        self._grad_norms.append(grad_norm)
        self._lr = lr

    def reduce(self, world_size: int, group: dist.ProcessGroup | None) -> None:
        if world_size > 1:
            dist.all_reduce(self._sums, group=group)
            dist.all_reduce(self._maxima, op=dist.ReduceOp.MAX, group=group)

    def result(self, groups: Sequence[SampleGroup], num_without_signal: int) -> dict[str, float]:
        """Flat floats; what was not computed (no optimizer step) is absent rather than zero."""
        *values, num_inputs, num_padding = self._sums.tolist()
        sums = dict(zip(SUM_NAMES, values, strict=True))
        steps = len(self._grad_norms)
        metrics = {
            "actor/num_groups": float(len(groups)),
            "actor/num_groups_without_signal": float(num_without_signal),
            "actor/num_tokens": float(sum(g.num_tokens for g in groups)),
            "actor/num_trained_tokens": sums["tokens"],
            "actor/num_clipped_tokens": sums["clipped"],
            "actor/num_input_tokens": num_inputs,
            "actor/num_padding_tokens": num_padding,
            "actor/num_optimizer_steps": float(steps),
            "actor/num_steps_without_signal": float(self.num_steps_without_signal),
        }
        if self._decoupled:
            metrics["actor/num_truncated_tokens"] = sums["truncated"]
        if not steps:
            return metrics
        ratio_max, rollout_is_max = self._maxima.tolist()
        tokens = sums["tokens"]
        if self._decoupled:
            metrics |= {
                "actor/rollout_is_mean": sums["rollout_is"] / tokens,
                "actor/rollout_is_max": rollout_is_max,
                "actor/rollout_is_truncated_ratio": sums["truncated"] / tokens,
            }
        return metrics | {
            "actor/pg_loss": sums["pg_loss"] / steps,
            "actor/kl_loss": sums["kl_loss"] / steps,
            "actor/entropy": sums["entropy"] / tokens,
            "actor/ppo_kl": sums["ppo_kl"] / tokens,
            "actor/pg_clipfrac": sums["clipped"] / tokens,
            "actor/ratio_mean": sums["ratio"] / tokens,
            "actor/ratio_max": ratio_max,
            "actor/grad_norm": sum(self._grad_norms) / steps,
            "actor/lr": self._lr,
        }
