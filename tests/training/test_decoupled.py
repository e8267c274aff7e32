"""Decoupled PPO: the loss against a reference, and log-probs of the cycle's start in every collection of it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import count

import pytest
import torch
from training_builders import (
    actor,
    assert_close,
    assert_equal,
    gradients,
    group,
    mixed_groups,
    reference_log_probs,
    reference_loss,
    tiny,
    weights,
)

import swingshift.training.worker as worker_module
from swingshift.config.schema import RolloutCorrectionConfig
from swingshift.errors import TrainerError
from swingshift.training.losses import LossSettings, actor_loss
from swingshift.training.worker import TorchTrainWorker

FAST = {"lr": 3e-2, "weight_decay": 0.0}


def decoupled(model=None, config=None, *, rollout_is="token", threshold=2.0, **arguments) -> TorchTrainWorker:
    correction = RolloutCorrectionConfig(bypass_mode=False, rollout_is=rollout_is, rollout_is_threshold=threshold)
    config = config or actor(optim=FAST)
    return TorchTrainWorker(model or tiny(), config, correction=correction, **arguments)


def watch(worker):
    """The weights at every forward pass to come, and whether it was for a gradient."""
    seen = []
    worker.model.register_forward_pre_hook(
        lambda module, args: seen.append((torch.is_grad_enabled(), weights(worker)))
    )
    return seen


def spy_on_losses(monkeypatch):
    """Rollout and old log-probs of every micro-batch to come."""
    calls = []

    def recording(*args):
        calls.append((args[2].tolist(), None if args[7] is None else args[7].tolist()))
        return actor_loss(*args)

    monkeypatch.setattr(worker_module, "actor_loss", recording)
    return calls


# --- the loss ---


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize(("rollout_is", "threshold"), [("token", None), ("token", 1.5), (None, 2.0)])
def test_loss_and_gradients_match_the_reference(mode, rollout_is, threshold):
    config = actor(loss_agg_mode=mode, optim=FAST, clip_ratio_high=0.3)
    worker = decoupled(config=config, rollout_is=rollout_is, threshold=threshold, temperature=0.8)
    start = copy.deepcopy(worker.model)
    worker.train(mixed_groups(seed=1), 4)
    current, groups = copy.deepcopy(worker.model), mixed_groups(seed=2)
    limit = None if rollout_is is None else threshold or math.inf
    loss, clipfrac = reference_loss(current, groups, config, temperature=0.8, old_model=start, max_importance=limit)
    torch.autograd.backward(loss)
    metrics = worker.train(groups, 4).metrics
    assert_close(gradients(worker), {n: p.grad for n, p in current.named_parameters()}, atol=2e-6)
    assert metrics["actor/pg_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(clipfrac) and 0 < clipfrac < 1, "both branches must be met"


def test_metrics_of_importance_weights():
    worker = decoupled(threshold=1.5)
    start = copy.deepcopy(worker.model)
    worker.train(mixed_groups(seed=1), 0)
    groups = mixed_groups(seed=2)
    metrics = worker.train(groups, 0).metrics
    table = reference_log_probs(start, groups)
    importance = [math.exp(old - rollout) for rollout, old in table.items()]
    num_truncated = sum(w > 1.5 for w in importance)
    assert 0 < num_truncated < len(importance)
    assert metrics["actor/num_truncated_tokens"] == num_truncated
    assert metrics["actor/rollout_is_truncated_ratio"] == pytest.approx(num_truncated / len(importance))
    assert metrics["actor/rollout_is_mean"] == pytest.approx(sum(importance) / len(importance), rel=1e-4)
    assert metrics["actor/rollout_is_max"] == pytest.approx(max(importance), rel=1e-4)


def test_in_a_cycles_first_mini_batch_the_ratio_is_one():
    metrics = decoupled().train(mixed_groups(), 0).metrics
    for key in ("actor/ratio_mean", "actor/ratio_max"):
        assert metrics[key] == pytest.approx(1, abs=1e-5), key
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["actor/num_clipped_tokens"] == 0 < metrics["actor/num_truncated_tokens"]


def random_tokens(num=200):
    generator = torch.Generator().manual_seed(0)
    log_probs, rollout, advantages = torch.randn(3, num, generator=generator)
    token_weights = torch.rand(num, generator=generator)
    return log_probs.requires_grad_(), torch.zeros(num), rollout, advantages, token_weights


def test_bypass_is_the_clipped_surrogate_against_rollout_bit_for_bit():
    log_probs, entropy, rollout, advantages, token_weights = random_tokens()
    settings = LossSettings(clip_low=0.2, clip_high=0.3)
    result = actor_loss(log_probs, entropy, rollout, advantages, token_weights, settings)
    ratio = (log_probs - rollout).clamp(-20, 20).exp()
    pg = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.3))
    expected = (token_weights * pg).sum()
    assert torch.equal(result.loss, expected)
    grads = [torch.autograd.grad(loss, log_probs)[0] for loss in (result.loss, expected)]
    assert torch.equal(*grads)


def test_old_log_probs_of_rollout_itself_make_bypass_again():
    args = random_tokens()
    settings = LossSettings(clip_low=0.2, clip_high=0.3)
    bypass, same = actor_loss(*args, settings), actor_loss(*args, settings, None, args[2])
    assert torch.equal(bypass.loss, same.loss) and torch.equal(bypass.sums, same.sums)


def test_bypass_is_the_default_and_computes_nothing_more(monkeypatch):
    calls = spy_on_losses(monkeypatch)
    default = TorchTrainWorker(tiny(), actor(optim=FAST))
    bypass = TorchTrainWorker(tiny(), actor(optim=FAST), correction=RolloutCorrectionConfig(bypass_mode=True))
    seen = watch(bypass)
    for seed in range(2):
        a, b = (w.train(mixed_groups(seed=seed), 0) for w in (default, bypass))
        assert a.metrics == b.metrics and not any("rollout_is" in name or "truncated" in name for name in a.metrics)
        assert b.timings_s.keys() == {"adv", "update_actor"}
    assert_equal(weights(default), weights(bypass))
    assert all(for_gradient for for_gradient, _ in seen) and all(old is None for _, old in calls)


def test_timings_come_from_the_clock():
    ticks = count()
    worker = decoupled(clock=lambda: float(next(ticks)))
    for version in (0, 0, 1):
        assert worker.train(mixed_groups(), version).timings_s == {"adv": 1, "old_log_prob": 1, "update_actor": 2}


def test_extreme_differences_stay_finite():
    log_probs = torch.tensor([0.0, -200.0], requires_grad=True)
    old, rollout = torch.tensor([-300.0, 0.0]), torch.tensor([0.0, -300.0])
    settings = LossSettings(clip_low=0.2, clip_high=0.2, rollout_is_threshold=None)
    one = torch.ones(2)
    result = actor_loss(log_probs, torch.zeros(2), rollout, -one, one, settings, None, old)
    torch.autograd.backward(result.loss)
    assert torch.isfinite(result.sums).all() and torch.isfinite(log_probs.grad).all()


# --- the cycle's start ---


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_old_log_probs_are_a_fresh_pass_with_a_saved_copy(monkeypatch, temperature):
    """For every micro-batch of every mini-batch, epoch and collection of a cycle, and of the next."""
    calls = spy_on_losses(monkeypatch)
    config = actor(ppo_mini_batch_size=2, ppo_epochs=2, ppo_max_token_len_per_gpu=20, optim=FAST)
    worker = decoupled(config=config, temperature=temperature)
    for version in range(2):
        start = copy.deepcopy(worker.model)
        for collection in range(3):
            calls.clear()
            groups = [*mixed_groups(num=5, seed=10 * version + collection), group(99, [1.0, 1.0])]
            worker.train(groups, version)
            fresh = reference_log_probs(start, groups, temperature)
            pairs = [pair for rollout, old in calls for pair in zip(rollout, old, strict=True)]
            assert len(calls) > 6 and len(pairs) == 2 * len(fresh)
            for rollout, old in pairs:
                assert old == pytest.approx(fresh[rollout], abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_which_weights_each_pass_reads(dtype):
    """Bit for bit: the start's for old log-probs, the current ones for gradients, in the same memory."""
    worker = decoupled(tiny(dtype=dtype))
    where = {n: t.data_ptr() for n, t in worker.named_weights().items()}
    for version in (5, 6):
        start = weights(worker)
        for collection in range(3):
            current = weights(worker)
            seen = watch(worker)
            worker.train(mixed_groups(seed=collection), version)
            assert [for_gradient for for_gradient, _ in seen] == [False, True]
            assert_equal(seen[0][1], start)
            assert_equal(seen[1][1], current)
            assert collection == 0 or any(not torch.equal(current[n], start[n]) for n in start)
    assert where == {n: t.data_ptr() for n, t in worker.named_weights().items()}


def test_a_collection_without_signal_leaves_the_weights_alone():
    worker = decoupled()
    worker.train(mixed_groups(), 0)
    before = weights(worker)
    metrics = worker.train([group(0, [1.0, 1.0])], 0).metrics
    assert_equal(before, weights(worker))
    assert metrics["actor/num_truncated_tokens"] == 0 and "actor/rollout_is_mean" not in metrics


def test_a_pass_that_fails_leaves_the_current_weights():
    worker = decoupled()
    worker.train(mixed_groups(), 0)
    before = weights(worker)

    def fail(module, args):
        raise RuntimeError("out of memory")

    hook = worker.model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        worker.train(mixed_groups(seed=1), 0)
    assert_equal(before, weights(worker))
    hook.remove()
    twin = decoupled()
    for each, seeds in ((worker, [1]), (twin, [0, 1])):
        for seed in seeds:
            each.train(mixed_groups(seed=seed), 0)
    assert_equal(weights(worker), weights(twin))


def test_a_loss_that_is_not_finite_spares_the_weights():
    bad = group(41, [0.0, 1.0], lengths=[2, 2])
    bad = replace(bad, samples=tuple(replace(s, log_probs=(math.nan, -1.0)) for s in bad.samples))
    worker = decoupled()
    worker.train(mixed_groups(), 0)
    before = weights(worker)
    with pytest.raises(TrainerError, match=r"groups \[41\].*nan"):
        worker.train([bad], 0)
    assert_equal(before, weights(worker))


def test_lending_in_mid_cycle_changes_nothing():
    stays, lends = decoupled(), decoupled()
    for collection in range(3):
        for worker in (stays, lends):
            worker.train(mixed_groups(seed=collection), 0)
        current = weights(lends)
        lends.offload()
        seen = watch(lends)
        with pytest.raises(TrainerError, match="onload"):
            lends.train(mixed_groups(), 0)
        assert seen == [], "the weights of the start must never show while the device is lent"
        assert_equal(weights(lends), current)
        lends.onload()
    assert_equal(weights(stays), weights(lends))


def test_with_one_collection_a_cycle_no_copy_is_needed():
    once, unknown = decoupled(collections_per_cycle=1), decoupled()
    for version in range(3):
        a, b = (w.train(mixed_groups(seed=version), version).metrics for w in (once, unknown))
        assert a == b
    assert_equal(weights(once), weights(unknown))
    with pytest.raises(AssertionError, match="second collection of version 2"):
        once.train(mixed_groups(), 2)
