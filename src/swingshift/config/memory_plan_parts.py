"""Formulas: what each thing that lies in memory takes, in bytes. Pure; ``docs/memory.md`` lists them.

Weights, gradients, optimizer state and KV cache are exact. Activations and the engine's work are upper bounds for
the operations this trainer and this engine make; tests hold both against what torch allocates.
"""

from __future__ import annotations

from swingshift.config.memory_plan_model import DTYPE_BYTES, ModelSizes
from swingshift.config.plan import budget_numbers
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.row_sharing import widest_shared_row

MASTER_BYTES = 4
"""Gradients, optimizer state and master weights are float32, whatever the model's type."""
PACK_LIMIT_BYTES = 64 * 2**20
"""Larger projections the engine reads in place."""
MAX_PREFILL_TOKENS = 8192
SYNC_ALIGNMENT = 64
"""Bytes to which every tensor is padded in the buffer of a weight sync, at most."""


def param_bytes(config: SwingshiftConfig) -> int:
    return DTYPE_BYTES[config.actor_rollout_ref.model.dtype]


def weight_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    return sizes.num_params * param_bytes(config)


# --- training -----------------------------------------------------------------------------------------------


def gradient_bytes(sizes: ModelSizes) -> int:
    """One flat buffer, with a last element that carries the loss."""
    return (sizes.num_params + 1) * MASTER_BYTES


def optimizer_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    """Adam's two moments and step counts, and the float32 weights of a model in a lower precision."""
    masters = 1 if param_bytes(config) < MASTER_BYTES else 0
    return (2 + masters) * sizes.num_params * MASTER_BYTES + sizes.num_tensors * MASTER_BYTES


def micro_batch_tokens(config: SwingshiftConfig) -> int:
    """Tokens of the largest micro-batch, padding included."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    longest = config.data.max_prompt_length + rollout.response_length
    return min(actor.ppo_max_token_len_per_gpu, actor.ppo_mini_batch_size * rollout.n * longest)


def activation_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    """The peak of one forward and backward pass over a micro-batch, in which nothing is computed twice.

    What the layers keep is all there when the logits are; these are gone when gradients reach the layers.
    """
    tokens, width = micro_batch_tokens(config), _mask_width(config, sizes)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    logits = _logit_bytes(config, sizes, min(tokens, actor.ppo_mini_batch_size * rollout.n * rollout.response_length))
    return (
        kept_bytes(tokens, width, sizes, param_bytes(config))
        + max(logits, tokens * param_bytes(config) * (2 * sizes.intermediate_size + sizes.hidden_size))
        + _weight_gradient_bytes(config, sizes)
    )


def kept_bytes(tokens: int, mask_width: int, sizes: ModelSizes, width: int) -> int:
    """What a forward pass keeps for the backward pass; ``width``: bytes of a value."""
    hidden, attention = sizes.hidden_size, sizes.attention_size
    layer = 2 * _norm_bytes(hidden, width) + 5 * attention * width + 4 * sizes.num_heads
    layer += 4 * sizes.intermediate_size * width
    if sizes.qk_norm:
        layer += _norm_bytes(attention + sizes.num_kv_heads * sizes.head_dim, width)
    ends = _norm_bytes(hidden, width) + 2 * hidden * width
    # A mask of truth values, and each layer's copy of it as numbers.
    masks = mask_width * (1 + sizes.num_layers * width)
    return tokens * (sizes.num_layers * layer + ends + masks)


def _norm_bytes(size: int, width: int) -> int:
    """Input, scaled and weighted output; below float32 the input as float32 too."""
    return size * (3 * width + (MASTER_BYTES if width < MASTER_BYTES else 0))


def _logit_bytes(config: SwingshiftConfig, sizes: ModelSizes, num_responses_tokens: int) -> int:
    """Logits, log-probs, and two of that size for the entropy, float32; more with temperature or entropy bonus."""
    width, temperature = param_bytes(config), config.actor_rollout_ref.rollout.temperature
    per_logit = 4 * MASTER_BYTES + (width if width < MASTER_BYTES else 0)
    per_logit += MASTER_BYTES * (temperature != 1.0)
    per_logit += 2 * MASTER_BYTES * (config.actor_rollout_ref.actor.entropy_coeff > 0)
    return num_responses_tokens * sizes.vocab_size * per_logit


def _weight_gradient_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    """The largest gradient before it is added up; below float32 all of them in the model's own type too."""
    width = param_bytes(config)
    return width * (sizes.largest_tensor + (sizes.num_params if width < MASTER_BYTES else 0))


def _mask_width(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    rollout = config.actor_rollout_ref.rollout
    width = widest_shared_row(config.data.max_prompt_length, rollout.response_length, rollout.n, sizes.hidden_size)
    return min(width, config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)


# --- engine -------------------------------------------------------------------------------------------------


def max_model_len(config: SwingshiftConfig) -> int:
    """Tokens of a slot: the longest prompt and response."""
    return config.data.max_prompt_length + config.actor_rollout_ref.rollout.response_length


def slot_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    """KV cache of one response."""
    return max_model_len(config) * sizes.kv_values_per_token * param_bytes(config)


def packed_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    """The engine's own copies of small projections."""
    size = sizes.packable_params * param_bytes(config)
    return size if size <= PACK_LIMIT_BYTES else 0


def engine_work_bytes(config: SwingshiftConfig, sizes: ModelSizes, num_slots: int) -> int:
    """Tables, and the larger of a prefill pass and a decode step."""
    width, length = param_bytes(config), max_model_len(config)
    tokens = min(max(MAX_PREFILL_TOKENS, length), num_slots * length)
    per_token = sizes.kv_values_per_token
    per_token += 4 * sizes.hidden_size + 4 * sizes.qkv_size + 3 * sizes.intermediate_size
    prefill = (tokens * per_token + length * sizes.kv_values_per_token) * width
    rollout = config.actor_rollout_ref.rollout
    per_logit = width + 6 * 4 + (6 * 4 if rollout.top_p < 1 or rollout.top_k > 0 else 0)
    decode = num_slots * (sizes.vocab_size * per_logit + length * width)
    norms = (2 * sizes.num_layers + 1) * sizes.hidden_size * 4
    rotations = length * sizes.head_dim * (4 + 2 * width)
    return max(prefill, decode) + norms + rotations + 2 * length * width


# --- host ---------------------------------------------------------------------------------------------------


def keeps_proximal(config: SwingshiftConfig) -> bool:
    """Does decoupled PPO keep the weights of a cycle's start?"""
    collections_per_cycle = budget_numbers(config).trigger_parameter_sync_step
    return not config.algorithm.rollout_correction.bypass_mode and collections_per_cycle > 1


def published_bytes(config: SwingshiftConfig, sizes: ModelSizes) -> int:
    """The packed buffer of one weight sync."""
    return weight_bytes(config, sizes) + sizes.num_tensors * SYNC_ALIGNMENT
