"""The engine's view of a Hugging Face model's parameters: read in place, freed, allocated and written.

Small models get *packed copies* of the projections that read the same input (one matrix product instead of
three or two, where call overhead dominates). Copies are rebuilt by ``collect`` and never otherwise, so the
engine calls it whenever the parameters may have changed: at wake-up and at the end of a weight update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swingshift.engines.model_shape import ModelShape
from swingshift.errors import ReplicaError

PACK_LIMIT_BYTES = 64 * 2**20
"""Packed copies may take this much; beyond it call overhead no longer matters and memory does."""


@dataclass(frozen=True, slots=True)
class NormWeight:
    """An RMS norm. With ``floor`` = sqrt(size * eps), ``weight`` is a copy scaled by sqrt(size)."""

    weight: Tensor
    eps: float
    floor: Tensor | None

    @classmethod
    def build(cls, weight: Tensor, eps: float) -> NormWeight:
        """float32 on a CPU takes the form that needs few operations; elsewhere torch's own kernel is as fast."""
        if weight.dtype != torch.float32 or weight.is_cuda:
            return cls(weight, eps, None)
        size = weight.shape[-1]
        return cls(weight * size**0.5, eps, torch.tensor((size * eps) ** 0.5))


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Tuples hold one packed tensor, or one tensor per projection. ``*_t`` are transposed."""

    input_norm: NormWeight
    qkv: tuple[Tensor, ...]
    qkv_bias: tuple[Tensor | None, ...]
    qk_norm: NormWeight | None
    """[query heads + kv heads, head_dim]: the per-head norm weights of Qwen3."""
    out_t: Tensor
    out_bias: Tensor | None
    post_norm: NormWeight
    gate_up: tuple[Tensor, ...]
    gate_up_bias: tuple[Tensor | None, ...]
    down_t: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """``interleaved``: rotary pairs lie next to each other in q and k (a packed copy may reorder them)."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeight
    head: Tensor
    interleaved: bool
    packed_bytes: int


class ModelWeights:
    """Owns the life of the parameters, or (``shared``) only reads those of a trainer."""

    def __init__(self, model: torch.nn.Module, shape: ModelShape, *, shared: bool, device: torch.device) -> None:
        self.model = model
        self.shape = shape
        self.shared = shared
        self.device = device
        self._sizes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        self._unwritten: set[str] = set()
        self.decoder: DecoderWeights | None = None
        self.allocated = True

    @property
    def unwritten(self) -> frozenset[str]:
        """Parameters whose contents are undefined."""
        return frozenset(self._unwritten)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def num_bytes(self) -> int:
        """Own memory: packed copies, and the parameters unless they are a trainer's."""
        decoder = self.decoder
        packed = 0 if decoder is None else decoder.packed_bytes
        own = 0 if self.shared else sum(p.numel() * p.element_size() for p in self._parameters_on_device())
        return packed + own

    def _parameters_on_device(self) -> Iterable[Tensor]:
        return (p for p in self.model.parameters() if p.device.type == self.device.type)

    def collect(self) -> None:
        """Look the parameters up again and rebuild the packed copies."""
        assert self.allocated and not self._unwritten, "weights are undefined"
        self.decoder = _collect(self.model, self.shape)

    def free(self) -> None:
        """Drop packed copies, and (not shared) the parameters themselves."""
        self.decoder = None
        if self.shared:
            return
        for p in self.model.parameters():
            p.data = torch.empty(0, dtype=p.dtype, device=self.device)
        self._unwritten = set(self._sizes)
        self.allocated = False

    def invalidate(self) -> None:
        """Contents are undefined until written again; a trainer's parameters always count as defined."""
        self.decoder = None
        if not self.shared:
            self._unwritten = set(self._sizes)

    def move_to_host(self) -> None:
        """Level-1 sleep: keep contents, but in host memory (nothing moves on a CPU)."""
        self.decoder = None
        if not self.shared:
            self._move(torch.device("cpu"))
            self.allocated = False

    def allocate(self) -> None:
        """Undo ``free`` (contents undefined) or ``move_to_host`` (contents kept)."""
        if self.allocated:
            return
        if self._unwritten:
            for name, p in self.model.named_parameters():
                p.data = torch.empty(self._sizes[name], dtype=p.dtype, device=self.device)
        else:
            self._move(self.device)
        self.allocated = True

    def _move(self, device: torch.device) -> None:
        for p in self.model.parameters():
            p.data = p.data.to(device)

    def write(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Copy tensors into parameters of the same name and shape; the packed copies are stale afterwards."""
        if self.shared:
            raise ReplicaError("this engine reads the trainer's parameters in place; it takes no weights")
        if not self.allocated:
            raise ReplicaError("the weights are asleep: call wake_up(['weights']) before writing them")
        own: dict[str, Tensor] = dict(self.model.named_parameters(remove_duplicate=False))
        for name, value in named_tensors:
            if name not in own:
                raise ReplicaError(f"weight update names {name!r}, which this model does not have")
            if own[name].shape != value.shape:
                raise ReplicaError(f"weight {name!r} is {tuple(value.shape)}, want {tuple(own[name].shape)}")
            own[name].data.copy_(value)
            self._unwritten.difference_update(n for n, p in own.items() if p is own[name])


def _collect(model: torch.nn.Module, shape: ModelShape) -> DecoderWeights:
    net: Any = model
    embedding, head = net.model.embed_tokens.weight.detach(), net.lm_head.weight.detach()
    layers = list(net.model.layers)
    packable = sum(_num_bytes(p) for layer in layers for p in _packable(layer))
    packs = packable <= PACK_LIMIT_BYTES
    interleaved = packs and embedding.dtype == torch.float32
    collected = tuple(_collect_layer(layer, shape, packs=packs, interleaved=interleaved) for layer in layers)
    return DecoderWeights(
        embedding=embedding,
        layers=collected,
        final_norm=NormWeight.build(net.model.norm.weight.detach(), shape.norm_eps),
        head=head,
        interleaved=interleaved,
        packed_bytes=packable if packs else 0,
    )


def _packable(layer: Any) -> list[Tensor]:
    attention, mlp = layer.self_attn, layer.mlp
    modules = (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj)
    return [p for m in modules for p in m.parameters()]


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _collect_layer(layer: Any, shape: ModelShape, *, packs: bool, interleaved: bool) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    order = _interleave if interleaved else _keep
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    qkv, qkv_bias = _weights(projections), _biases(projections)
    gate_up, gate_up_bias = _weights((mlp.gate_proj, mlp.up_proj)), _biases((mlp.gate_proj, mlp.up_proj))
    if packs:
        qkv, qkv_bias = _pack_qkv(qkv, qkv_bias, shape, order)
        gate_up, gate_up_bias = (torch.cat(gate_up),), _pack_biases(gate_up_bias)
    return LayerWeights(
        input_norm=NormWeight.build(layer.input_layernorm.weight.detach(), shape.norm_eps),
        qkv=qkv,
        qkv_bias=qkv_bias,
        qk_norm=_qk_norm(attention, shape, order),
        out_t=attention.o_proj.weight.detach().t(),
        out_bias=_bias(attention.o_proj),
        post_norm=NormWeight.build(layer.post_attention_layernorm.weight.detach(), shape.norm_eps),
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down_t=mlp.down_proj.weight.detach().t(),
        down_bias=_bias(mlp.down_proj),
    )


def _weights(modules: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return tuple(m.weight.detach() for m in modules)


def _bias(module: Any) -> Tensor | None:
    return None if module.bias is None else module.bias.detach()


def _biases(modules: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    return tuple(_bias(m) for m in modules)


def _pack_qkv(weights: Any, biases: Any, shape: ModelShape, order: Any) -> tuple[Any, Any]:
    q, k, v = weights
    packed = torch.cat((order(q, shape.num_heads), order(k, shape.num_kv_heads), v))
    if biases[0] is not None:
        bq, bk, bv = biases
        biases = (order(bq, shape.num_heads), order(bk, shape.num_kv_heads), bv)
    return (packed,), _pack_biases(biases)


def _pack_biases(biases: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    present = [b for b in biases if b is not None]
    assert len(present) in (0, len(biases)), "some projections have a bias and others have none"
    return (torch.cat(present),) if present else (None,)


def _interleave(weight: Tensor, num_heads: int) -> Tensor:
    """[heads * head_dim, ...]: put element i of the second half of each head right behind element i of the first.

    Queries and keys are reordered alike, so their products do not change, and a rotary rotation becomes one
    complex multiplication.
    """
    halves = weight.view(num_heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _keep(weight: Tensor, num_heads: int) -> Tensor:
    return weight


def _qk_norm(attention: Any, shape: ModelShape, order: Any) -> NormWeight | None:
    if not hasattr(attention, "q_norm"):
        return None
    q, k = order(attention.q_norm.weight.detach(), 1), order(attention.k_norm.weight.detach(), 1)
    rows = (q.expand(shape.num_heads, -1), k.expand(shape.num_kv_heads, -1))
    return NormWeight.build(torch.cat(rows), shape.norm_eps)
