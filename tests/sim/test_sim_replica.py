"""The simulated engine against closed-form times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from swingshift.core.types import (
    FinishReason,
    GenerationRequest,
    ReplicaKind,
    SamplingParams,
    TokenOutput,
    Tokens,
)
from swingshift.errors import NotAcceptingError, ReplicaDiedError
from swingshift.sim.device import SimDevice
from swingshift.sim.loop import run_virtual
from swingshift.sim.replica import ReplicaCost, SimReplica
from swingshift.sim.tokens import SimTokens
from swingshift.sim.workload import constant_lengths, lognormal_lengths

T = TypeVar("T")
NO_OVERHEAD = ReplicaCost(step_base_s=0.01, abort_s=0.0, sleep_s=0.0, wake_s=0.0, kv_cache_s=0.0)
FIFTY = constant_lengths(50)


def now() -> float:
    return asyncio.get_running_loop().time()


def request(name: str, *prefixes: Tokens, budget: int = 100, prompt: int = 10) -> GenerationRequest:
    chosen = prefixes or ((),)
    budgets = tuple(budget - len(p) for p in chosen)
    return GenerationRequest(name, (0,) * prompt, chosen, budgets, SamplingParams(max_tokens=budget))


def on_replica(
    body: Callable[[SimReplica], Awaitable[T]],
    cost: ReplicaCost = NO_OVERHEAD,
    lengths: Callable[[str, int], int] = FIFTY,
) -> T:
    async def main() -> T:
        replica = SimReplica("r", ReplicaKind.STANDALONE, [SimDevice("d")], cost, lengths)
        replica.write_weights(0)
        await replica.resume_generation()
        return await body(replica)

    return run_virtual(main())


async def finish_times(replica: SimReplica, num_requests: int) -> list[float]:
    async def one(i: int) -> float:
        await replica.generate(request(f"q{i}"))
        return round(now(), 6)

    return await asyncio.gather(*(one(i) for i in range(num_requests)))


@pytest.mark.parametrize(
    ("tags", "seconds"), [(("weights",), 2.0), (("kv_cache",), 0.25), (("weights", "kv_cache"), 2.25)]
)
def test_waking_pays_for_what_it_wakes(tags: tuple[str, ...], seconds: float) -> None:
    async def main() -> float:
        cost = ReplicaCost(wake_s=2.0, kv_cache_s=0.25)
        replica = SimReplica("r", ReplicaKind.HYBRID, [SimDevice("d")], cost, FIFTY)
        await replica.wake_up(tags)
        return now()

    assert run_virtual(main()) == seconds


def test_one_response_takes_its_length_in_steps() -> None:
    assert on_replica(lambda r: finish_times(r, 1)) == [0.5]


def test_a_batch_takes_as_long_as_one_where_steps_cost_the_same() -> None:
    assert on_replica(lambda r: finish_times(r, 8)) == [0.5] * 8


def test_steps_grow_with_the_batch() -> None:
    cost = ReplicaCost(step_base_s=0.01, step_per_sequence_s=0.005)
    assert on_replica(lambda r: finish_times(r, 4), cost) == [50 * (0.01 + 4 * 0.005)] * 4


def test_more_responses_than_slots_come_in_waves() -> None:
    cost = ReplicaCost(step_base_s=0.01, max_num_seqs=4)
    assert on_replica(lambda r: finish_times(r, 10), cost) == [0.5] * 4 + [1.0] * 4 + [1.5] * 2


def test_prefill_holds_decoding_up() -> None:
    cost = ReplicaCost(step_base_s=0.01, prefill_per_token_s=0.02)
    assert on_replica(lambda r: finish_times(r, 2), cost) == [2 * 10 * 0.02 + 0.5] * 2


def test_the_prompt_of_a_group_is_prefilled_once() -> None:
    async def body(replica: SimReplica) -> tuple[list[int], float]:
        outputs = await replica.generate(request("q", (), (), ()))
        return [o.num_prefill_tokens for o in outputs], now()

    cost = ReplicaCost(step_base_s=0.01, prefill_per_token_s=0.02)
    assert on_replica(body, cost) == ([10, 0, 0], 10 * 0.02 + 0.5)


def test_a_late_joiner_slows_the_others_only_while_they_share() -> None:
    """Alone 20 steps of 0.02 s; then both at 0.03 s a step."""

    async def body(replica: SimReplica) -> list[float]:
        async def late() -> float:
            await asyncio.sleep(0.4)
            await replica.generate(request("b"))
            return now()

        async def early() -> float:
            await replica.generate(request("a"))
            return now()

        return [round(t, 6) for t in await asyncio.gather(early(), late())]

    cost = ReplicaCost(step_base_s=0.01, step_per_sequence_s=0.01)
    # a: 20 tokens alone, 30 shared (0.9 s) → 1.3; b: 30 shared, 20 alone (0.4 s) → 1.7.
    assert on_replica(body, cost) == [1.3, 1.7]


@pytest.mark.parametrize("start", [1e4, 1e7, 1e9])
def test_late_in_a_long_run_responses_still_finish(start: float) -> None:
    async def body(replica: SimReplica) -> float:
        await asyncio.sleep(start)
        for i in range(20):
            await replica.generate(request(f"q{i}"))
        return now() - start

    cost = ReplicaCost(step_base_s=0.001, prefill_per_token_s=1e-5)
    assert on_replica(body, cost) == pytest.approx(20 * (0.05 + 10e-5), rel=1e-3)


def test_a_request_with_several_responses_ends_with_its_longest() -> None:
    async def body(replica: SimReplica) -> tuple[float, list[tuple[int, FinishReason]]]:
        outputs = await replica.generate(request("q", (), (), budget=40))
        return round(now(), 6), [(len(o.token_ids), o.finish_reason) for o in outputs]

    lengths = [30, 80]
    result = on_replica(body, lengths=lambda _, index: lengths[index])
    assert result == (0.4, [(30, FinishReason.STOP), (40, FinishReason.LENGTH)])


def test_abort_returns_what_there_is_and_resuming_continues_it_exactly() -> None:
    async def body(replica: SimReplica) -> tuple[list[TokenOutput], float]:
        first = asyncio.create_task(replica.generate(request("q")))
        await asyncio.sleep(0.2)
        assert await replica.abort() == 1
        (begun,) = await first
        replica.write_weights(3)
        await replica.resume_kv_cache()
        await replica.resume_generation()
        (rest,) = await replica.generate(request("q", begun.token_ids))
        return [begun, rest], now()

    (begun, rest), ended = on_replica(body)
    assert begun.finish_reason is FinishReason.ABORT and begun.version_spans == ((0, 20),)
    assert rest.finish_reason is FinishReason.STOP and rest.version_spans == ((3, 30),)
    assert tuple(begun.token_ids + rest.token_ids) == tuple(range(50))
    assert rest.num_prefill_tokens == 10 + 20
    assert ended == pytest.approx(0.5)


@pytest.mark.parametrize("wrong", [(1, 2, 3), SimTokens(50, 1, 3)])
def test_a_resumed_response_with_wrong_tokens_is_noticed(wrong: Tokens) -> None:
    async def body(replica: SimReplica) -> None:
        await replica.generate(request("q", wrong))

    with pytest.raises(AssertionError, match=r"nobody simulated|lost its first tokens"):
        on_replica(body)


def test_tokens_join_only_in_order() -> None:
    tokens = SimTokens(50, 0, 20)
    nothing: Tokens = ()
    joined = nothing + tokens + SimTokens(50, 20, 23)
    assert joined == SimTokens(50, 0, 23) and list(joined[-2:]) == [21, 22] and joined[:0] == SimTokens(50, 0, 0)
    for other in (SimTokens(50, 21, 30), SimTokens(50, 19, 30)):
        with pytest.raises(AssertionError, match="lost or doubled"):
            tokens + other
    with pytest.raises(AssertionError, match="two responses"):
        tokens + SimTokens(51, 20, 30)
    with pytest.raises(AssertionError, match="first tokens"):
        nothing + SimTokens(50, 20, 30)


def test_paused_replicas_hold_requests_back() -> None:
    async def body(replica: SimReplica) -> float:
        await replica.abort()
        held = asyncio.create_task(replica.generate(request("q")))
        await asyncio.sleep(3)
        assert not held.done()
        await replica.resume_generation()
        await held
        return now()

    assert on_replica(body) == pytest.approx(3.5)


def test_aborting_some_requests_leaves_the_others_running() -> None:
    async def body(replica: SimReplica) -> list[FinishReason]:
        calls = [asyncio.create_task(replica.generate(request(f"q{i}"))) for i in range(3)]
        await asyncio.sleep(0.1)
        assert await replica.abort_requests(["q1", "unknown"]) == 1
        outputs = await asyncio.gather(*calls)
        return [o.finish_reason for (o,) in outputs]

    assert on_replica(body) == [FinishReason.STOP, FinishReason.ABORT, FinishReason.STOP]


def test_sleeping_replicas_refuse() -> None:
    async def body(replica: SimReplica) -> None:
        await replica.abort()
        held = asyncio.create_task(replica.generate(request("held")))
        await asyncio.sleep(0)
        await replica.sleep()
        with pytest.raises(NotAcceptingError):
            await held
        with pytest.raises(NotAcceptingError):
            await replica.generate(request("late"))
        assert not replica.is_awake

    on_replica(body)


def test_a_cancelled_caller_frees_its_slot() -> None:
    async def body(replica: SimReplica) -> float:
        first = asyncio.create_task(replica.generate(request("first")))
        second = asyncio.create_task(replica.generate(request("second")))
        await asyncio.sleep(0.1)
        first.cancel()
        await second
        assert replica.num_requests == 0
        return now()

    cost = ReplicaCost(step_base_s=0.01, max_num_seqs=1)
    assert on_replica(body, cost) == pytest.approx(0.6)


def test_dead_replicas_answer_nothing_and_hold_nothing() -> None:
    async def body(replica: SimReplica) -> None:
        running = asyncio.create_task(replica.generate(request("q")))
        sleeping = asyncio.create_task(replica.abort())
        asyncio.get_running_loop().call_later(0.1, replica.die)
        for call in (running, sleeping):
            with pytest.raises(ReplicaDiedError):
                await call
        with pytest.raises(ReplicaDiedError):
            await replica.resume_generation()
        with pytest.raises(ReplicaDiedError):
            replica.write_weights(1)
        assert not replica.is_awake

    on_replica(body, ReplicaCost(abort_s=0.2))


def test_drawn_lengths_depend_on_seed_request_and_index_only() -> None:
    draw, again, other = (lognormal_lengths(60, 1.0, 300, seed) for seed in (1, 1, 2))
    keys = [(str(i), j) for i in range(50) for j in range(2)]
    lengths = [draw(*key) for key in keys]
    assert lengths == [again(*key) for key in keys] != [other(*key) for key in keys]
    assert all(1 <= length <= 300 for length in lengths)
    assert lengths[:4] == [lognormal_lengths(60, 1.0, 300, 1)(*key) for key in keys[:4]]
