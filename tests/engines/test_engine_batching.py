"""Responses join and leave between steps without touching each other."""

from __future__ import annotations

import random

import pytest
from engine_models import MAX_LEN, VOCAB, ask, assert_log_probs, greedy, run

from swingshift.core.types import FinishReason
from swingshift.errors import ConfigError, DataError


def test_late_joiners_change_nothing_for_others(model, engines):
    rng = random.Random(0)
    engine = engines(model, max_num_seqs=3)
    futures = []
    for _ in range(25):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9)))
        budget = rng.randint(1, 10)
        n = rng.choice((1, 1, 2, 5))
        futures.append((prompt, budget, n, engine.generate(ask(prompt, n=n, budget=budget))))
        if rng.random() < 0.3:
            futures[rng.randrange(len(futures))][3].result(20)
    for prompt, budget, n, future in futures:
        outputs = future.result(20)
        assert [o.token_ids for o in outputs] == [greedy(model, prompt, budget)] * n


def test_group_larger_than_the_slots_is_prefilled_once(model, engines):
    engine = engines(model, max_num_seqs=2)
    outputs = run(engine, ask((5, 6, 7, 8), n=7, budget=6))
    assert [o.token_ids for o in outputs] == [greedy(model, (5, 6, 7, 8), 6)] * 7
    assert [o.num_prefill_tokens for o in outputs] == [4, 0, 0, 0, 0, 0, 0]
    status = engine.status()
    assert status.num_prefilled_tokens == 4
    assert status.num_decoded_tokens == 42
    assert status.num_running == status.num_waiting == 0
    assert status.kv_cache_bytes == 2 * MAX_LEN * 256, "nothing is kept once nobody waits"


def test_kept_prompt_is_forgotten_on_reset(model, engines):
    engine = engines(model, max_num_seqs=1)
    future = engine.generate(ask((5, 6, 7, 8), n=3, budget=30))
    while engine.status().num_running == 0:
        engine.reset_prefix_cache().result(5)
    engine.reset_prefix_cache().result(5)
    outputs = future.result(20)
    assert [o.token_ids for o in outputs] == [greedy(model, (5, 6, 7, 8), 30)] * 3
    assert sum(o.num_prefill_tokens for o in outputs) == engine.status().num_prefilled_tokens == 8


def test_stop_token_ends_a_response_and_belongs_to_it(model, engines):
    whole = greedy(model, (5, 6, 7), 12)
    stop = next(t for i, t in enumerate(whole) if i >= 3 and t not in whole[:i])
    at = whole.index(stop) + 1
    engine = engines(model)
    (output,) = run(engine, ask((5, 6, 7), budget=12, stop=(stop, 99999)))
    assert output.token_ids == whole[:at]
    assert output.finish_reason is FinishReason.STOP
    assert_log_probs(model, (5, 6, 7), output)
    (exact,) = run(engine, ask((5, 6, 7), budget=at, stop=(stop,)))
    assert exact.token_ids == whole[:at]
    assert exact.finish_reason is FinishReason.STOP, "a stop token exactly at the budget is a stop"
    (short,) = run(engine, ask((5, 6, 7), budget=at - 1, stop=(stop,)))
    assert short.finish_reason is FinishReason.LENGTH


def test_rows_with_different_sampling_share_a_step(model, engines):
    engine = engines(model)
    cold = engine.generate(ask((5, 6, 7), n=1, budget=20))
    hot = engine.generate(ask((5, 6, 7), n=2, budget=20, temperature=2.0))
    cut = engine.generate(ask((5, 6, 7), n=1, budget=20, temperature=1.0, top_k=1))
    assert cold.result(20)[0].token_ids == greedy(model, (5, 6, 7), 20)
    assert cut.result(20)[0].token_ids == greedy(model, (5, 6, 7), 20)
    assert set(cut.result()[0].log_probs) == {0.0}, "the only token left has probability 1"
    assert_log_probs(model, (5, 6, 7), cold.result()[0])
    for output in hot.result(20):
        assert_log_probs(model, (5, 6, 7), output, 2.0)


def test_kv_memory_bounds_the_slots(model, engines):
    slot = MAX_LEN * 256
    assert engines(model, max_num_seqs=8, kv_cache_memory_bytes=3 * slot + 1).status().num_slots == 3
    assert engines(model, max_num_seqs=2, kv_cache_memory_bytes=3 * slot).status().num_slots == 2
    with pytest.raises(ConfigError, match="kv_cache_memory_bytes"):
        engines(model, kv_cache_memory_bytes=slot - 1)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (ask((1,) * (MAX_LEN - 4), budget=5), "response_length"),
        (ask((1, 2), prefixes=((3,) * MAX_LEN,), budget=1), "response_length"),
        (ask((), budget=3), "empty"),
        (ask((VOCAB,), budget=3), "vocabulary"),
        (ask((1,), prefixes=((-1,),)), "vocabulary"),
        (ask((1,), budget=0), "budget"),
        (ask((1,), temperature=-1.0), "temperature"),
        (ask((1,), temperature=float("nan")), "temperature"),
        (ask((1,), top_p=0.0), "top_p"),
        (ask((1,), top_k=0), "top_k"),
    ],
)
def test_wrong_request_fails_alone(request_, word, model, engines):
    engine = engines(model)
    good = engine.generate(ask((5, 6, 7), n=2))
    with pytest.raises(DataError, match=word):
        run(engine, request_)
    assert good.result(20)[0].token_ids == greedy(model, (5, 6, 7), 12)


def test_longest_possible_response(model, engines):
    (output,) = run(engines(model), ask((5, 6, 7), budget=MAX_LEN - 3))
    assert output.token_ids == greedy(model, (5, 6, 7), MAX_LEN - 3)
    assert run(engines(model), ask((5,), prefixes=())) == ()


def test_responses_share_the_steps_they_were_in(model, engines):
    """Two slots, three responses of 4, 6 and 8 tokens, then some aborted ones: their shares add up to all steps."""
    engine = engines(model, max_num_seqs=2)
    engine.pause("keep").result(20)
    futures = [engine.generate(ask((5, 6, 7), budget=budget)) for budget in (4, 6, 8)]
    engine.resume_generation().result(20)
    outputs = [future.result(20)[0] for future in futures]
    # The third takes the first one's slot after 4 steps: 2 beside the second, then 6 alone.
    assert [o.decode_steps for o in outputs] == pytest.approx([4 / 2, 6 / 2, 2 / 2 + 6])
    before = engine.status().num_decode_steps
    assert before == 12
    future = engine.generate(ask((5, 6, 7), n=3, budget=40))
    while engine.status().num_decode_steps < before + 3:
        pass
    engine.abort().result(20)
    shares = [o.decode_steps for o in future.result(20)]
    assert sum(shares) == pytest.approx(engine.status().num_decode_steps - before)
