"""What only shows between two steps of the engine."""

from __future__ import annotations

from concurrent.futures import Future

import torch
from engine_models import MAX_LEN, ask, greedy, make_model

from swingshift.engines.engine_core import EngineCore
from swingshift.engines.kv_cache import KVCache
from swingshift.engines.model_shape import ModelShape
from swingshift.engines.weights import ModelWeights


@torch.no_grad()
def test_members_of_one_group_may_run_on_different_versions():
    old, new = make_model(seed=1), make_model(seed=2)
    wanted = greedy(old, (5, 6, 7), 4), greedy(new, (5, 6, 7), 4)
    shape, cpu = ModelShape.from_config(old.config), torch.device("cpu")
    weights = ModelWeights(old, shape, shared=False, device=cpu)
    cache = KVCache(shape, num_slots=1, max_len=MAX_LEN, dtype=torch.float32, device=cpu)
    core = EngineCore(weights, cache, seed=0, version=1, start_awake=True)
    core.resume_generation()
    answer: Future = Future()
    core.generate(ask((5, 6, 7), n=2, budget=4), answer)
    kept_bytes = []
    for _ in range(4):
        core.step()
        kept_bytes.append(core.status().kv_cache_bytes - cache.num_bytes)
    prompt_bytes = 2 * shape.kv_bytes_per_token(torch.float32)
    assert kept_bytes == [prompt_bytes] * 4, "the prompt is kept for the member that waits"
    paused: Future = Future()
    core.pause("keep", paused)
    assert paused.result(0) == 1 and not core.has_work
    core.start_weight_update(2)
    core.update_weights(new.named_parameters())
    core.finish_weight_update(2)
    assert core.status().kv_cache_bytes == cache.num_bytes, "nothing computed with old weights stays"
    core.resume_generation()
    while core.has_work:
        core.step()
    first, second = answer.result(0)
    assert (first.token_ids, second.token_ids) == wanted
    assert (first.version_spans, second.version_spans) == (((1, 4),), ((2, 4),))
    assert (first.num_prefill_tokens, second.num_prefill_tokens) == (3, 3)
