"""The static KV cache: one allocation, a slot of ``max_len`` tokens for each response being decoded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from swingshift.engines.model_shape import ModelShape
from swingshift.errors import ConfigError


class KVCache:
    """``data``: [layers, 2 (k, v), slots, kv heads, max_len, head_dim], or None while freed."""

    def __init__(
        self, shape: ModelShape, *, num_slots: int, max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.num_slots = num_slots
        self.max_len = max_len
        self.dtype = dtype
        self.device = device
        self.data: Tensor | None = None
        self.vectors: tuple[Tensor, ...] = ()
        """Per layer: [2 * slots * kv heads * max_len, head_dim], its keys and then its values."""
        self.first_vectors = self._first_vectors()
        """[2 * kv heads, slots]: index of each slot's position 0 in a layer's list of vectors (k, then v)."""

    @property
    def num_bytes(self) -> int:
        data = self.data
        return 0 if data is None else data.untyped_storage().nbytes()

    def allocate(self) -> None:
        """Zeroed, because masked positions are multiplied by 0 and stale memory may hold NaN."""
        if self.data is not None:
            return
        s = self.shape
        sizes = (s.num_layers, 2, self.num_slots, s.num_kv_heads, self.max_len, s.head_dim)
        self.data = torch.zeros(sizes, dtype=self.dtype, device=self.device)
        self.vectors = tuple(kv.view(-1, s.head_dim) for kv in self.data)

    def free(self) -> None:
        self.data, self.vectors = None, ()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _first_vectors(self) -> Tensor:
        heads = self.shape.num_kv_heads
        kind_head = torch.arange(2 * heads, device=self.device)[:, None]
        slots = torch.arange(self.num_slots, device=self.device)
        slot = kind_head // heads * self.num_slots + slots
        return (slot * heads + kind_head % heads) * self.max_len

    def first_rows(self, num_rows: int) -> tuple[Tensor, ...]:
        """Per layer: [2, num_rows, kv heads, max_len, head_dim], a view."""
        assert self.data is not None
        return self.data[:, :, :num_rows].unbind(0)

    def store(self, rows: Sequence[int], kv: Tensor) -> None:
        """Write ``kv`` [layers, 2, kv heads, tokens, head_dim] at the start of each of the rows."""
        assert self.data is not None
        for row in rows:
            self.data[:, :, row, :, : kv.shape[3]] = kv

    def move(self, source: int, target: int, num_tokens: int) -> None:
        assert self.data is not None
        self.data[:, :, target, :, :num_tokens] = self.data[:, :, source, :, :num_tokens]

    def clear(self, row: int) -> None:
        """Zero a row that a broken model may have filled with NaN."""
        assert self.data is not None
        self.data[:, :, row].zero_()


def count_slots(max_num_seqs: int, bytes_per_slot: int, available_bytes: int | None) -> int:
    """How many responses fit. Raises ConfigError when not even one does."""
    if available_bytes is None:
        return max_num_seqs
    slots = min(max_num_seqs, available_bytes // bytes_per_slot)
    if slots < 1:
        raise ConfigError(
            f"actor_rollout_ref.rollout: {available_bytes} bytes of KV cache hold no response of "
            f"{bytes_per_slot} bytes; raise kv_cache_memory_bytes or gpu_memory_utilization, or shorten "
            "data.max_prompt_length and response_length"
        )
    return slots


def cuda_kv_bytes(device: torch.device, memory_utilization: float, weight_bytes: int) -> int:
    """This engine's share of the device less its weights, and never more than what is free now."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, min(int(total * memory_utilization) - weight_bytes, free))
