"""The engine computes what transformers computes."""

from __future__ import annotations

import copy

import pytest
import torch
from engine_models import FAMILIES, ask, assert_log_probs, greedy, make_model, run

from swingshift.core.types import FinishReason
from swingshift.engines import weights as engine_weights
from swingshift.engines.model_shape import kv_bytes_per_token
from swingshift.errors import ConfigError

PROMPTS = ((5, 6, 7), (1,), (9, 8, 7, 6, 5, 4, 3, 2, 1, 11, 12))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packed", [True, False])
def test_greedy_equals_generate_and_log_probs_equal_a_forward_pass(family, packed, engines, monkeypatch):
    if not packed:
        monkeypatch.setattr(engine_weights, "PACK_LIMIT_BYTES", 0)
    model = make_model(family)
    engine = engines(model)
    futures = [engine.generate(ask(p, n=2, budget=16)) for p in PROMPTS]
    for prompt, future in zip(PROMPTS, futures, strict=True):
        first, second = future.result(20)
        assert first.token_ids == second.token_ids == greedy(model, prompt, 16)
        assert first.finish_reason is FinishReason.LENGTH
        assert first.version_spans == ((0, 16),)
        assert_log_probs(model, prompt, first)


def test_bfloat16_log_probs_are_close_to_a_forward_pass(engines):
    model = make_model().to(torch.bfloat16)
    engine = engines(model)
    (output,) = run(engine, ask((5, 6, 7), budget=8))
    with torch.no_grad():
        logits = model(torch.tensor([[5, 6, 7, *output.token_ids]])).logits[0, 2:-1].float()
    want = logits.log_softmax(-1).gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
    assert (torch.tensor(output.log_probs) - want).abs().mean() < 0.15


def test_sampled_log_probs_equal_a_forward_pass_at_that_temperature(model, engines):
    engine = engines(model)
    for temperature in (0.5, 1.0, 1.7):
        for output in run(engine, ask((5, 6, 7), n=3, temperature=temperature)):
            assert_log_probs(model, (5, 6, 7), output, temperature)


def test_continuation_on_another_engine_equals_an_uninterrupted_response(model, engines):
    whole = greedy(model, (5, 6, 7), 14)
    first, second = engines(model), engines(model)
    (head,) = run(first, ask((5, 6, 7), budget=6))
    prefixes = (head.token_ids, head.token_ids[:2], ())
    outputs = run(second, ask((5, 6, 7), prefixes=prefixes, budget=8))
    for prefix, output in zip(prefixes, outputs, strict=True):
        assert prefix + output.token_ids == whole[: len(prefix) + 8]
        assert_log_probs(model, (5, 6, 7, *prefix), output)
        assert output.num_prefill_tokens == 3 + len(prefix)


def test_seeds_decide_what_is_sampled(model, engines):
    def draw(seed):
        return [o.token_ids for o in run(engines(model, seed=seed), ask((5, 6), n=4, temperature=1.0))]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(set(draw(1))) > 1


def test_weight_update_changes_greedy_output_and_version(engines):
    old, new = make_model(seed=1), make_model(seed=2)
    wanted = {m: greedy(m, (5, 6, 7), 12) for m in (old, new)}
    engine = engines(copy.deepcopy(old), weight_version=3)
    (before,) = run(engine, ask((5, 6, 7)))
    engine.abort().result(5)
    engine.release_kv_cache().result(5)
    engine.start_weight_update(4).result(5)
    named = list(new.named_parameters())
    for half in (named[:5], named[5:]):
        engine.update_weights([(name, p.detach()) for name, p in half]).result(5)
    assert engine.status().weight_version == 3
    engine.finish_weight_update(4).result(5)
    assert engine.status().weight_version == 4
    engine.resume_kv_cache().result(5)
    engine.resume_generation().result(5)
    (after,) = run(engine, ask((5, 6, 7)))
    assert before.token_ids == wanted[old] and after.token_ids == wanted[new]
    assert before.version_spans == ((3, 12),) and after.version_spans == ((4, 12),)
    assert_log_probs(new, (5, 6, 7), after)


def test_tied_head_may_be_written_by_either_name(engines):
    old, new = make_model("llama-tied", seed=1), make_model("llama-tied", seed=2)
    engine = engines(old)
    engine.abort().result(5)
    engine.sleep().result(5)
    engine.wake_up().result(5)
    engine.start_weight_update(1).result(5)
    renamed = [(n.replace("model.embed_tokens", "lm_head"), p.detach()) for n, p in new.named_parameters()]
    engine.update_weights(renamed).result(5)
    engine.finish_weight_update(1).result(5)
    engine.resume_generation().result(5)
    assert run(engine, ask((5, 6, 7)))[0].token_ids == greedy(new, (5, 6, 7), 12)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
    ],
)
def test_models_it_cannot_compute_are_refused_by_name(changes, word, engines):
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.model\.path.*llama, qwen2, qwen3") as error:
        engines(make_model(**changes))
    assert word in str(error.value)


def test_other_architectures_and_short_windows_are_refused(engines):
    model = make_model()
    model.config.model_type = "gpt2"
    with pytest.raises(ConfigError, match="gpt2"):
        engines(model)
    window = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    with pytest.raises(ConfigError, match="sliding window"):
        engines(make_model("qwen2", **window))
    assert run(engines(make_model("qwen2", **window), max_model_len=8), ask((1,), budget=7))


def test_kv_bytes_per_token(model):
    assert kv_bytes_per_token(model.config, torch.float32) == 2 * 2 * 2 * 8 * 4
    assert kv_bytes_per_token(model.config, torch.bfloat16) == 2 * 2 * 2 * 8 * 2
