"""Weights as one flat buffer: many small tensors cost more to send than their bytes do."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

ALIGNMENT = 64
"""Bytes: every tensor starts on a cache line, so that views are aligned for any dtype."""

# Buffers from an object store are read-only; torch would warn about the first view in each process.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """Where each tensor lies in the packed buffer: offsets in bytes, dtypes by torch name (``float32``)."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    offsets: tuple[int, ...]
    num_bytes: int


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by Hugging Face name, without copies; tied weights appear once."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    tied = {id(p) for p in model.parameters()}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in tied:
            weights[name] = value.detach()
    return weights


def weight_manifest(weights: Mapping[str, Tensor]) -> WeightManifest:
    offsets, end = [], 0
    for tensor in weights.values():
        offsets.append(end)
        end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return WeightManifest(
        names=tuple(weights),
        shapes=tuple(tuple(t.shape) for t in weights.values()),
        dtypes=tuple(str(t.dtype).removeprefix("torch.") for t in weights.values()),
        offsets=tuple(offsets),
        num_bytes=end,
    )


def pack_weights(weights: Mapping[str, Tensor], out: np.ndarray | None = None) -> tuple[np.ndarray, WeightManifest]:
    """Copy all tensors into one contiguous uint8 buffer [num_bytes] in host memory (``out`` if given)."""
    manifest = weight_manifest(weights)
    buffer = np.empty(manifest.num_bytes, dtype=np.uint8) if out is None else out
    assert buffer.dtype == np.uint8 and buffer.shape == (manifest.num_bytes,), "buffer does not fit"
    for target, source in zip(unpack_weights(buffer, manifest).values(), weights.values(), strict=True):
        target.copy_(source)
    return buffer, manifest


def unpack_weights(buffer: np.ndarray, manifest: WeightManifest) -> dict[str, Tensor]:
    """Views into ``buffer`` by name, without copies. Do not write to them if the buffer is shared."""
    assert buffer.dtype == np.uint8 and buffer.shape == (manifest.num_bytes,), "buffer does not fit"
    flat = torch.from_numpy(buffer)
    weights = {}
    rows = zip(manifest.names, manifest.shapes, manifest.dtypes, manifest.offsets, strict=True)
    for name, shape, dtype_name, offset in rows:
        dtype = getattr(torch, dtype_name)
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        weights[name] = flat[offset : offset + num_bytes].view(dtype).view(shape)
    return weights
