"""The sizes of a model that memory depends on, from its ``config.json`` alone: no weights, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swingshift.config.schema import ModelConfig
from swingshift.errors import ConfigError

FAMILIES = ("llama", "qwen2", "qwen3")
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_KEY = "actor_rollout_ref.model.path"
# What these families' configurations say where a file is silent.
_KV_HEADS = {"qwen2": 32, "qwen3": 32}
_HEAD_DIM = {"qwen3": 128}


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A dense decoder. ``head_dim`` is per head; biases and norms as the families have them."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    """Input and output embeddings are one matrix."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @classmethod
    def of_hf_config(cls, values: Mapping[str, Any], name: str) -> ModelSizes:
        """From what ``config.json`` holds; ``name`` is for errors. Raises ConfigError."""
        family = values.get("model_type")
        if family not in FAMILIES:
            raise ConfigError(
                f"{_KEY}={name}: how much memory a model of architecture {family!r} takes is not known here; "
                f"choose one of {', '.join(FAMILIES)}"
            )
        try:
            heads = int(values["num_attention_heads"])
            hidden = int(values["hidden_size"])
            bias = bool(values.get("attention_bias"))
            return cls(
                num_layers=int(values["num_hidden_layers"]),
                hidden_size=hidden,
                intermediate_size=int(values["intermediate_size"]),
                num_heads=heads,
                num_kv_heads=int(values.get("num_key_value_heads") or _KV_HEADS.get(family, heads)),
                head_dim=int(values.get("head_dim") or _HEAD_DIM.get(family, hidden // heads)),
                vocab_size=int(values["vocab_size"]),
                tied=bool(values.get("tie_word_embeddings")),
                qkv_bias=bias or family == "qwen2",
                out_bias=bias and family != "qwen2",
                mlp_bias=bool(values.get("mlp_bias")) and family == "llama",
                qk_norm=family == "qwen3",
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"{_KEY}={name}: config.json lacks sizes ({error!r}); give a model folder") from error

    @classmethod
    def of_builtin(cls, model: ModelConfig, vocab_size: int) -> ModelSizes:
        """``builtin:tiny``."""
        return cls(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            intermediate_size=4 * model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_heads,
            head_dim=model.hidden_size // model.num_heads,
            vocab_size=vocab_size,
            tied=True,
        )

    # --- parameters ---

    @property
    def qkv_size(self) -> int:
        """Outputs of the three projections together."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def attention_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def packable_params(self) -> int:
        """Projections that read the same input; an engine copies them into one matrix where they are small."""
        per_layer = self.hidden_size * (self.qkv_size + 2 * self.intermediate_size)
        per_layer += self.qkv_size * self.qkv_bias + 2 * self.intermediate_size * self.mlp_bias
        return self.num_layers * per_layer

    @property
    def num_params(self) -> int:
        hidden = self.hidden_size
        rest = hidden * (self.attention_size + self.intermediate_size) + 2 * hidden
        rest += hidden * self.out_bias + hidden * self.mlp_bias + 2 * self.head_dim * self.qk_norm
        embeddings = self.vocab_size * hidden * (1 if self.tied else 2)
        return self.packable_params + self.num_layers * rest + embeddings + hidden

    @property
    def num_tensors(self) -> int:
        """Parameters as torch counts them: matrices and vectors."""
        per_layer = 9 + 3 * self.qkv_bias + self.out_bias + 3 * self.mlp_bias + 2 * self.qk_norm
        return self.num_layers * per_layer + (2 if self.tied else 3)

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest parameter."""
        return self.hidden_size * max(self.vocab_size, self.intermediate_size, self.attention_size)

    @property
    def kv_values_per_token(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
