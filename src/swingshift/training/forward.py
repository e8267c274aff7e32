"""One forward pass over a micro-batch, with logits only where a response token is predicted."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from swingshift.training.batch import MicroBatch

SHARED_PROMPT_MODELS = frozenset({"llama", "qwen2", "qwen3"})
"""Model types whose attention is known to honour a [B, 1, T, T] mask in every layer."""


def can_share_prompts(model: nn.Module) -> bool:
    """Whether responses may share their prompt's row: full attention everywhere, through torch's sdpa."""
    config: Any = model.config
    windows = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    return config.model_type in SHARED_PROMPT_MODELS and config._attn_implementation == "sdpa" and not windows


def response_logits(model: nn.Module, batch: MicroBatch) -> Tensor:
    """Logits [N, vocabulary] that predict the batch's N response tokens.

    Most outputs belong to prompts or padding, and logits are the largest tensors of a training step: so the
    output layer is shown the chosen hidden states only. Whatever the model does to its logits (scaling,
    capping) still happens.
    """

    def select(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        chosen = args[0].flatten(0, 1).index_select(0, batch.positions)
        return (chosen[None], *args[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(select)  # type: ignore[operator]
    try:
        output = model(
            input_ids=batch.input_ids,
            attention_mask=batch.mask,
            position_ids=batch.position_ids,
            use_cache=False,
        )
    finally:
        handle.remove()
    logits: Tensor = output.logits[0]
    return logits
