"""The torch train worker: GRPO on whole groups, data-parallel over ranks with replicated parameters."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from swingshift.config.schema import ActorConfig
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.errors import TrainerError
from swingshift.runtime.ports import TrainResult
from swingshift.training import checkpoint
from swingshift.training.batch import MicroBatch, micro_batch, split_by_tokens
from swingshift.training.forward import can_share_prompts, response_logits
from swingshift.training.losses import LossSettings, actor_loss, token_log_probs
from swingshift.training.metrics import CollectionMetrics
from swingshift.training.optimizer import FlatAdamW
from swingshift.training.plan import MiniBatch, Share, mini_batches, rank_rows, train_groups
from swingshift.training.weights import WeightManifest, named_weights, pack_weights

logger = logging.getLogger(__name__)


class TorchTrainWorker:
    """Trains ``model`` in place; one instance per rank, all given the same configuration and groups.

    Synchronous: every method blocks until done. With ``world_size`` > 1 all ranks must be constructed and
    must call ``train`` together, with the same groups in the same order: collectives (gloo or nccl, over
    ``process_group``) wait for all. Rank 0's weights become everybody's at construction. ``temperature`` is
    the one the rollout sampled with. A KL loss needs a reference: ``ref_model``, or a frozen copy of
    ``model`` as it is now.
    """

    def __init__(
        self,
        model: nn.Module,
        actor: ActorConfig,
        *,
        temperature: float = 1.0,
        norm_adv_by_std: bool = True,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        process_group: dist.ProcessGroup | None = None,
        ref_model: nn.Module | None = None,
        tokenizer_dir: Path | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert 0 <= rank < world_size
        # Dropout would make the trainer's log-probs differ from the rollout's for no reason but noise.
        self.model = model.eval()
        self._actor = actor
        self._temperature = temperature
        self._norm_adv_by_std = norm_adv_by_std
        self._world_size = world_size
        self._group = process_group
        self._tokenizer_dir = tokenizer_dir
        self._clock = clock
        self._settings = LossSettings(
            clip_low=actor.clip_low,
            clip_high=actor.clip_high,
            entropy_coeff=actor.entropy_coeff,
            kl_coef=actor.kl_loss_coef,
            kl_kind=actor.kl_loss_type,
        )
        self._rng = np.random.default_rng(seed)
        self._offloaded = False
        if world_size > 1:
            for tensor in named_weights(model).values():
                dist.broadcast(tensor, group_src=0, group=process_group)
        self._ref = _frozen(ref_model or copy.deepcopy(model)) if actor.use_kl_loss else None
        params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._optimizer = FlatAdamW(params, actor.optim)
        self._device = next(iter(params.values())).device
        config: Any = model.config
        hidden_size = int(config.hidden_size) if can_share_prompts(model) else None
        self._share = Share(rank, world_size, hidden_size, actor.ppo_max_token_len_per_gpu)

    # --- training ---

    def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        """Pass over the groups in mini-batches of ``ppo_mini_batch_size``, ``ppo_epochs`` times.

        Groups whose rewards are all equal keep their place in a mini-batch but contribute nothing; a
        mini-batch of only such groups makes no optimizer step. Raises TrainerError for missing rewards, empty
        prompts or a non-finite loss or gradient (before it reaches the weights), ConfigError for a response
        over the limit.
        """
        if self._offloaded:
            raise TrainerError("train() while the device is lent: call onload() first")
        if not groups:
            raise TrainerError(f"train() without groups at version {version}")
        timings: dict[str, float] = defaultdict(float)
        metrics = CollectionMetrics(self._device)
        with self._timed(timings, "adv"):
            parts = train_groups(groups, norm_by_std=self._norm_adv_by_std, max_tokens=self._share.max_tokens)
        for mini_batch in mini_batches(groups, parts, self._actor, self._rng):
            if not mini_batch.groups:
                logger.info("%s carries no signal: no optimizer step", mini_batch.label)
                metrics.num_steps_without_signal += 1
                continue
            self._train_mini_batch(mini_batch, timings, metrics)
        metrics.reduce(self._world_size, self._group)
        result = metrics.result(groups, num_without_signal=sum(p is None for p in parts))
        return TrainResult(timings_s=dict(timings), metrics=result)

    def _train_mini_batch(self, mini_batch: MiniBatch, timings: dict[str, float], metrics: CollectionMetrics) -> None:
        self._optimizer.zero_grad()
        rows = rank_rows(mini_batch, self._actor.loss_agg_mode, self._share)
        for chunk in split_by_tokens(rows, self._share.max_tokens):
            batch = micro_batch(chunk)
            metrics.count_inputs(batch)
            batch = batch.to(self._device)
            ref_log_probs = None
            if self._ref is not None:
                with self._timed(timings, "ref"), torch.no_grad():
                    ref_log_probs, _ = self._forward(self._ref, batch)
            with self._timed(timings, "update_actor"):
                self._backward(batch, ref_log_probs, metrics)
        with self._timed(timings, "update_actor"):
            self._step(mini_batch.label, metrics)

    def _backward(self, batch: MicroBatch, ref_log_probs: Tensor | None, metrics: CollectionMetrics) -> None:
        log_probs, entropy = self._forward(self.model, batch)
        result = actor_loss(
            log_probs,
            entropy,
            batch.rollout_log_probs,
            batch.advantages,
            batch.weights,
            self._settings,
            ref_log_probs,
        )
        torch.autograd.backward(result.loss)
        self._optimizer.collect(result.loss)
        metrics.add(result)

    def _forward(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies [N] of the response tokens."""
        entropy_grad = self._settings.entropy_coeff > 0
        logits = response_logits(model, batch)
        return token_log_probs(logits, batch.targets, self._temperature, entropy_grad=entropy_grad)

    def _step(self, label: str, metrics: CollectionMetrics) -> None:
        if self._world_size > 1:
            self._optimizer.reduce(self._group)
        loss, norm = self._optimizer.loss(), self._optimizer.grad_norm()
        # Checked after the reduction, so that all ranks see it and none waits for another that has failed.
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainerError(f"{label}: loss {loss}, gradient norm {norm}; the weights were not changed by it")
        metrics.add_step(grad_norm=norm, lr=self._optimizer.lr)
        self._optimizer.step(norm, self._actor.grad_clip)

    @contextmanager
    def _timed(self, timings: dict[str, float], key: str) -> Iterator[None]:
        start = self._clock()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        timings[key] += self._clock() - start

    # --- lending the device ---

    @property
    def offloaded(self) -> bool:
        return self._offloaded

    def offload(self) -> None:
        """Give the device's memory away as configured; weights stay, for the hybrid replica to read."""
        if self._actor.free_gradients:
            self._optimizer.free_gradients()
        if self._actor.optimizer_offload:
            self._optimizer.offload()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._offloaded = True

    def onload(self) -> None:
        """Take everything back, bit by bit the same."""
        self._optimizer.onload()
        self._offloaded = False

    # --- weights and checkpoints ---

    def named_weights(self) -> dict[str, Tensor]:
        """The live weights by Hugging Face name, without copies."""
        return named_weights(self.model)

    def pack_weights(self, out: np.ndarray | None = None) -> tuple[np.ndarray, WeightManifest]:
        """A copy of the weights as one flat uint8 buffer in host memory."""
        return pack_weights(self.named_weights(), out)

    def save(self, folder: Path) -> None:
        """Write model, optimizer and random state into an existing folder. Call it on one rank only."""
        checkpoint.save(folder, self.model, self._optimizer, self._rng, self._tokenizer_dir)

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, on every rank. Raises CheckpointError and then has changed nothing."""
        checkpoint.load(folder, self.model, self._optimizer, self._rng)
        if self._offloaded:
            self.offload()


def _frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)
