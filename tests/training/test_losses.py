"""Losses and gradients of the worker against a reference that goes token by token."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_builders import actor, assert_close, gradients, group, mixed_groups, reference_loss, tiny, weights

from swingshift.training.losses import clipped_policy_loss, kl_penalty, token_log_probs
from swingshift.training.worker import TorchTrainWorker


def compare(groups, config, *, temperature=1.0, norm=True, ref=None, dtype=torch.float32):
    """Train one mini-batch and hold gradient and metrics against the reference."""
    model = tiny(dtype=dtype)
    expected_model = copy.deepcopy(model).eval()
    loss, clipfrac = reference_loss(
        expected_model, groups, config, temperature=temperature, norm_by_std=norm, ref_model=ref
    )
    torch.autograd.backward(loss)
    expected = {n: p.grad for n, p in expected_model.named_parameters()}
    worker = TorchTrainWorker(
        model, config, temperature=temperature, norm_adv_by_std=norm, ref_model=copy.deepcopy(ref)
    )
    result = worker.train(groups, 0)
    assert_close(gradients(worker), expected, atol=2e-6)
    metrics = result.metrics
    total = metrics["actor/pg_loss"] + config.kl_loss_coef * metrics["actor/kl_loss"]
    if config.entropy_coeff == 0:
        assert total == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(clipfrac)
    norm_expected = torch.sqrt(sum((g.double() ** 2).sum() for g in expected.values()))
    assert metrics["actor/grad_norm"] == pytest.approx(float(norm_expected), rel=1e-4)
    return metrics


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("norm", [True, False])
def test_policy_gradient_matches_the_reference(mode, norm):
    metrics = compare(mixed_groups(), actor(loss_agg_mode=mode), norm=norm)
    assert 0 < metrics["actor/pg_clipfrac"] < 1, "the data must meet both branches"


def test_asymmetric_clip_and_temperature():
    compare(mixed_groups(seed=3), actor(clip_ratio_low=0.1, clip_ratio_high=0.4), temperature=0.7)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_entropy_bonus_matches_the_reference(mode):
    compare(mixed_groups(), actor(entropy_coeff=0.1, loss_agg_mode=mode), temperature=1.3)


@pytest.mark.parametrize("kind", ["kl", "k2", "low_var_kl"])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_kl_to_a_reference_matches_the_reference(kind, mode):
    config = actor(use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type=kind, loss_agg_mode=mode)
    compare(mixed_groups(), config, ref=tiny(seed=1, layers=1).eval(), temperature=0.8)


def test_default_reference_is_the_first_model_and_stays_frozen():
    worker = TorchTrainWorker(tiny(), actor(use_kl_loss=True, optim={"lr": 1e-2}))
    first = worker.train(mixed_groups(), 0)
    second = worker.train(mixed_groups(), 0)
    assert first.metrics["actor/kl_loss"] == pytest.approx(0, abs=1e-6)
    assert second.metrics["actor/kl_loss"] > 1e-4
    assert first.timings_s.keys() == {"adv", "ref", "update_actor"}


def test_no_reference_no_ref_timing():
    result = TorchTrainWorker(tiny(), actor()).train(mixed_groups(), 0)
    assert result.timings_s.keys() == {"adv", "update_actor"}
    assert result.metrics["actor/kl_loss"] == 0


@pytest.mark.parametrize("limit", [16, 17, 40, 200])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batch_size_does_not_matter(limit, mode):
    groups = mixed_groups()
    whole = TorchTrainWorker(tiny(), actor(loss_agg_mode=mode))
    split = TorchTrainWorker(tiny(), actor(loss_agg_mode=mode, ppo_max_token_len_per_gpu=limit))
    a, b = whole.train(groups, 0), split.train(groups, 0)
    assert_close(gradients(split), gradients(whole), atol=1e-6)
    for key in ("actor/pg_loss", "actor/entropy", "actor/ppo_kl", "actor/ratio_max", "actor/num_trained_tokens"):
        assert a.metrics[key] == pytest.approx(b.metrics[key], rel=1e-5), key


def test_padding_does_not_matter():
    """A long neighbour in the same micro-batch changes nothing but the shared denominator."""
    short = group(0, [0.0, 1.0], lengths=[2, 3], prompt=2)
    long = group(1, [0.0, 1.0], lengths=[30, 30], prompt=9)
    parts = []
    for groups in ([short], [long], [short, long]):
        worker = TorchTrainWorker(tiny(), actor())
        result = worker.train(groups, 0)
        parts.append((gradients(worker), result.metrics["actor/num_trained_tokens"]))
    (g_short, n_short), (g_long, n_long), (g_both, n_both) = parts
    assert n_both == n_short + n_long == 65
    expected = {n: (g_short[n] * n_short + g_long[n] * n_long) / n_both for n in g_both}
    assert_close(g_both, expected, atol=1e-6)


def test_empty_response_counts_for_the_baseline_only():
    with_empty = group(0, [0.0, 1.0, 1.0], lengths=[0, 2, 4])
    metrics = compare([with_empty, *mixed_groups()[1:]], actor(loss_agg_mode="seq-mean-token-mean"))
    assert metrics["actor/num_tokens"] == metrics["actor/num_trained_tokens"]


@pytest.mark.parametrize("coefficients", [{}, {"entropy_coeff": 0.1, "use_kl_loss": True}])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_group_with_equal_rewards_contributes_nothing(coefficients, mode):
    """Not even through denominators, entropy or KL: bits are equal with and without it."""
    groups = mixed_groups()
    equal = group(99, [0.1, 0.1, 0.1], lengths=[40, 3, 9])  # the mean of three 0.1 is not 0.1
    config = actor(loss_agg_mode=mode, **coefficients)
    without, with_it = TorchTrainWorker(tiny(), config), TorchTrainWorker(tiny(), config)
    for _ in range(2):
        a, b = without.train(groups, 0), with_it.train([groups[0], equal, *groups[1:]], 0)
    for name, w in weights(without).items():
        assert torch.equal(w, weights(with_it)[name]), name
    for name, g in gradients(without).items():
        assert torch.equal(g, gradients(with_it)[name]), name
    assert a.metrics["actor/pg_loss"] == b.metrics["actor/pg_loss"]
    assert b.metrics["actor/num_groups_without_signal"] == 1


def test_low_precision_model_trains_on_float32_masters():
    """Updates far below bfloat16's resolution must add up."""
    config = actor(optim={"lr": 1e-5, "weight_decay": 0.0})
    low, high = tiny(dtype=torch.bfloat16), tiny()
    high.load_state_dict({n: t.float() for n, t in low.state_dict().items()})
    workers = TorchTrainWorker(low, config), TorchTrainWorker(high, config)
    before = weights(workers[0])
    for _ in range(30):
        for worker in workers:
            worker.train(mixed_groups(), 0)
    moved = {n: (t.float() - before[n].float()).abs().mean() for n, t in weights(workers[0]).items()}
    exact = {n: (t - before[n].float()).abs().mean() for n, t in weights(workers[1]).items()}
    assert float(sum(moved.values())) > 0.5 * float(sum(exact.values())) > 0


# --- the formulas by themselves ---

floats = st.floats(-3, 3, width=32)


@given(logp=floats, old=floats, adv=floats, low=st.floats(0.01, 0.9), high=st.floats(0.01, 2))
def test_clipped_loss_per_token(logp, old, adv, low, high):
    x = torch.tensor([logp], requires_grad=True)
    loss, ratio, clipped = clipped_policy_loss(x, torch.tensor([old]), torch.tensor([adv]), low, high)
    torch.autograd.backward(loss.sum())
    r = ratio.item()
    bound = min(r * adv, min(max(r, 1 - low), 1 + high) * adv)
    assert loss.item() == pytest.approx(-bound, abs=1e-4, rel=1e-4)
    if clipped:
        assert x.grad.item() == 0 and (r > 1 + high if adv > 0 else r < 1 - low)
    else:
        assert x.grad.item() == pytest.approx(-r * adv, abs=1e-4, rel=1e-4)


@given(logp=floats, ref=floats)
def test_kl_kinds(logp, ref):
    a, b = torch.tensor([logp]), torch.tensor([ref])
    assert kl_penalty(a, b, "kl").item() == pytest.approx(logp - ref, abs=1e-5)
    assert kl_penalty(a, b, "k2").item() == pytest.approx((logp - ref) ** 2 / 2, rel=1e-4, abs=1e-6)
    assert -1e-6 <= kl_penalty(a, b, "low_var_kl").item() <= 10


def test_extreme_log_ratios_stay_finite():
    x = torch.tensor([0.0, -200.0], requires_grad=True)
    loss, ratio, _ = clipped_policy_loss(x, torch.tensor([-300.0, 0.0]), torch.tensor([-1.0, 1.0]), 0.2, 0.2)
    torch.autograd.backward((loss + kl_penalty(x, torch.tensor([300.0, -500.0]), "low_var_kl")).sum())
    assert torch.isfinite(loss).all() and torch.isfinite(ratio).all() and torch.isfinite(x.grad).all()


def test_token_log_probs_are_of_tempered_logits():
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 6, 3, 3, 1])
    log_probs, entropy = token_log_probs(logits, targets, 0.5, entropy_grad=False)
    expected = torch.distributions.Categorical(logits=logits / 0.5)
    torch.testing.assert_close(log_probs, expected.log_prob(targets))
    torch.testing.assert_close(entropy, expected.entropy())
