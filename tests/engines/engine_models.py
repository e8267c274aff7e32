"""Tiny random models and a driver for the engine's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers as hf

from swingshift.core.types import GenerationRequest, SamplingParams, TokenOutput
from swingshift.engines.torch_engine import TorchEngine

FAMILIES = {
    "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
    "llama-biased": (hf.LlamaConfig, hf.LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}),
    "llama-rope3": (
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama-tied": (
        hf.LlamaConfig,
        hf.LlamaForCausalLM,
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {}),
    "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"head_dim": 16}),
}
VOCAB = 48
MAX_LEN = 48


def make_model(family: str = "llama", *, seed: int = 0, **changes: Any) -> Any:
    """Two layers with large random weights (biases and norms too), so that greedy choices are clear."""
    config_class, model_class, extra = FAMILIES[family]
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**{**sizes, **extra, **changes})).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(1 + 0.3 * torch.randn_like(p) if "norm" in name else 0.4 * torch.randn_like(p))
    return model


def open_engine(model: Any, **changes: Any) -> TorchEngine:
    engine = TorchEngine(model, **{"max_num_seqs": 4, "max_model_len": MAX_LEN, **changes})
    engine.resume_generation().result(10)
    return engine


def ask(
    prompt: Sequence[int],
    *,
    n: int = 1,
    budget: int = 12,
    prefixes: Sequence[Sequence[int]] | None = None,
    name: str = "r",
    temperature: float = 0.0,
    stop: tuple[int, ...] = (),
    **sampling: Any,
) -> GenerationRequest:
    rows = tuple(tuple(p) for p in (prefixes if prefixes is not None else ((),) * n))
    params = SamplingParams(max_tokens=budget, temperature=temperature, stop_token_ids=stop, **sampling)
    return GenerationRequest(name, tuple(prompt), rows, (budget,) * len(rows), params)


def run(engine: TorchEngine, request: GenerationRequest) -> tuple[TokenOutput, ...]:
    return engine.generate(request).result(20)


def greedy(model: Any, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """What transformers generates."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
    return tuple(out[0, len(prompt) :].tolist())


@torch.no_grad()
def forward_log_probs(
    model: Any, prompt: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probs of ``tokens`` after ``prompt`` by one full forward pass."""
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(list(tokens))[:, None])[:, 0]


def assert_log_probs(model: Any, prompt: Sequence[int], output: TokenOutput, temperature: float = 1.0) -> None:
    want = forward_log_probs(model, prompt, output.token_ids, temperature)
    torch.testing.assert_close(torch.tensor(output.log_probs), want, rtol=1e-4, atol=1e-4)
