"""The sampler draws from the distribution it says it draws from."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.core.types import SamplingParams
from swingshift.engines.sampling import SamplingBatch, sample

CPU = torch.device("cpu")


def reference(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Token → probability after temperature, top-k and top-p, one obvious step after the other."""
    scaled = [x / params.temperature for x in logits]
    top = max(scaled)
    weights = {t: math.exp(x - top) for t, x in enumerate(scaled)}
    ranked = sorted(weights, key=lambda t: -weights[t])
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    total = sum(weights[t] for t in ranked)
    if params.top_p < 1:
        kept, mass = [], 0.0
        for token in ranked:
            if mass >= params.top_p * total:
                break
            kept.append(token)
            mass += weights[token]
        ranked = kept
    total = sum(weights[t] for t in ranked)
    return {t: weights[t] / total for t in ranked}


def params(temperature=1.0, top_p=1.0, top_k=-1) -> SamplingParams:
    return SamplingParams(8, temperature=temperature, top_p=top_p, top_k=top_k)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(0.2, 3.0), st.sampled_from([1.0, 0.97, 0.6, 0.05]), st.sampled_from([-1, 1, 3, 99])),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 2**16),
)
def test_draws_lie_in_the_support_with_their_log_prob(rows, seed):
    torch.manual_seed(seed)
    logits = torch.randn(len(rows), 13) * 2
    batch = [params(*row) for row in rows]
    generator = torch.Generator().manual_seed(seed)
    tokens, log_probs = sample(logits, SamplingBatch.build(batch, 13, CPU), generator)
    for row, p, token, log_prob in zip(logits.tolist(), batch, tokens.tolist(), log_probs.tolist(), strict=True):
        support = reference(row, p)
        assert token in support
        assert log_prob == pytest.approx(math.log(support[token]), abs=1e-4)


@pytest.mark.parametrize(
    "p", [params(), params(0.5), params(2.0, top_k=4), params(top_p=0.7), params(0.8, 0.9, 5)], ids=str
)
def test_frequencies_follow_the_distribution(p):
    torch.manual_seed(3)
    logits, n = torch.randn(11) * 1.5, 20_000
    batch = SamplingBatch.build([p] * n, 11, CPU)
    tokens, log_probs = sample(logits.expand(n, -1), batch, torch.Generator().manual_seed(5))
    want = reference(logits.tolist(), p)
    counts = torch.bincount(tokens, minlength=11) / n
    for token in range(11):
        assert counts[token].item() == pytest.approx(want.get(token, 0.0), abs=0.015)
    seen = dict(zip(tokens.tolist(), log_probs.exp().tolist(), strict=True))
    assert sum(seen.values()) == pytest.approx(1.0, abs=1e-4), "log-probs of the support are normalised"


def test_greedy_rows_report_the_models_own_log_prob():
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    for others in ([params(0)] * 2, [params(1.0, top_k=2), params(0.3)]):
        batch = SamplingBatch.build([params(0, top_k=2, top_p=0.1), *others], 7, CPU)
        tokens, log_probs = sample(logits, batch, torch.Generator().manual_seed(0))
        assert tokens[0] == logits[0].argmax()
        assert log_probs[0].item() == pytest.approx(logits[0].log_softmax(-1).max().item(), abs=1e-6)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((5000, 6), -math.inf)
    logits[:, 2] = 0.0
    logits[:, 4] = 0.0
    tokens, _ = sample(logits, SamplingBatch.build([params()] * 5000, 6, CPU), torch.Generator().manual_seed(1))
    assert set(tokens.tolist()) == {2, 4}


def test_nan_logits_show_in_the_log_prob_of_their_row_only():
    logits = torch.zeros(2, 5)
    logits[1, 3] = math.nan
    for p in (params(), params(top_k=3), params(top_p=0.5)):
        tokens, log_probs = sample(logits, SamplingBatch.build([p] * 2, 5, CPU), torch.Generator())
        assert math.isfinite(log_probs[0]) and math.isnan(log_probs[1])
        assert tokens.max() < 5
