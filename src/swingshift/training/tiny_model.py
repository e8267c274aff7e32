"""The built-in tiny model: a small Llama that learns a built-in task's format by supervised training.

Reinforcement needs a first success to reinforce; a few seconds of imitation give it that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from swingshift.config.schema import ModelConfig
from swingshift.errors import DataError
from swingshift.training.batch import Row, TrainResponse, micro_batch
from swingshift.training.forward import response_logits

logger = logging.getLogger(__name__)

MAX_POSITIONS = 2048
Progress = Callable[[int, int, float], None]


class TinyTask(Protocol):
    """What the warm start needs of a built-in task."""

    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    def examples(self, num: int, seed: int) -> Sequence[Mapping[str, Any]]:
        """``num`` dicts with ``prompt`` and ``solution`` (what the model should write, without end token)."""


def build_tiny_model(
    folder: Path,
    task: TinyTask,
    model_config: ModelConfig,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Create, warm-start and save the model with its tokenizer as a Hugging Face folder.

    The same arguments give the same weights. ``progress(step, steps, loss)`` is called after each step.
    """
    tokenizer = task.tokenizer()
    if tokenizer.eos_token_id is None:
        raise DataError("the task's tokenizer has no end token, so a response could never end")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = tiny_llama(tokenizer, model_config)
    warm_start(model, tokenizer, task, model_config, seed, progress)
    model.to(getattr(torch, model_config.dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_llama(tokenizer: PreTrainedTokenizerFast, model_config: ModelConfig) -> LlamaForCausalLM:
    """A randomly initialised Llama over the tokenizer's vocabulary, embeddings tied."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=model_config.hidden_size,
            intermediate_size=4 * model_config.hidden_size,
            num_hidden_layers=model_config.num_layers,
            num_attention_heads=model_config.num_heads,
            num_key_value_heads=model_config.num_heads,
            max_position_embeddings=MAX_POSITIONS,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def warm_start(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: TinyTask,
    model_config: ModelConfig,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Supervised training on (prompt, solution) pairs; the loss counts the solution's tokens and the end."""
    settings = model_config.warm_start
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)
    examples = task.examples(settings.steps * settings.batch_size, seed)
    rows = [_row(tokenizer, example) for example in examples]
    model.train()
    for step in range(settings.steps):
        batch = rows[step * settings.batch_size : (step + 1) * settings.batch_size]
        loss = _loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if progress is not None:
            progress(step + 1, settings.steps, loss.item())
        if settings.until_loss is not None and loss.item() < settings.until_loss:
            logger.info("warm start: loss %.3f after %d steps", loss.item(), step + 1)
            return
    logger.info("warm start: %d steps of %d examples", settings.steps, settings.batch_size)


def _row(tokenizer: PreTrainedTokenizerFast, example: Mapping[str, Any]) -> Row:
    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False).input_ids)

    response = (*ids(example["solution"]), int(tokenizer.eos_token_id))
    return Row(ids(example["prompt"]), (TrainResponse(response, (0.0,) * len(response), 0.0),))


def _loss(model: LlamaForCausalLM, rows: Sequence[Row]) -> Tensor:
    batch = micro_batch(rows)
    return torch.nn.functional.cross_entropy(response_logits(model, batch), batch.targets)
