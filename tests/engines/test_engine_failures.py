"""Nothing hangs: a dead thread, a closed engine and a broken model all say so."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from engine_models import VOCAB, ask, greedy, make_model, run

from swingshift.engines.runner import Runner
from swingshift.errors import NotAcceptingError, ReplicaDiedError, ReplicaError


class _Broken(Exception):
    pass


def test_an_unexpected_error_in_the_thread_reaches_everyone(model, engines, monkeypatch):
    engine = engines(model)
    step, may_fail = Runner.step, threading.Event()

    def fail_later(self, rows):
        if may_fail.is_set():
            raise _Broken("the device is gone")
        return step(self, rows)

    monkeypatch.setattr(Runner, "step", fail_later)
    assert run(engine, ask((1,)))[0].token_ids == greedy(model, (1,), 12)
    engine.abort().result(5)
    held = [engine.generate(ask((1,), name="x")), engine.generate(ask((2,), n=9, name="y"))]
    may_fail.set()
    engine.resume_generation()
    for future in held:
        with pytest.raises(ReplicaDiedError, match="the device is gone") as error:
            future.result(5)
        assert isinstance(error.value.__cause__, _Broken)
    with pytest.raises(ReplicaDiedError, match="the device is gone"):
        run(engine, ask((1,)))
    for later in (engine.abort, engine.resume_generation, engine.sleep, engine.wake_up):
        with pytest.raises(ReplicaDiedError):
            later().result(5)
    engine.close()
    assert engine.status().state == "dead"
    assert engine.status().kv_cache_bytes == 0


def test_an_unexpected_error_in_a_command_reaches_its_caller_and_the_rest(model, engines):
    engine = engines(make_model())
    engine.abort().result(5)
    held, drained = engine.generate(ask((1,))), engine.pause("wait")
    drained.result(5)
    engine.start_weight_update(1).result(5)
    with pytest.raises(ReplicaDiedError) as error:
        engine.update_weights([("model.norm.weight", "no tensor")]).result(5)
    assert isinstance(error.value.__cause__, AttributeError)
    with pytest.raises(ReplicaDiedError):
        held.result(5)


def test_close_ends_requests_in_flight_and_later_calls(model, engines):
    engine = engines(model, max_model_len=4000)
    future = engine.generate(ask((1,), budget=3900, temperature=1.0))
    engine.abort_requests([]).result(5)
    drained = engine.pause("wait")
    engine.close()
    engine.close()
    for late in (future, drained, engine.generate(ask((1,))), engine.abort()):
        with pytest.raises(ReplicaDiedError, match="closed"):
            late.result(5)
    assert not any(t is engine._thread for t in threading.enumerate())
    assert model.model.norm.weight.numel() == 32, "the model outlives the engine"


def test_weights_that_give_nan_fail_the_request_and_do_not_poison_the_slots(engines):
    model, good = make_model(), make_model()
    with torch.no_grad():
        model.model.embed_tokens.weight[3] = float("nan")
    engine = engines(model, max_num_seqs=2)
    for n in (1, 5):
        with pytest.raises(ReplicaError, match="NaN"):
            run(engine, ask((5, 3, 7), n=n, budget=6))
    engine.abort().result(5)
    engine.start_weight_update(1).result(5)
    engine.update_weights([(n, p.detach()) for n, p in good.named_parameters()]).result(5)
    engine.finish_weight_update(1).result(5)
    engine.resume_generation().result(5)
    # The short response looks, behind its mask, at the very positions that held NaN.
    short, long = run(engine, ask((5,), prefixes=((), (1, 2, 4, 5, 6, 7, 8)), budget=6))
    assert short.token_ids == greedy(good, (5,), 6)
    assert long.token_ids == greedy(good, (5, 1, 2, 4, 5, 6, 7, 8), 6)


def test_calls_from_many_threads_and_cancelled_waits(model, engines):
    engine = engines(model, max_num_seqs=6)
    want = {p: greedy(model, (p,), 8) for p in range(6)}
    wrong = []

    def ask_often(p):
        for i in range(8):
            outputs = run(engine, ask((p,), n=2, budget=8, name=f"{p}-{i}"))
            wrong.extend(o for o in outputs if o.token_ids != want[p])

    threads = [threading.Thread(target=ask_often, args=(p,)) for p in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong

    async def cancel_one() -> tuple[int, ...]:
        wait = asyncio.ensure_future(asyncio.wrap_future(engine.generate(ask((1,), n=20, budget=30))))
        await asyncio.sleep(0)
        wait.cancel()
        outputs = await asyncio.wrap_future(engine.generate(ask((2,), budget=8)))
        return outputs[0].token_ids

    assert asyncio.run(cancel_one()) == want[2]


def test_random_commands_never_lose_a_request(model, engines):
    """Aborts and pauses in any order: every request is answered, and prefixes of greedy output are right."""
    torch.manual_seed(0)
    engine = engines(model, max_num_seqs=3)
    want = {p: greedy(model, (p,), 20) for p in range(1, 5)}
    futures = []
    for choice in torch.randint(0, 8, (120,)).tolist():
        if choice < 3:
            p = 1 + choice % 4
            futures.append((p, engine.generate(ask((p,), n=2, budget=20, name=str(p)))))
        elif choice == 3:
            engine.abort()
        elif choice == 4:
            engine.pause("keep")
        elif choice == 5:
            engine.abort_requests(["1"])
        elif choice == 6:
            engine.abort(refuse=True)
        else:
            engine.resume_generation()
    engine.resume_generation().result(5)
    answered = 0
    for p, future in futures:
        try:
            outputs = future.result(20)
        except NotAcceptingError:
            continue
        answered += 1
        for output in outputs:
            assert output.token_ids == want[p][: len(output.token_ids)]
            assert len(output.token_ids) == 20 or output.finish_reason == "abort"
    assert answered > 10
    assert engine.status().num_running == engine.status().num_waiting == 0
    assert all(t < VOCAB for p in want for t in want[p])
