"""The sizes of a supported causal LM, read from its Hugging Face config, and the check that it is supported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swingshift.errors import ConfigError

if TYPE_CHECKING:
    import torch

SUPPORTED = ("llama", "qwen2", "qwen3")
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes only; ``num_heads`` are query heads, ``head_dim`` is per head."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float

    @property
    def num_qkv_heads(self) -> int:
        return self.num_heads + 2 * self.num_kv_heads

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize

    @classmethod
    def from_config(cls, config: Any) -> ModelShape:
        heads = config.num_attention_heads
        return cls(
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocab_size=config.vocab_size,
            norm_eps=config.rms_norm_eps,
        )


def kv_bytes_per_token(config: Any, dtype: torch.dtype | None = None) -> int:
    """Bytes of KV cache one token takes. ``dtype``: of the cache; unset: the config's, else float32."""
    import torch  # only here: the check below is also for processes that compute nothing

    own = dtype or getattr(config, "dtype", None) or torch.float32
    return ModelShape.from_config(config).kv_bytes_per_token(own)


def check_supported(config: Any, max_model_len: int) -> None:
    """Raise ConfigError unless the engine computes this model exactly up to ``max_model_len`` tokens."""
    problem = _find_problem(config, max_model_len)
    if problem is not None:
        raise ConfigError(
            f"actor_rollout_ref.model.path: the torch engine cannot run this model: {problem}. "
            f"It runs dense causal LMs of the families {', '.join(SUPPORTED)}; choose one of those."
        )


def _find_problem(config: Any, max_model_len: int) -> str | None:
    if config.model_type not in SUPPORTED:
        return f"its architecture is {config.model_type!r}"
    if config.hidden_act not in ("silu", "swish"):
        return f"hidden_act is {config.hidden_act!r}, not 'silu'"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in _LENGTH_DEPENDENT_ROPE:
        return f"rope_type {rope['rope_type']!r} changes with the sequence length"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "it rotates only a part of each head (partial_rotary_factor)"
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) and window and window < max_model_len:
        return f"it attends over a sliding window of {window} tokens, fewer than the {max_model_len} asked for"
    return None
