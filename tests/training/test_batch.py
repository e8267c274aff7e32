"""Rows, micro-batches and shares of ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_builders import VOCAB, tiny

from swingshift.core.row_sharing import responses_per_row
from swingshift.training.batch import (
    Row,
    TrainResponse,
    balance,
    micro_batch,
    rows_of,
    split_by_tokens,
    token_weights,
)
from swingshift.training.forward import can_share_prompts, response_logits


def response(*tokens: int, advantage: float = 0.0) -> TrainResponse:
    return TrainResponse(tokens, (-1.0,) * len(tokens), advantage, 0.5)


tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6).map(tuple)
groups = st.lists(st.tuples(tokens, st.lists(tokens, min_size=1, max_size=5)), min_size=1, max_size=4)
MODEL = tiny().eval()


@given(groups, st.integers(1, 5))
def test_every_layout_gives_the_logits_of_each_response_alone(data, per_row):
    """Neither padding nor the other responses in a row are seen."""
    rows = []
    for prompt, responses in data:
        rows += rows_of(prompt, [response(*r) for r in responses], per_row, max_tokens=100)
    batch = micro_batch(rows)
    with torch.no_grad():
        logits = response_logits(MODEL, batch)
        expected, targets = [], []
        for row in rows:
            for r in row.responses:
                alone = MODEL(torch.tensor([[*row.prompt_ids, *r.token_ids]])).logits[0]
                expected.append(alone[len(row.prompt_ids) - 1 : -1])
                targets += r.token_ids
    torch.testing.assert_close(logits, torch.cat(expected), atol=1e-5, rtol=1e-4)
    assert batch.targets.tolist() == targets


def test_layout_of_a_shared_row():
    rows = [Row((1, 2), (response(3, 4, 5, advantage=1.0), response(6), response(7, 8, advantage=-1.0)))]
    batch = micro_batch([*rows, Row((9,), (response(1, 2),))])
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 7], [9, 1, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 2], [0, 1, 0, 0, 0]]
    assert batch.positions.tolist() == [1, 2, 3, 1, 1, 4, 5, 6]
    assert batch.targets.tolist() == [3, 4, 5, 6, 7, 8, 1, 2]
    assert batch.advantages.tolist() == [1, 1, 1, 0, -1, -1, 0, 0]
    assert batch.mask[0, 0, 4].tolist() == [True, True, False, False, True]
    assert batch.mask.any(-1).all(), "no query may be without any key"
    assert batch.num_padding == 3


def test_single_rows_need_no_mask():
    batch = micro_batch([Row((1, 2), (response(3),)), Row((4,), (response(5, 6, 7),))])
    assert batch.mask is None and batch.position_ids is None


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(60, 200))
def test_split_keeps_everything_within_the_limit(lengths, limit):
    rows = [Row((0,) * n, (response(1),)) for n in lengths]
    chunks = split_by_tokens(rows, limit)
    assert sorted(r.num_inputs for c in chunks for r in c) == sorted(lengths)
    assert all(len(c) * max(r.num_inputs for r in c) <= limit for c in chunks)
    assert all(micro_batch(c).input_ids.numel() <= limit for c in chunks)


@given(st.integers(1, 30), st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 20))
def test_rows_keep_order_and_limits(prompt, lengths, per_row):
    responses = [response(*[i] * n) for i, n in enumerate(lengths)]
    rows = rows_of((0,) * prompt, responses, per_row, max_tokens=60)
    assert [r for row in rows for r in row.responses] == responses
    assert all(row.num_inputs <= 60 and len(row.responses) <= per_row for row in rows)


def test_sharing_pays_for_long_prompts_and_not_for_long_responses():
    assert responses_per_row(200, [16] * 8, hidden_size=64) == 8
    assert responses_per_row(16, [512] * 8, hidden_size=64) == 1
    assert responses_per_row(200, [100] * 8, hidden_size=4096) == 8
    assert responses_per_row(8, [7], hidden_size=64) == 1


def test_only_known_full_attention_models_share():
    model = tiny()
    assert can_share_prompts(model)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    assert not can_share_prompts(model)
    model = tiny()
    model.set_attn_implementation("eager")
    assert not can_share_prompts(model)


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 5))
def test_balance_is_within_one_item(loads, ranks):
    owners = balance(loads, ranks)
    totals = [sum(n for n, o in zip(loads, owners, strict=True) if o == r) for r in range(ranks)]
    assert max(totals) - min(totals) <= max(loads, default=0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_weights_average(lengths):
    for mode in ("token-mean", "seq-mean-token-mean"):
        weights = token_weights(lengths, mode)
        assert sum(w * n for w, n in zip(weights, lengths, strict=True)) == pytest.approx(1)
    assert [w * n for w, n in zip(weights, lengths, strict=True)] == pytest.approx([1 / len(lengths)] * len(lengths))
