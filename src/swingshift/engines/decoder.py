"""A functional forward pass of Llama, Qwen2 and Qwen3 over the model's own parameters: prefill and one decode step.

Hidden states are always two-dimensional, [rows or batch * length, hidden], so that residuals are added by the
matrix product itself. Few and large operations: for tiny models the calls cost more than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swingshift.engines.decode_batch import DecodeBatch
from swingshift.engines.model_shape import ModelShape
from swingshift.engines.weights import DecoderWeights, LayerWeights, NormWeight


class RopeTable:
    """Rotations of positions 0 … max_len - 1, for both orders of the rotary pairs.

    ``pairs``: complex64 [max_len, head_dim / 2], for interleaved pairs; ``halves``: cos and signed sin as
    [max_len, 2, head_dim] in the model's dtype, for a first and a second half.
    """

    def __init__(self, model: Any, max_len: int, dtype: torch.dtype, device: torch.device) -> None:
        rotary = model.model.rotary_emb
        frequencies = rotary.inv_freq.to(device=device, dtype=torch.float32)
        angles = torch.arange(max_len, device=device, dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
        self.pairs = torch.complex(cos, sin)
        halves = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
        self.halves = halves.to(dtype)


class Decoder:
    """Stateless but for the weights given to ``use``; the caller holds KV cache and positions."""

    def __init__(self, shape: ModelShape, rope: RopeTable) -> None:
        self.shape = shape
        self.rope = rope

    def rotations(self, weights: DecoderWeights) -> Tensor:
        return self.rope.pairs if weights.interleaved else self.rope.halves

    def prefill(self, weights: DecoderWeights, tokens: Tensor) -> Tensor:
        """Keys and values of right-padded sequences.

        ``tokens``: [batch, length]. Returns [layers, 2, batch, kv heads, length, head_dim]; padding, being
        behind every real token, changes none of theirs. Logits are not computed: the last token of a context
        is left to the first decode step, which samples.
        """
        s = self.shape
        batch, length = tokens.shape
        rotation = self.rotations(weights)[:length]
        x = F.embedding(tokens.reshape(-1), weights.embedding)
        kv = torch.empty((s.num_layers, 2, batch, s.num_kv_heads, length, s.head_dim), dtype=x.dtype, device=x.device)
        last = s.num_layers - 1
        for i, layer in enumerate(weights.layers):
            qkv = self._qkv(layer, x, (batch, length), rotation, interleaved=weights.interleaved)
            kv[i] = qkv[:, :, s.num_heads :].view(batch, length, 2, s.num_kv_heads, -1).permute(2, 0, 3, 1, 4)
            if i == last:
                break
            q = qkv[:, :, : s.num_heads].transpose(1, 2)
            shared = s.num_heads != s.num_kv_heads
            out = F.scaled_dot_product_attention(q, kv[i, 0], kv[i, 1], is_causal=True, enable_gqa=shared)
            self._finish_layer(layer, x, out.transpose(1, 2).reshape(batch * length, -1))
        return kv

    def decode(self, weights: DecoderWeights, batch: DecodeBatch) -> Tensor:
        """One step of the batch's rows; writes their new keys and values into the cache.

        Returns logits, float32 [rows, vocab].
        """
        s = self.shape
        rows, bias = len(batch.tokens), batch.bias
        rotation = self.rotations(weights).index_select(0, batch.positions)
        x = F.embedding(batch.tokens, weights.embedding)
        layers = zip(weights.layers, batch.cache_vectors, batch.keys_values, strict=True)
        for layer, cached, (keys, values) in layers:
            qkv = self._qkv(layer, x, (rows,), rotation, interleaved=weights.interleaved)
            cached.index_put_((batch.vectors,), qkv[:, s.num_heads :].transpose(0, 1))
            # Query heads that share a kv head become the query length: no repeated keys.
            q = qkv[:, : s.num_heads].view(rows, s.num_kv_heads, -1, s.head_dim)
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias)
            self._finish_layer(layer, x, out.reshape(rows, -1))
        return F.linear(_norm(x, weights.final_norm), weights.head).float()

    def _qkv(
        self, layer: LayerWeights, x: Tensor, lead: tuple[int, ...], rotation: Tensor, *, interleaved: bool
    ) -> Tensor:
        """[*lead, query + 2 kv heads, head_dim], rotated."""
        s = self.shape
        x = _norm(x, layer.input_norm)
        parts = [F.linear(x, w, b) for w, b in zip(layer.qkv, layer.qkv_bias, strict=True)]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        qkv = flat.view(*lead, s.num_qkv_heads, s.head_dim)
        qk = qkv.narrow(-2, 0, s.num_heads + s.num_kv_heads)
        if layer.qk_norm is not None:
            qk.copy_(_norm(qk, layer.qk_norm))
        if interleaved:
            torch.view_as_complex(qk.view(*qk.shape[:-1], -1, 2)).mul_(rotation.unsqueeze(-2))
        else:
            cos, sin = rotation[..., 0, :].unsqueeze(-2), rotation[..., 1, :].unsqueeze(-2)
            qk.copy_(torch.addcmul(qk * cos, qk.roll(s.head_dim // 2, -1), sin))
        return qkv

    def _finish_layer(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> None:
        """Output projection and MLP, added to ``x`` in place."""
        x.addmm_(attended, layer.out_t)
        if layer.out_bias is not None:
            x.add_(layer.out_bias)
        h = _norm(x, layer.post_norm)
        parts = [F.linear(h, w, b) for w, b in zip(layer.gate_up, layer.gate_up_bias, strict=True)]
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        x.addmm_(F.silu(gate).mul_(up), layer.down_t)
        if layer.down_bias is not None:
            x.add_(layer.down_bias)


def _norm(x: Tensor, norm: NormWeight) -> Tensor:
    """RMS norm over the last dimension, in half as many operations as torch's own where ``floor`` is given.

    weight * x / sqrt(|x|^2 / size + eps) = (weight * sqrt(size)) * x / hypot(|x|, sqrt(size * eps)).
    """
    if norm.floor is None:
        out = torch.rms_norm(x, (x.shape[-1],), None if norm.weight.dim() > 1 else norm.weight, norm.eps)
        return out.mul_(norm.weight) if norm.weight.dim() > 1 else out
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x / length.hypot_(norm.floor)).mul_(norm.weight)
