"""The train worker as the control plane sees it: mini-batches, errors, metrics, lending."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from training_builders import actor, assert_equal, group, mixed_groups, tiny, weights

from swingshift.errors import ConfigError, TrainerError
from swingshift.training.worker import TorchTrainWorker


def test_one_optimizer_step_per_mini_batch_and_epoch():
    groups = mixed_groups(num=5)
    result = TorchTrainWorker(tiny(), actor(ppo_mini_batch_size=2, ppo_epochs=2)).train(groups, 0)
    assert result.metrics["actor/num_optimizer_steps"] == 6
    assert result.metrics["actor/num_trained_tokens"] == 2 * sum(g.num_tokens for g in groups)
    assert result.metrics["actor/num_tokens"] == sum(g.num_tokens for g in groups)


def test_a_step_is_adamw_with_clipped_gradients():
    config = actor(grad_clip=0.1, optim={"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)})
    worker, model = TorchTrainWorker(tiny(), config), tiny()
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, betas=(0.8, 0.95))
    for _ in range(3):
        result = worker.train(mixed_groups(), 0)
        for p, q in zip(model.parameters(), worker.model.parameters(), strict=True):
            p.grad = q.grad.clone()
        norm = math.sqrt(sum((p.grad.double() ** 2).sum().item() for p in model.parameters()))
        assert result.metrics["actor/grad_norm"] > 0.1 and norm == pytest.approx(0.1, rel=1e-3)
        adam.step()
    for (name, p), q in zip(model.named_parameters(), worker.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5, msg=name)


def test_warm_up_is_linear_and_counts_optimizer_steps():
    worker = TorchTrainWorker(tiny(), actor(optim={"lr": 0.4, "lr_warmup_steps": 4}))
    nothing = [group(0, [1.0, 1.0])]
    collections = (mixed_groups(), nothing, *[mixed_groups()] * 4)
    rates = [worker.train(groups, 0).metrics.get("actor/lr") for groups in collections]
    assert rates == [pytest.approx(0.1), None, *(pytest.approx(r) for r in (0.2, 0.3, 0.4, 0.4))]


def test_a_collection_without_signal_changes_nothing():
    """Not by weight decay or momentum either."""
    worker = TorchTrainWorker(tiny(), actor(optim={"lr": 0.1, "weight_decay": 0.5}))
    worker.train(mixed_groups(), 0)
    before = weights(worker)
    result = worker.train([group(0, [1.0, 1.0, 1.0]), group(1, [0.3])], 1)
    assert_equal(before, weights(worker))
    assert result.metrics["actor/num_groups_without_signal"] == 2
    assert result.metrics["actor/num_steps_without_signal"] == 1
    assert "actor/pg_loss" not in result.metrics


def test_seed_decides_the_order():
    def trained(seed: int) -> dict[str, torch.Tensor]:
        worker = TorchTrainWorker(tiny(), actor(ppo_mini_batch_size=1), seed=seed)
        worker.train(mixed_groups(num=6), 0)
        return weights(worker)

    assert_equal(trained(1), trained(1))
    assert any(not torch.equal(a, b) for a, b in zip(trained(1).values(), trained(2).values(), strict=True))


def test_on_policy_ratios_are_one():
    """With the model's own log-probs: nothing is clipped and the approximate KL is zero."""
    model = tiny().eval()
    groups = []
    for g in mixed_groups():
        samples = []
        for s in g.samples:
            ids = torch.tensor([[*g.prompt.token_ids, *s.token_ids]])
            logp = torch.log_softmax(model(ids).logits[0] / 0.6, -1)
            start = len(g.prompt.token_ids) - 1
            own = tuple(logp[start + t, token].item() for t, token in enumerate(s.token_ids))
            samples.append(replace(s, log_probs=own))
        groups.append(replace(g, samples=tuple(samples)))
    metrics = TorchTrainWorker(model, actor(), temperature=0.6).train(groups, 0).metrics
    assert metrics["actor/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["actor/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == metrics["actor/num_clipped_tokens"] == 0


@pytest.mark.parametrize("reward", [None, math.nan, math.inf])
def test_missing_or_infinite_reward_is_an_error(reward):
    worker = TorchTrainWorker(tiny(), actor(ppo_mini_batch_size=1))
    before = weights(worker)
    with pytest.raises(TrainerError, match="group 7: response 1"):
        worker.train([*mixed_groups(), group(7, [0.0, reward])], 0)
    assert_equal(before, weights(worker))


def test_nan_gradient_names_the_mini_batch_and_spares_the_weights():
    bad = group(41, [0.0, 1.0], lengths=[2, 2])
    samples = tuple(replace(s, log_probs=(math.nan, -1.0)) for s in bad.samples)
    worker = TorchTrainWorker(tiny(), actor())
    worker.train(mixed_groups(), 0)
    before = weights(worker)
    with pytest.raises(TrainerError, match=r"mini-batch 1 of 1 .*groups \[41\].*nan"):
        worker.train([replace(bad, samples=samples)], 1)
    assert_equal(before, weights(worker))


def test_too_long_response_names_the_key_before_any_step():
    worker = TorchTrainWorker(tiny(), actor(ppo_mini_batch_size=1, ppo_max_token_len_per_gpu=20))
    before = weights(worker)
    with pytest.raises(ConfigError, match=r"ppo_max_token_len_per_gpu=20.*26 tokens"):
        worker.train([*mixed_groups(), group(9, [0.0, 1.0], prompt=6, lengths=[3, 20])], 0)
    assert_equal(before, weights(worker))


def test_empty_prompt_and_empty_collection_are_errors():
    worker = TorchTrainWorker(tiny(), actor())
    with pytest.raises(TrainerError, match="group 3: its prompt has no tokens"):
        worker.train([group(3, [0.0, 1.0], prompt=0)], 0)
    with pytest.raises(TrainerError, match="without groups"):
        worker.train([], 0)


def test_timings_come_from_the_clock():
    ticks = count()
    result = TorchTrainWorker(tiny(), actor(), clock=lambda: float(next(ticks))).train(mixed_groups(), 0)
    assert result.timings_s == {"adv": 1.0, "update_actor": 2.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep", [True, False])
def test_offload_and_onload_are_an_exact_round_trip(dtype, keep):
    lending = {"optimizer_offload": not keep, "free_gradients": not keep}
    stays, lends = (TorchTrainWorker(tiny(dtype=dtype), actor(**lending)) for _ in range(2))
    for i in range(3):
        stays.train(mixed_groups(seed=i), i)
        lends.train(mixed_groups(seed=i), i)
        lends.offload()
        assert lends.offloaded
        assert keep or all(p.grad is None for p in lends.model.parameters())
        assert_equal(weights(stays), weights(lends))  # readable while lent
        lends.onload()
    assert_equal(weights(stays), weights(lends))


def test_training_while_lent_is_an_error():
    worker = TorchTrainWorker(tiny(), actor())
    worker.offload()
    with pytest.raises(TrainerError, match="onload"):
        worker.train(mixed_groups(), 0)
    worker.onload()
    worker.train(mixed_groups(), 0)


def test_packed_weights_follow_training():
    worker = TorchTrainWorker(tiny(), actor())
    first, manifest = worker.pack_weights()
    first = first.copy()
    worker.train(mixed_groups(), 0)
    second, again = worker.pack_weights(np.empty_like(first))
    assert manifest == again and not np.array_equal(first, second)
