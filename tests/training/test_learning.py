"""Reinforcement works: a random model learns to write digits within seconds."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from swingshift.config.schema import ActorConfig, RolloutCorrectionConfig
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.training.worker import TorchTrainWorker

VOCAB, DIGITS, LENGTH, RESPONSES = 60, 10, 8, 8
PROMPTS = [(10 + i, 20 + i) for i in range(8)]


def new_model(seed: int) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            tie_word_embeddings=True,
        )
        return LlamaForCausalLM(config).eval()


@torch.no_grad()
def collect(model: LlamaForCausalLM, generator: torch.Generator) -> list[SampleGroup]:
    """8 responses of 8 tokens to each prompt; the reward is the share of digits."""
    ids = torch.tensor([p for p in PROMPTS for _ in range(RESPONSES)])
    log_probs = []
    for _ in range(LENGTH):
        logp = torch.log_softmax(model(ids, use_cache=False).logits[:, -1], -1)
        token = torch.multinomial(logp.exp(), 1, generator=generator)
        log_probs.append(logp.gather(1, token))
        ids = torch.cat([ids, token], 1)
    tokens, logps = ids[:, 2:].tolist(), torch.cat(log_probs, 1).tolist()
    samples = [
        Sample(tuple(t), tuple(p), ((0, LENGTH),), FinishReason.LENGTH, reward=sum(x < DIGITS for x in t) / LENGTH)
        for t, p in zip(tokens, logps, strict=True)
    ]
    return [
        SampleGroup(i, Prompt(str(i), prompt), tuple(samples[i * RESPONSES : (i + 1) * RESPONSES]), 0)
        for i, prompt in enumerate(PROMPTS)
    ]


def mean_reward(groups: list[SampleGroup]) -> float:
    return sum(r for g in groups for r in g.rewards) / (len(groups) * RESPONSES)


def test_reward_rises():
    torch.set_num_threads(1)
    model = new_model(0)
    config = ActorConfig.model_validate({"ppo_mini_batch_size": 8, "optim": {"lr": 1e-3}})
    worker = TorchTrainWorker(model, config)
    generator = torch.Generator().manual_seed(0)
    rewards = []
    for version in range(40):
        groups = collect(model, generator)
        result = worker.train(groups, version)
        assert abs(result.metrics.get("actor/ratio_mean", 1.0) - 1) < 1e-4, "on policy, ratios are 1"
        rewards.append(mean_reward(groups))
    assert rewards[0] < 0.3
    assert sum(rewards[-5:]) / 5 > 0.7


def test_reward_rises_in_decoupled_ppo_with_rollout_a_cycle_behind():
    """Three collections a cycle, sampled with the weights of the cycle before."""
    torch.set_num_threads(1)
    model, behind, newest = new_model(0), new_model(0), new_model(0)
    config = ActorConfig.model_validate({"ppo_mini_batch_size": 8, "optim": {"lr": 1e-3}})
    worker = TorchTrainWorker(model, config, correction=RolloutCorrectionConfig(bypass_mode=False))
    generator = torch.Generator().manual_seed(0)
    rewards, weights = [], []
    for version in range(12):
        behind.load_state_dict(newest.state_dict())
        newest.load_state_dict(model.state_dict())
        for _ in range(3):
            groups = collect(behind, generator)
            metrics = worker.train(groups, version).metrics
            rewards.append(mean_reward(groups))
            weights.append(metrics["actor/rollout_is_max"])
    assert rewards[0] < 0.3
    assert max(weights[:3]) < 1.01 < max(weights[3:]), "rollout is behind from the second cycle on"
    assert sum(rewards[-3:]) / 3 > 0.5
