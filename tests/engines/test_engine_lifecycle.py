"""Abort, pause, sleep, wake-up, weights: what holds requests, what refuses them, what memory is there."""

from __future__ import annotations

import time

import pytest
import torch
from engine_models import MAX_LEN, ask, forward_log_probs, greedy, make_model, run

from swingshift.core.types import FinishReason
from swingshift.engines.torch_engine import TorchEngine
from swingshift.errors import NotAcceptingError, ReplicaError

LONG = 3000
"""Tokens no test waits for: an engine that is decoding such a response is reliably in the middle of it."""


def start_long(engine, *, n=2, name="long", temperature=1.0):
    before = engine.status().num_decode_steps
    future = engine.generate(ask((5, 6, 7), n=n, budget=LONG, name=name, temperature=temperature))
    wait_until(lambda: engine.status().num_decode_steps >= before + 3)
    return future


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        time.sleep(0.001)


def long_engine(engines, model, **changes):
    return engines(model, max_model_len=LONG + 8, **changes)


def write(engine, model, version):
    engine.start_weight_update(version).result(5)
    engine.update_weights([(name, p.detach()) for name, p in model.named_parameters()]).result(5)
    engine.finish_weight_update(version).result(5)


def test_abort_returns_partial_outputs_and_computes_nothing_more(model, engines):
    engine = long_engine(engines, model, max_num_seqs=2)
    running, waiting = start_long(engine), engine.generate(ask((1,), n=2))
    assert engine.abort().result(5) == 2
    assert running.done() and waiting.done(), "acknowledged after the outputs were handed out"
    decoded = engine.status().num_decoded_tokens
    for output in running.result():
        assert output.finish_reason is FinishReason.ABORT
        assert 3 <= len(output.token_ids) < LONG
        want = forward_log_probs(model, (5, 6, 7), output.token_ids[:100])
        torch.testing.assert_close(torch.tensor(output.log_probs[:100]), want, rtol=1e-4, atol=1e-4)
    for output in waiting.result():
        assert (output.token_ids, output.version_spans) == ((), ())
        assert output.finish_reason is FinishReason.ABORT
    assert engine.abort().result(5) == 0
    assert engine.status().num_decoded_tokens == decoded == sum(len(o.token_ids) for o in running.result())
    assert engine.status().num_running == engine.status().num_waiting == 0


def test_abort_keeps_finished_members_of_a_group(model, engines):
    engine = long_engine(engines, model)
    request = ask((5, 6, 7), n=2, budget=LONG)
    future = engine.generate(type(request)("g", (5, 6, 7), ((), ()), (2, LONG), request.sampling))
    wait_until(lambda: engine.status().num_decoded_tokens >= 8)
    engine.abort().result(5)
    short, cut = future.result()
    assert (short.finish_reason, len(short.token_ids)) == (FinishReason.LENGTH, 2)
    assert cut.finish_reason is FinishReason.ABORT and len(cut.token_ids) > 2


def test_abort_without_refusal_holds_later_requests(model, engines):
    engine = engines(model)
    engine.abort().result(5)
    held = engine.generate(ask((5, 6, 7)))
    assert engine.abort_requests([]).result(5) == 0
    assert not held.done() and engine.status().num_waiting == 1
    engine.resume_generation().result(5)
    assert held.result(20)[0].token_ids == greedy(model, (5, 6, 7), 12)


def test_abort_with_refusal_refuses_until_resume(model, engines):
    engine = engines(model)
    held_by_pause = (engine.pause("keep"), engine.generate(ask((1,))))[1]
    assert engine.abort(refuse=True).result(5) == 1
    assert held_by_pause.result(5)[0].finish_reason is FinishReason.ABORT
    assert engine.status().refusing
    with pytest.raises(NotAcceptingError, match="refusing"):
        run(engine, ask((5, 6, 7)))
    engine.resume_generation().result(5)
    assert run(engine, ask((5, 6, 7)))[0].token_ids == greedy(model, (5, 6, 7), 12)


def test_abort_requests_leaves_the_others_alone(model, engines):
    engine = long_engine(engines, model, max_num_seqs=3)
    first, second = start_long(engine, name="a"), engine.generate(ask((1, 2), n=3, budget=20, name="b"))
    assert engine.abort_requests(["a", "unknown"]).result(5) == 1
    assert {o.finish_reason for o in first.result(0)} == {FinishReason.ABORT}
    assert [o.token_ids for o in second.result(20)] == [greedy(model, (1, 2), 20)] * 3


def test_pause_keep_freezes_and_resume_goes_on(model, engines):
    engine = engines(model, max_model_len=400)
    future = engine.generate(ask((5, 6, 7), n=2, budget=300))
    wait_until(lambda: engine.status().num_decode_steps >= 3)
    assert engine.pause("keep").result(5) == 1
    steps = engine.status().num_decode_steps
    with pytest.raises(ReplicaError, match="in flight"):
        engine.start_weight_update(1).result(5)
    with pytest.raises(ReplicaError, match="in flight"):
        engine.sleep().result(5)
    with pytest.raises(ReplicaError, match="in flight"):
        engine.release_kv_cache().result(5)
    assert not future.done() and engine.status().num_decode_steps == steps
    engine.resume_generation().result(5)
    assert future.result(20)[0].token_ids == greedy(model, (5, 6, 7), 300)


def test_pause_wait_finishes_what_is_in_flight_and_holds_the_rest(model, engines):
    engine = engines(model, max_num_seqs=1, max_model_len=200)
    futures = [engine.generate(ask((5, 6, 7), n=2, budget=40, name=str(i))) for i in range(3)]
    drained = engine.pause("wait")
    late = engine.generate(ask((1,)))
    assert drained.result(20) == 3
    assert all(f.done() for f in futures) and not late.done()
    assert engine.pause("wait").result(5) == 0
    engine.resume_generation().result(5)
    assert late.result(20)[0].token_ids == greedy(model, (1,), 12)


def test_pause_wait_ends_with_an_error_when_generation_resumes_first(model, engines):
    engine = long_engine(engines, model)
    future = start_long(engine)
    drained = engine.pause("wait")
    engine.resume_generation().result(5)
    with pytest.raises(ReplicaError, match="resumed"):
        drained.result(5)
    assert not future.done()
    drained = engine.pause("wait")
    assert engine.pause("abort").result(5) == 1
    assert drained.result(5) == 1, "an abort drains too"
    with pytest.raises(ReplicaError, match="mode"):
        engine.pause("stop").result(5)


def test_sleep_frees_memory_and_wake_up_takes_it_back(engines):
    model, twin = make_model(), make_model()
    storages = [p.untyped_storage() for p in model.parameters()]
    size = sum(s.nbytes() for s in storages)
    engine = engines(model)
    awake = engine.status()
    assert awake.kv_cache_bytes > 0 and awake.weight_bytes >= size
    engine.abort(refuse=True).result(5)
    engine.sleep(2).result(5)
    asleep = engine.status()
    assert (asleep.state, asleep.kv_cache_bytes, asleep.weight_bytes) == ("asleep", 0, 0)
    assert sum(p.untyped_storage().nbytes() for p in model.parameters()) == 0
    with pytest.raises(NotAcceptingError, match="asleep"):
        run(engine, ask((1,)))
    with pytest.raises(ReplicaError, match="asleep"):
        engine.resume_generation().result(5)
    with pytest.raises(ReplicaError, match="asleep"):
        engine.start_weight_update(1).result(5)
    engine.wake_up(["weights"]).result(5)
    assert engine.status().kv_cache_bytes == 0
    assert sum(p.untyped_storage().nbytes() for p in model.parameters()) == size
    with pytest.raises(ReplicaError, match="undefined"):
        run(engine, ask((1,)))
    with pytest.raises(ReplicaError, match="undefined"):
        engine.resume_generation().result(5)
    write(engine, twin, 1)
    with pytest.raises(ReplicaError, match="KV cache"):
        engine.resume_generation().result(5)
    engine.wake_up(["kv_cache"]).result(5)
    assert engine.status().state == "paused" and not engine.status().refusing
    held = engine.generate(ask((5, 6, 7)))
    engine.resume_generation().result(5)
    assert held.result(20)[0].token_ids == greedy(twin, (5, 6, 7), 12)
    assert held.result()[0].version_spans == ((1, 12),)
    again = engine.status()
    assert (again.kv_cache_bytes, again.weight_bytes) == (awake.kv_cache_bytes, awake.weight_bytes)


def test_level_one_keeps_the_weights(engines, model):
    own = make_model()
    engine = engines(own)
    engine.abort().result(5)
    engine.sleep(1).result(5)
    assert engine.status().kv_cache_bytes == 0
    engine.wake_up().result(5)
    engine.resume_generation().result(5)
    assert run(engine, ask((5, 6, 7)))[0].token_ids == greedy(model, (5, 6, 7), 12)


def test_starting_asleep_takes_no_memory_until_woken():
    model, twin = make_model(), make_model()
    engine = TorchEngine(model, max_num_seqs=4, max_model_len=MAX_LEN, start_awake=False)
    status = engine.status()
    assert (status.state, status.weight_bytes, status.kv_cache_bytes) == ("asleep", 0, 0)
    with pytest.raises(NotAcceptingError):
        run(engine, ask((1,)))
    engine.wake_up().result(5)
    write(engine, twin, 0)
    engine.resume_generation().result(5)
    assert run(engine, ask((5, 6, 7)))[0].token_ids == greedy(twin, (5, 6, 7), 12)
    engine.close()


def test_a_held_request_never_parks_in_a_sleeping_engine(model, engines):
    engine = engines(make_model())
    engine.abort().result(5)
    held = engine.generate(ask((1,)))
    engine.sleep().result(5)
    with pytest.raises(NotAcceptingError, match="went to sleep"):
        held.result(0)


def test_requests_are_held_during_a_weight_update_and_start_on_the_new_weights(engines):
    old, new = make_model(seed=1), make_model(seed=2)
    engine = engines(old)
    with pytest.raises(ReplicaError, match="accepting"):
        engine.start_weight_update(1).result(5)
    with pytest.raises(ReplicaError, match="accepting"):
        engine.release_kv_cache().result(5)
    engine.abort().result(5)
    engine.sleep().result(5)
    engine.wake_up().result(5)
    engine.start_weight_update(7).result(5)
    held = engine.generate(ask((5, 6, 7)))
    with pytest.raises(ReplicaError, match="not finished"):
        engine.resume_generation().result(5)
    engine.update_weights([(n, p.detach()) for n, p in new.named_parameters()]).result(5)
    engine.finish_weight_update(7).result(5)
    engine.resume_generation().result(5)
    assert held.result(20)[0].token_ids == greedy(new, (5, 6, 7), 12)
    assert held.result()[0].version_spans == ((7, 12),)


def test_half_written_weights_are_never_used(engines):
    model, new = make_model(seed=1), make_model(seed=2)
    named = [(n, p.detach()) for n, p in new.named_parameters()]
    engine = engines(model)
    engine.abort().result(5)
    engine.start_weight_update(1).result(5)
    engine.update_weights(named[:3]).result(5)
    engine.start_weight_update(2).result(5)
    engine.update_weights(named[3:]).result(5)
    with pytest.raises(ReplicaError, match="3 parameters were never written"):
        engine.finish_weight_update(2).result(5)
    engine.sleep(1).result(5)
    engine.wake_up().result(5)
    with pytest.raises(ReplicaError, match="undefined"):
        engine.resume_generation().result(5)
    write(engine, new, 2)
    engine.resume_generation().result(5)
    assert run(engine, ask((5, 6, 7)))[0].token_ids == greedy(new, (5, 6, 7), 12)


def test_weight_update_mistakes_are_named(engines):
    engine = engines(make_model(), weight_version=5)
    engine.abort().result(5)
    cases = [
        (lambda: engine.update_weights([]), "start_weight_update"),
        (lambda: engine.start_weight_update(4), "older"),
        (lambda: engine.finish_weight_update(6), "started is None"),
        (lambda: engine.sleep(3), "level"),
        (lambda: engine.wake_up(["weight"]), "weight"),
    ]
    for call, word in cases:
        with pytest.raises(ReplicaError, match=word):
            call().result(5)
    engine.start_weight_update(6).result(5)
    with pytest.raises(ReplicaError, match="does not have"):
        engine.update_weights([("nonsense", torch.zeros(1))]).result(5)
    with pytest.raises(ReplicaError, match=r"want \(32,\)"):
        engine.update_weights([("model.norm.weight", torch.zeros(3))]).result(5)


@pytest.mark.parametrize("family", ["llama-tied", "qwen3"])
def test_hybrid_engine_reads_the_trainers_parameters_without_a_copy(family, engines):
    model = make_model(family)
    pointers = {n: p.data_ptr() for n, p in model.named_parameters()}
    engine = engines(model, shares_weights=True)
    own = engine.status().weight_bytes
    assert own < sum(p.numel() * 4 for p in model.parameters()), "only the packed projections are its own"
    assert run(engine, ask((5, 6, 7)))[0].token_ids == greedy(model, (5, 6, 7), 12)
    engine.abort(refuse=True).result(5)
    engine.sleep(2).result(5)
    assert (engine.status().weight_bytes, engine.status().kv_cache_bytes) == (0, 0)
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == pointers
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    engine.wake_up().result(5)
    engine.start_weight_update(1).result(5)
    engine.finish_weight_update(1).result(5)
    with pytest.raises(ReplicaError, match="start_weight_update"):
        engine.update_weights([]).result(5)
    engine.resume_generation().result(5)
    (output,) = run(engine, ask((5, 6, 7)))
    assert output.token_ids == greedy(model, (5, 6, 7), 12)
    assert output.version_spans == ((1, 12),)
    assert {n: p.data_ptr() for n, p in model.named_parameters()} == pointers
    assert engine.status().weight_bytes == own


def test_hybrid_engine_sees_a_training_step_after_wake_up_alone(engines):
    model = make_model()
    engine = engines(model, shares_weights=True)
    before = run(engine, ask((5, 6, 7)))[0].token_ids
    engine.abort().result(5)
    engine.sleep().result(5)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.flip(0))
    engine.wake_up().result(5)
    engine.resume_generation().result(5)
    after = run(engine, ask((5, 6, 7)))[0].token_ids
    assert after == greedy(model, (5, 6, 7), 12) != before
