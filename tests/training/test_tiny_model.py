"""The built-in model: warm start, folder, determinism."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from swingshift.config.schema import ModelConfig
from swingshift.errors import DataError
from swingshift.training.tiny_model import build_tiny_model


class CopyDigits:
    """``7.`` → ``7``: learnt in a few steps."""

    def tokenizer(self) -> PreTrainedTokenizerFast:
        vocab = {token: i for i, token in enumerate(["<pad>", "<eos>", *"0123456789."])}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")

    def examples(self, num: int, seed: int) -> Sequence[Mapping[str, str]]:
        rng = random.Random(seed)
        digits = [str(rng.randrange(10)) for _ in range(num)]
        return [{"prompt": f"{d}.", "answer": d, "solution": d} for d in digits]


def config(steps: int, **changes: object) -> ModelConfig:
    warm_start = {"steps": steps, "batch_size": 32, "lr": 1e-2}
    return ModelConfig.model_validate(
        {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "warm_start": warm_start} | changes
    )


def accuracy(folder) -> float:
    """Share of digits copied and ended by greedy decoding."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer([f"{d}." for d in range(10)], return_tensors="pt").input_ids
    output = model.generate(inputs, max_new_tokens=2, do_sample=False, attention_mask=torch.ones_like(inputs))
    expected = [(tokenizer.convert_tokens_to_ids(str(d)), tokenizer.eos_token_id) for d in range(10)]
    return sum(tuple(row) == e for row, e in zip(output[:, 2:].tolist(), expected, strict=True)) / 10


def test_warm_start_teaches_the_task(tmp_path):
    losses = []
    build_tiny_model(tmp_path / "cold", CopyDigits(), config(0), seed=0)
    build_tiny_model(
        tmp_path / "warm", CopyDigits(), config(60), seed=0, progress=lambda i, n, loss: losses.append((i, n, loss))
    )
    assert [(i, n) for i, n, _ in losses] == [(i, 60) for i in range(1, 61)]
    assert losses[-1][2] < 0.2 * losses[0][2]
    assert accuracy(tmp_path / "cold") <= 0.2
    assert accuracy(tmp_path / "warm") >= 0.9


def test_warm_start_stops_at_its_loss(tmp_path):
    """Only to give reinforcement something to start from: mastery would leave it nothing to learn."""
    losses = []
    early = config(60)
    early = early.model_copy(update={"warm_start": early.warm_start.model_copy(update={"until_loss": 1.0})})
    build_tiny_model(tmp_path, CopyDigits(), early, seed=0, progress=lambda i, n, loss: losses.append(loss))
    assert losses[-1] < 1.0 <= min(losses[:-1])
    assert len(losses) < 60


def test_shape_and_determinism(tmp_path):
    state = torch.get_rng_state()
    for name in ("a", "b"):
        build_tiny_model(tmp_path / name, CopyDigits(), config(3, dtype="bfloat16"), seed=4)
    build_tiny_model(tmp_path / "c", CopyDigits(), config(3, dtype="bfloat16"), seed=5)
    assert torch.equal(state, torch.get_rng_state()), "the process's random state is not ours to change"
    a, b, c = (AutoModelForCausalLM.from_pretrained(tmp_path / n).state_dict() for n in "abc")
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], c[n]) for n in a)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert model.config.intermediate_size == 64 and model.config.tie_word_embeddings
    assert model.dtype == torch.bfloat16 and model.config.vocab_size == 13
    assert model.generation_config.eos_token_id == 1 and model.generation_config.pad_token_id == 0


def test_a_tokenizer_without_end_token_is_an_error(tmp_path):
    class Endless(CopyDigits):
        def tokenizer(self) -> PreTrainedTokenizerFast:
            tokenizer = super().tokenizer()
            tokenizer.eos_token = None
            return tokenizer

    with pytest.raises(DataError, match="end token"):
        build_tiny_model(tmp_path, Endless(), config(1), seed=0)
