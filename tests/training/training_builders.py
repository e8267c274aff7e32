"""Small models and groups for the training tests, and the slow, obvious reference they are held against."""

from __future__ import annotations

import math
import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swingshift.config.schema import ActorConfig
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.training.worker import TorchTrainWorker

torch.set_num_threads(1)
VOCAB = 24


def tiny(seed: int = 0, hidden: int = 16, layers: int = 2, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            initializer_range=0.15,
        )
        return LlamaForCausalLM(config).to(dtype)


def sample(rng: random.Random, length: int, reward: float | None, spread: float = 1.0) -> Sample:
    tokens = tuple(rng.randrange(VOCAB) for _ in range(length))
    log_probs = tuple(-math.log(VOCAB) + rng.uniform(-spread, spread) for _ in tokens)
    return Sample(tokens, log_probs, ((0, length),) if length else (), FinishReason.STOP, reward=reward)


def group(
    group_id: int, rewards: list[float | None], *, prompt: int = 5, lengths: list[int] | None = None, seed: int = 0
) -> SampleGroup:
    rng = random.Random(f"{seed}-{group_id}")
    lengths = lengths or [rng.randint(1, 7) for _ in rewards]
    prompt_ids = tuple(rng.randrange(VOCAB) for _ in range(prompt))
    samples = tuple(sample(rng, n, r) for n, r in zip(lengths, rewards, strict=True))
    return SampleGroup(group_id, Prompt(str(group_id), prompt_ids), samples, 0)


def mixed_groups(num: int = 4, responses: int = 4, seed: int = 0) -> list[SampleGroup]:
    """Groups with different rewards, prompts of different lengths."""
    rng = random.Random(seed)
    return [
        group(i, [0.0, 1.0, *(rng.random() for _ in range(responses - 2))], prompt=rng.randint(1, 9), seed=seed)
        for i in range(num)
    ]


def actor(**changes: object) -> ActorConfig:
    values = {"ppo_mini_batch_size": 64, "grad_clip": 1e9, "optim": {"lr": 1e-3, "weight_decay": 0.0}}
    return ActorConfig.model_validate(values | changes)


def gradients(worker: TorchTrainWorker) -> dict[str, torch.Tensor]:
    """Those of the last mini-batch (the optimizer keeps them until the next)."""
    return {n: p.grad.clone() for n, p in worker.model.named_parameters() if p.grad is not None}


def weights(worker: TorchTrainWorker) -> dict[str, torch.Tensor]:
    return {n: t.clone() for n, t in worker.named_weights().items()}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def assert_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float, rtol: float = 1e-4) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=atol, rtol=rtol, msg=lambda m, n=name: f"{n}: {m}")


# --- the reference: one token at a time, no padding, no batching ---


def reference_advantages(rewards: list[float], norm_by_std: bool) -> list[float]:
    values = torch.tensor(rewards, dtype=torch.float64)
    centred = values - values.mean()
    return (centred / (values.std() + 1e-6) if norm_by_std else centred).tolist()


def reference_kl(kind: str, logp: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    if kind == "kl":
        return logp - ref
    if kind == "k2":
        return (logp - ref) ** 2 / 2
    return torch.exp(ref - logp) - 1 - (ref - logp)


def reference_token(
    logp: torch.Tensor, old: float, advantage: float, low: float, high: float
) -> tuple[torch.Tensor, bool]:
    """The clipped objective in words: no reward for moving further than the clip allows in the useful direction."""
    ratio = torch.exp(logp - old)
    if advantage > 0 and ratio > 1 + high:
        return torch.tensor(-(1 + high) * advantage), True
    if advantage < 0 and ratio < 1 - low:
        return torch.tensor(-(1 - low) * advantage), True
    return -ratio * advantage, False


def reference_log_probs(
    model: LlamaForCausalLM, groups: list[SampleGroup], temperature: float = 1.0
) -> dict[float, float]:
    """Each trained token's log-prob under ``model``, by its log-prob at rollout (random, so it names the token)."""
    table: dict[float, float] = {}
    for g in groups:
        if len({s.reward for s in g.samples}) == 1:
            continue
        for s in g.samples:
            ids = torch.tensor([[*g.prompt.token_ids, *s.token_ids]])
            all_log_probs = (model(ids).logits[0].detach().double() / temperature).log_softmax(-1)
            for t, token in enumerate(s.token_ids):
                rollout = torch.tensor(s.log_probs[t]).item()
                assert rollout not in table, "two tokens with the same log-prob at rollout"
                table[rollout] = all_log_probs[len(g.prompt.token_ids) + t - 1, token].item()
    return table


def reference_loss(
    model: LlamaForCausalLM,
    groups: list[SampleGroup],
    config: ActorConfig,
    *,
    temperature: float = 1.0,
    norm_by_std: bool = True,
    ref_model: LlamaForCausalLM | None = None,
    old_model: LlamaForCausalLM | None = None,
    max_importance: float | None = math.inf,
) -> tuple[torch.Tensor, float]:
    """Loss of one mini-batch (scalar with gradient) and clip fraction.

    ``old_model``: decoupled PPO, with importance weights of at most ``max_importance`` (None: without any).
    """
    old_log_probs = reference_log_probs(old_model, groups, temperature) if old_model else {}
    per_response: list[list[torch.Tensor]] = []
    clipped = []
    for g in groups:
        rewards = [s.reward for s in g.samples]
        if len(set(rewards)) == 1:
            continue
        for s, advantage in zip(g.samples, reference_advantages(rewards, norm_by_std), strict=True):
            if not s.token_ids:
                continue
            ids = torch.tensor([[*g.prompt.token_ids, *s.token_ids]])
            logits = model(ids).logits[0].double() / temperature
            ref_logits = ref_model(ids).logits[0].detach().double() / temperature if ref_model else None
            losses = []
            for t, token in enumerate(s.token_ids):
                at = len(g.prompt.token_ids) + t - 1
                probs = torch.softmax(logits[at], 0)
                rollout = torch.tensor(s.log_probs[t]).item()
                old = old_log_probs[rollout] if old_model else s.log_probs[t]
                loss, was_clipped = reference_token(
                    probs[token].log(), old, advantage, config.clip_low, config.clip_high
                )
                if old_model and max_importance is not None:
                    loss = loss * min(math.exp(old - rollout), max_importance)
                clipped.append(was_clipped)
                loss = loss + config.entropy_coeff * (probs * probs.log()).sum()
                if ref_logits is not None:
                    ref = torch.softmax(ref_logits[at], 0)[token].log()
                    loss = loss + config.kl_loss_coef * reference_kl(config.kl_loss_type, probs[token].log(), ref)
                losses.append(loss)
            per_response.append(losses)
    if config.loss_agg_mode == "token-mean":
        flat = [x for losses in per_response for x in losses]
        total = sum(flat) / len(flat)
    else:
        total = sum(sum(losses) / len(losses) for losses in per_response) / len(per_response)
    return total, sum(clipped) / len(clipped)
