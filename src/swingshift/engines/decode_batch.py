"""The tensors of the decode step for one set of running responses, advanced in place from step to step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from swingshift.engines.kv_cache import KVCache
from swingshift.engines.sampling import SamplingBatch
from swingshift.engines.scheduler import Response


def causal_windows(max_len: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[max_len + 1, max_len]: row ``max_len - 1 - p`` is the attention bias of position ``p``.

    A view of a vector of 2 * max_len numbers, so a step's whole bias is one row selection.
    """
    zeros = torch.zeros(max_len, dtype=dtype, device=device)
    return torch.cat((zeros, torch.full_like(zeros, -math.inf))).unfold(0, max_len, 1)


class DecodeBatch:
    """Rebuilt when responses join, leave or move; ``advance`` is all that happens between plain steps.

    ``counters`` [2 * kv heads + 2, rows] stacks everything that changes by one a step: where new keys and
    values go, the position, and the row of the causal windows.
    """

    def __init__(self, rows: Sequence[Response], cache: KVCache, windows: Tensor, vocab_size: int) -> None:
        device = cache.device
        known = [r.tokens[-1] if r.tokens else r.context[-1] for r in rows]
        positions = [r.position for r in rows]
        self.tokens = torch.tensor(known, device=device)
        at = torch.tensor(positions, device=device)[None]
        vectors = cache.first_vectors[:, : len(rows)] + at
        self._counters = torch.cat((vectors, at, cache.max_len - 1 - at))
        self.vectors = self._counters[:-2]
        self.positions = self._counters[-2]
        self._window_rows = self._counters[-1]
        self._change = torch.ones((len(vectors) + 2, 1), dtype=torch.long, device=device)
        self._change[-1] = -1
        self._windows = windows
        self._rows = cache.first_rows(len(rows))
        self.cache_vectors = cache.vectors
        self._attended = max(positions) + 1
        self.sampling = SamplingBatch.build([r.job.request.sampling for r in rows], vocab_size, device)

    @property
    def keys_values(self) -> list[tuple[Tensor, ...]]:
        """Per layer: keys and values of the positions attended, [rows, kv heads, attended, head_dim]."""
        return [kv.narrow(3, 0, self._attended).unbind(0) for kv in self._rows]

    @property
    def bias(self) -> Tensor:
        """[rows, 1, 1, attended]: 0 where a row may look, -inf behind its own position."""
        return self._windows[:, : self._attended].index_select(0, self._window_rows)[:, None, None]

    def advance(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self._counters.add_(self._change)
        self._attended += 1
