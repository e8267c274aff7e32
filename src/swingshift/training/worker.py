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

from swingshift.config.schema import ActorConfig, RolloutCorrectionConfig
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.errors import TrainerError
from swingshift.runtime.ports import TrainResult
from swingshift.training import checkpoint
from swingshift.training.batch import MicroBatch, Row, micro_batch
from swingshift.training.forward import can_share_prompts, response_logits
from swingshift.training.losses import LossSettings, actor_loss, token_log_probs
from swingshift.training.metrics import CollectionMetrics
from swingshift.training.optimizer import FlatAdamW
from swingshift.training.plan import Share, mini_batches, rank_chunks, train_groups
from swingshift.training.profiling import TrainProfiler
from swingshift.training.proximal import ProximalWeights
from swingshift.training.weights import WeightManifest, named_weights, pack_weights

logger = logging.getLogger(__name__)


class TorchTrainWorker:
    """Trains ``model`` in place; one instance per rank, all given the same configuration and groups.

    Synchronous: every method blocks until done. With ``world_size`` > 1 all ranks must be constructed and
    must call ``train`` together, with the same groups in the same order: collectives (gloo or nccl, over
    ``process_group``) wait for all. Rank 0's weights become everybody's at construction. ``temperature`` is
    the one the rollout sampled with. A KL loss needs a reference: ``ref_model``, or a frozen copy of
    ``model`` as it is now. ``collections_per_cycle``: how many ``train`` calls share a weight version, if known;
    with one, decoupled PPO needs no copy of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        actor: ActorConfig,
        *,
        temperature: float = 1.0,
        norm_adv_by_std: bool = True,
        correction: RolloutCorrectionConfig | None = None,
        collections_per_cycle: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        process_group: dist.ProcessGroup | None = None,
        ref_model: nn.Module | None = None,
        tokenizer_dir: Path | None = None,
        profiler: TrainProfiler | None = None,
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
        self._profiler = profiler or TrainProfiler()
        self._clock = clock
        correction = correction or RolloutCorrectionConfig()
        self._settings = LossSettings(
            clip_low=actor.clip_low,
            clip_high=actor.clip_high,
            entropy_coeff=actor.entropy_coeff,
            kl_coef=actor.kl_loss_coef,
            kl_kind=actor.kl_loss_type,
            apply_rollout_is=correction.rollout_is is not None,
            rollout_is_threshold=correction.rollout_is_threshold,
        )
        self._rng = np.random.default_rng(seed)
        self._offloaded = False
        if world_size > 1:
            for tensor in named_weights(model).values():
                dist.broadcast(tensor, group_src=0, group=process_group)
        self._ref = _frozen(ref_model or copy.deepcopy(model)) if actor.use_kl_loss else None
        params = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._optimizer = FlatAdamW(params, actor.optim)
        self._proximal: ProximalWeights | None = None
        if not correction.bypass_mode:
            self._proximal = ProximalWeights(params.values(), keep=collections_per_cycle != 1)
        self._device = next(iter(params.values())).device
        config: Any = model.config
        hidden_size = int(config.hidden_size) if can_share_prompts(model) else None
        self._share = Share(rank, world_size, hidden_size, actor.ppo_max_token_len_per_gpu)

    # --- training ---

    def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        """Pass over the groups in mini-batches of ``ppo_mini_batch_size``, ``ppo_epochs`` times.

        In decoupled PPO the first call with another ``version`` begins a cycle: its weights then are the proximal
        policy of every call with that version.

        Groups whose rewards are all equal keep their place in a mini-batch but contribute nothing; a
        mini-batch of only such groups makes no optimizer step. Raises TrainerError for missing rewards, empty
        prompts or a non-finite loss or gradient (before it reaches the weights), ConfigError for a response
        over the limit.
        """
        if self._offloaded:
            raise TrainerError("train() while the device is lent: call onload() first")
        if not groups:
            raise TrainerError(f"train() without groups at version {version}")
        with self._profiler.call(version):
            return self._train(groups, version)

    def _train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        timings: dict[str, float] = defaultdict(float)
        metrics = CollectionMetrics(self._device, decoupled=self._proximal is not None)
        with self._timed(timings, "adv"):
            parts = train_groups(groups, norm_by_std=self._norm_adv_by_std, max_tokens=self._share.max_tokens)
        plan = list(mini_batches(groups, parts, self._actor, self._rng))
        layout = [rank_chunks(m, self._actor.loss_agg_mode, self._share) for m in plan]
        old_log_probs = self._old_log_probs(layout, version, timings)
        for mini_batch, chunks, old in zip(plan, layout, old_log_probs, strict=True):
            if not mini_batch.groups:
                logger.info("%s carries no signal: no optimizer step", mini_batch.label)
                metrics.num_steps_without_signal += 1
                continue
            self._train_mini_batch(mini_batch.label, chunks, old, timings, metrics)
        metrics.reduce(self._world_size, self._group)
        result = metrics.result(groups, num_without_signal=sum(p is None for p in parts))
        return TrainResult(timings_s=dict(timings), metrics=result)

    def _old_log_probs(
        self, layout: list[list[list[Row]]], version: WeightVersion, timings: dict[str, float]
    ) -> list[list[Tensor | None]]:
        """The proximal policy's log-probs, by mini-batch and micro-batch; None in bypass mode.

        For the whole collection at once, before its first optimizer step: the weights are exchanged at most once.
        """
        if self._proximal is None:
            return [[None for _ in chunks] for chunks in layout]
        with self._timed(timings, "old_log_prob"), self._proximal.in_place(version), torch.no_grad():
            return [
                [self._forward(self.model, micro_batch(chunk).to(self._device))[0] for chunk in chunks]
                for chunks in layout
            ]

    def _train_mini_batch(
        self,
        label: str,
        chunks: list[list[Row]],
        old_log_probs: list[Tensor | None],
        timings: dict[str, float],
        metrics: CollectionMetrics,
    ) -> None:
        self._optimizer.zero_grad()
        for chunk, old in zip(chunks, old_log_probs, strict=True):
            batch = micro_batch(chunk)
            metrics.count_inputs(batch)
            batch = batch.to(self._device)
            ref_log_probs = None
            if self._ref is not None:
                with self._timed(timings, "ref"), torch.no_grad():
                    ref_log_probs, _ = self._forward(self._ref, batch)
            with self._timed(timings, "update_actor"):
                self._backward(batch, ref_log_probs, old, metrics)
        with self._timed(timings, "update_actor"):
            self._step(label, metrics)

    def _backward(
        self,
        batch: MicroBatch,
        ref_log_probs: Tensor | None,
        old_log_probs: Tensor | None,
        metrics: CollectionMetrics,
    ) -> None:
        log_probs, entropy = self._forward(self.model, batch)
        result = actor_loss(
            log_probs,
            entropy,
            batch.rollout_log_probs,
            batch.advantages,
            batch.weights,
            self._settings,
            ref_log_probs,
            old_log_probs,
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
        with self._profiler.range(key):
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
        """Restore what ``save`` wrote, on every rank. Raises CheckpointError and then has changed nothing.

        The next ``train`` begins a cycle with the restored weights, since those are what rollout is given first.
        """
        checkpoint.load(folder, self.model, self._optimizer, self._rng)
        if self._proximal is not None:
            self._proximal.forget()
        if self._offloaded:
            self.offload()


def _frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)
