"""The arithmetic of the engine: slots, prefill, decode steps and sampling. No requests' fates, no threads."""

from __future__ import annotations

import torch
from torch import Tensor

from swingshift.core.types import Tokens
from swingshift.engines.decode_batch import DecodeBatch, causal_windows
from swingshift.engines.decoder import Decoder, RopeTable
from swingshift.engines.kv_cache import KVCache
from swingshift.engines.prefill import Prefill, batch_prefills, group_joins
from swingshift.engines.profiler import EngineProfiler
from swingshift.engines.sampling import sample
from swingshift.engines.scheduler import Job, Plan, Response, Scheduler
from swingshift.engines.weights import ModelWeights


class Runner:
    """Runs the responses in ``scheduler.rows`` on the weights and cache it was given."""

    def __init__(self, weights: ModelWeights, cache: KVCache, profiler: EngineProfiler, *, seed: int) -> None:
        self.weights = weights
        self.cache = cache
        self._range = profiler.range
        rope = RopeTable(weights.model, cache.max_len, cache.dtype, cache.device)
        self._decoder = Decoder(weights.shape, rope)
        self._windows = causal_windows(cache.max_len, cache.dtype, cache.device)
        self._generator = torch.Generator(device=cache.device).manual_seed(seed)
        self._batch: DecodeBatch | None = None
        self._kept: tuple[Job, Tokens, Tensor] | None = None
        self.num_prefilled_tokens = 0

    @property
    def num_kept_bytes(self) -> int:
        """Keys and values kept for members of a group that still wait; at most one prompt's."""
        kept = self._kept
        return 0 if kept is None else kept[2].untyped_storage().nbytes()

    def forget(self) -> None:
        """Drop everything computed with the present weights outside the slots."""
        self._kept = None
        self._batch = None

    def apply(self, plan: Plan, scheduler: Scheduler) -> None:
        """Carry out moves and joins; called before a step whose set of rows differs from the last one's."""
        for source, target in plan.moves:
            moved = scheduler.rows[target]
            assert moved is not None
            self.cache.move(source, target, moved.position)
        needed = self._store_kept(group_joins(plan.joins))
        for prefills in batch_prefills([p for p in needed if p.length]):
            with self._range("prefill"):
                self._prefill(prefills, scheduler)
        self.rows_changed(scheduler)

    def rows_changed(self, scheduler: Scheduler) -> None:
        """Rows joined, moved or left: rebuild the batch, and drop a kept prompt that nobody waits for."""
        if self._kept is not None and not _still_waits(scheduler, self._kept[0], self._kept[1]):
            self._kept = None
        self._batch = None

    def _store_kept(self, prefills: list[Prefill]) -> list[Prefill]:
        """Serve what an earlier prefill of the same job computed; returns the rest."""
        rest = []
        for p in prefills:
            if self._kept is not None and self._kept[0] is p.job and self._kept[1] == p.tokens:
                self.cache.store(p.rows, self._kept[2])
            else:
                p.first.num_prefill_tokens = p.length + 1
                self.num_prefilled_tokens += p.length + 1
                rest.append(p)
        return rest

    def _prefill(self, prefills: list[Prefill], scheduler: Scheduler) -> None:
        longest = max(p.length for p in prefills)
        padded = [p.tokens + (0,) * (longest - p.length) for p in prefills]
        decoder_weights = self.weights.decoder
        assert decoder_weights is not None
        kv = self._decoder.prefill(decoder_weights, torch.tensor(padded, device=self.cache.device))
        for i, p in enumerate(prefills):
            computed = kv[:, :, i, :, : p.length]
            self.cache.store(p.rows, computed)
            if _still_waits(scheduler, p.job, p.tokens):
                self._kept = (p.job, p.tokens, computed.clone())

    def step(self, rows: list[Response]) -> tuple[list[int], list[float]]:
        """Draw one more token for each row; returns tokens and log-probs (NaN where the model is broken)."""
        decoder_weights = self.weights.decoder
        assert decoder_weights is not None
        if self._batch is None:
            self._batch = DecodeBatch(rows, self.cache, self._windows, self.weights.shape.vocab_size)
        batch = self._batch
        with self._range("decode"):
            logits = self._decoder.decode(decoder_weights, batch)
        with self._range("sampling"):
            tokens, log_probs = sample(logits, batch.sampling, self._generator)
            batch.advance(tokens)
            return tokens.tolist(), log_probs.tolist()


def _still_waits(scheduler: Scheduler, job: Job, tokens: Tokens) -> bool:
    """Whether the next response in line belongs to this job and starts from the same context."""
    if not scheduler.waiting:
        return False
    head = scheduler.waiting[0]
    return head.job is job and head.context[:-1] == tokens
