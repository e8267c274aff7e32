"""Requests on a small KV cache: nothing is lost, tokens are exact, the cache is never overfull."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from swingshift.core.types import FinishReason, GenerationRequest, SamplingParams, TokenOutput
from swingshift.sim.decoding import DecodeCost
from swingshift.sim.responses import Pauses, no_pauses
from swingshift.sim.serving import Finished, Serving
from swingshift.sim.tokens import SimTokens
from swingshift.sim.workload import constant_lengths, tool_pauses

PROFILE = settings(max_examples=150, deadline=None, derandomize=True)
COST = DecodeCost(0.01, 0.001, 1e-6, 1e-4)
BUDGET = 60


def request(name: str, prompt: int, *prefixes: Any, budget: int = BUDGET) -> GenerationRequest:
    budgets = tuple(budget - len(p) for p in prefixes)
    return GenerationRequest(name, (0,) * prompt, prefixes, budgets, SamplingParams(max_tokens=budget))


def new_serving(capacity: int | None, max_num_seqs: int = 8, pauses: Pauses = no_pauses) -> Serving:
    def length(request_id: str, index: int) -> int:
        return random.Random(f"{request_id}/{index}").randint(1, 80)

    return Serving(COST, max_num_seqs, capacity, length, pauses, version=0)


def check_cache(serving: Serving) -> None:
    """Never more cached than fits, unless one response alone needs more."""
    capacity = serving.kv_capacity_tokens
    alone = serving.num_running == 1 and serving.cached_tokens == pytest.approx(serving._batch.kv_tokens)
    assert capacity is None or alone or serving.cached_tokens <= capacity + 1e-3
    assert serving.num_running <= serving.max_num_seqs
    held = sum(serving._held.values())
    assert held == serving._held_tokens
    running = sum(r.context + serving._batch.steps - s.start for r, s in serving._batch.slots.items())
    assert serving._batch.kv_tokens == pytest.approx(running, abs=1e-6)


def run_until(serving: Serving, deadline_s: float) -> list[Finished]:
    """Event after event, as a replica does, up to a moment."""
    ended: list[Finished] = []
    for _ in range(100_000):
        seconds = serving.admit()
        check_cache(serving)
        if seconds is None or serving.now + seconds > deadline_s:
            break
        assert seconds >= 0.0
        ended += serving.advance(serving.now + seconds)
        check_cache(serving)
    else:
        raise AssertionError("time stood still")
    if deadline_s < float("inf"):
        ended += serving.advance(deadline_s)
    return ended


@PROFILE
@given(
    seed=st.integers(0, 10_000),
    capacity=st.sampled_from([1, 20, 60, 100, 200, 1000, None]),
    slots=st.sampled_from([1, 3, 8]),
    turns=st.sampled_from([1, 1, 4]),
)
def test_nothing_is_lost_and_tokens_are_exact(seed: int, capacity: int | None, slots: int, turns: int) -> None:
    """Requests come, are aborted, resumed under a new version, or dropped by their callers, at random moments."""
    rng = random.Random(seed)
    serving = new_serving(capacity, slots, tool_pauses(turns, 0.2) if turns > 1 else no_pauses)
    prompts, tokens, finished, prefilled = {}, {}, {}, 0
    active: set[str] = set()

    def take(ended: list[Finished]) -> None:
        nonlocal prefilled
        for name, outputs in ended:
            active.remove(name)
            keep: list[SimTokens] = []
            for before, output in zip(tokens[name], outputs, strict=True):
                joined = before + output.token_ids
                assert isinstance(joined, SimTokens) and len(joined) <= BUDGET
                assert sum(n for _, n in output.version_spans) == len(output.token_ids)
                prefilled += output.num_prefill_tokens
                if output.finish_reason is FinishReason.ABORT:
                    keep.append(joined)
                else:
                    assert len(joined) == min(joined.wanted, BUDGET)
                    assert (output.finish_reason is FinishReason.STOP) == (joined.wanted <= BUDGET)
                    finished[name] = finished.get(name, 0) + 1
            tokens[name] = keep
            if keep:
                resume(name)

    def resume(name: str) -> None:
        serving.submit(request(name, prompts[name], *tokens[name]))
        active.add(name)

    sizes, dropped = {}, set()
    for number in range(8):
        take(run_until(serving, serving.now + rng.choice([0.0, 0.05, 0.5])))
        name, sizes[name] = f"q{number}", rng.randint(1, 4)
        prompts[name], tokens[name] = rng.randint(1, 30), [()] * sizes[name]
        resume(name)
        if rng.random() < 0.4:
            serving.version += 1
            take(serving.abort([n for n in sorted(active) if rng.random() < 0.5]))
        if rng.random() < 0.2 and active:
            gone = rng.choice(sorted(active))
            serving.drop(gone)
            active.remove(gone)
            dropped.add(gone)
    take(run_until(serving, float("inf")))
    assert not active and not serving.groups and not serving._waiting and not serving.num_running
    assert serving.cached_tokens == 0.0
    assert all(r.output is not None or r.group.request_id in dropped for _, _, r in serving._at_tools)
    for name, size in sizes.items():
        assert name in dropped or finished[name] == size, name
    event(f"preemptions: {min(serving.num_preemptions, 3)}")
    if not dropped:
        assert prefilled == serving.num_prefilled_tokens


# --- by hand ------------------------------------------------------------------------------------------------------


def outputs_of(ended: list[Finished]) -> dict[str, tuple[TokenOutput, ...]]:
    return dict(ended)


def test_a_full_cache_preempts_the_youngest_which_prefills_everything_again() -> None:
    serving = Serving(DecodeCost(0.01, per_prefill_token_s=0.001), 8, 60, constant_lengths(30), version=0)
    serving.submit(request("old", 10, ()))
    serving.submit(request("young", 10, ()))
    ended = outputs_of(run_until(serving, float("inf")))
    (old,), (young,) = ended["old"], ended["young"]
    # 20 steps fill the cache (2 × 10 + 2 × 20 = 60). The young one waits until the old one ends, 10 steps later.
    assert (old.num_preemptions, old.num_prefill_tokens) == (0, 10)
    assert (young.num_preemptions, young.num_prefill_tokens) == (1, 10 + 30)
    assert len(old.token_ids) == len(young.token_ids) == 30
    assert serving.now == pytest.approx(20 * 0.001 + 0.30 + 30 * 0.001 + 0.10)


def test_preemption_does_not_thrash() -> None:
    """Many responses that do not fit together: each is preempted a few times at most, not at every event."""
    serving = Serving(DecodeCost(0.01, per_prefill_token_s=0.001), 64, 500, constant_lengths(100), version=0)
    for i in range(40):
        serving.submit(request(f"q{i}", 10, (), budget=100))
    outputs = [o for _, (o,) in run_until(serving, float("inf"))]
    assert len(outputs) == 40
    assert Counter(len(o.token_ids) for o in outputs) == {100: 40}
    assert max(o.num_preemptions for o in outputs) <= 12
    assert serving.num_preemptions <= 40 * 4
    # Every step gives at least three responses a token: fewer never fill the cache.
    assert serving.now < 40 * 100 * 0.01 / 3 + serving.num_prefilled_tokens * 0.001


def test_a_response_larger_than_the_cache_runs_alone() -> None:
    serving = Serving(DecodeCost(0.01), 8, 20, constant_lengths(50), version=0)
    for name in ("a", "b"):
        serving.submit(request(name, 10, ()))
    ended = run_until(serving, float("inf"))
    assert [name for name, _ in ended] == ["a", "b"]
    assert all(len(o.token_ids) == 50 for _, (o,) in ended)
    assert serving.now == pytest.approx(1.0), "one after the other"


def test_prefill_that_an_abort_cut_short_counts_as_far_as_it_came() -> None:
    serving = Serving(DecodeCost(0.01, per_prefill_token_s=0.1), 8, None, constant_lengths(50), version=0)
    serving.submit(request("a", 10, ()))
    serving.admit()
    assert not serving.advance(0.4)
    (_, (output,)) = serving.abort(["a"])[0]
    assert (output.num_prefill_tokens, len(output.token_ids)) == (4, 0)
    serving.submit(request("b", 10, ()))
    assert serving.admit() == pytest.approx(1.0 + 0.5), "nothing of a's prefill is left"


def test_aborting_who_waits_costs_nothing_and_keeps_the_order_of_the_others() -> None:
    serving = Serving(DecodeCost(0.01), 1, None, constant_lengths(10), version=0)
    for i in range(200):
        serving.submit(request(f"q{i}", 5, ()))
    ended = serving.abort([f"q{i}" for i in range(200) if i % 3])
    assert len(ended) == 133 and all(len(o.token_ids) == 0 == o.num_prefill_tokens for _, (o,) in ended)
    assert [name for name, _ in run_until(serving, float("inf"))] == [f"q{i}" for i in range(0, 200, 3)]


def one_pause(position: int, seconds: float) -> Pauses:
    return lambda request_id, index, length: ((position, seconds),)


def test_a_tool_call_frees_the_slot_and_keeps_the_cache() -> None:
    serving = Serving(DecodeCost(0.01, per_prefill_token_s=0.001), 1, 100, constant_lengths(20), one_pause(10, 0.5))
    serving.submit(request("a", 10, ()))
    serving.submit(request("b", 10, ()))
    ended = outputs_of(run_until(serving, float("inf")))
    # a: 10 ms prefill, 10 tokens, tool to 0.61; b meanwhile: to 0.22, tool to 0.72; a again 0.61–0.71, b 0.72–0.82.
    assert serving.now == pytest.approx(0.82)
    assert [ended[n][0].num_prefill_tokens for n in ("a", "b")] == [10, 10]
    assert all(len(o[0].token_ids) == 20 for o in ended.values())


def test_a_cache_held_for_a_tool_goes_first_when_room_is_needed() -> None:
    serving = Serving(DecodeCost(0.01, per_prefill_token_s=0.001), 8, 40, constant_lengths(20), one_pause(10, 5.0))
    serving.submit(request("a", 10, ()))
    run_until(serving, 1.0)
    assert serving.cached_tokens == 20 and not serving.num_running
    serving.submit(request("b", 10, ()))
    run_until(serving, 2.0)
    assert serving.cached_tokens == 40, "both fit"
    serving.submit(request("c", 10, ()))
    ended = outputs_of(run_until(serving, float("inf")))
    assert serving.num_preemptions == 0
    # a (the longest at its tool) gave its cache up and prefilled 20 tokens again, as did b or c on the way.
    assert ended["a"][0].num_prefill_tokens == 10 + 20
    assert all(len(o[0].token_ids) == 20 for o in ended.values())


def test_an_abort_during_a_tool_call_does_not_call_the_tool_again() -> None:
    serving = Serving(DecodeCost(0.01), 8, None, constant_lengths(20), one_pause(10, 3.0), version=0)
    serving.submit(request("a", 10, ()))
    run_until(serving, 1.1)
    (_, (output,)) = serving.abort(["a"])[0]
    tokens = output.token_ids
    assert isinstance(tokens, SimTokens) and len(tokens) == 10 and tokens.ready_at == pytest.approx(3.1)
    elsewhere = Serving(DecodeCost(0.01), 8, None, constant_lengths(99), one_pause(10, 3.0), version=0)
    elsewhere.advance(2.0)
    elsewhere.submit(request("a", 10, tokens))
    ended = outputs_of(run_until(elsewhere, float("inf")))
    assert elsewhere.now == pytest.approx(3.1 + 0.1) and len(tokens + ended["a"][0].token_ids) == 20


@pytest.mark.parametrize("start", [0.0, 1e5, 1e8])
def test_late_in_a_run_a_full_cache_does_not_stop_the_clock(start: float) -> None:
    serving = new_serving(150, 32)
    serving.advance(start)
    for i in range(20):
        serving.submit(request(f"q{i}", 7, (), ()))
    assert len(run_until(serving, float("inf"))) == 20
    assert serving.num_preemptions > 0 and 0 < serving.now - start < 100


def test_responses_share_the_steps_they_were_in() -> None:
    """Two slots: the third response takes the first one's after 4 steps, 2 of its 8 beside the second."""
    lengths = {"a": 4, "b": 6, "c": 8}
    serving = Serving(DecodeCost(0.01), 2, None, lambda name, index: lengths[name], version=0)
    for name in lengths:
        serving.submit(request(name, 10, ()))
    ended = outputs_of(run_until(serving, float("inf")))
    shares = {name: outputs[0].decode_steps for name, outputs in ended.items()}
    assert shares == pytest.approx({"a": 4 / 2, "b": 6 / 2, "c": 2 / 2 + 6})
