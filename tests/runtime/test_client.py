"""The generation client: resuming, starting over, refusals and deaths, with replicas that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from swingshift.core.routing import RoutingTable
from swingshift.core.types import (
    FinishReason,
    GenerationRequest,
    Prompt,
    ReplicaKind,
    Sample,
    SamplingParams,
    TokenOutput,
)
from swingshift.errors import NoReplicaError, NotAcceptingError, ReplicaDiedError, ReplicaError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.signals import WaitBoard
from swingshift.sim.loop import run_virtual

PROMPT = Prompt("p", (7, 8, 9))
Answer = tuple[TokenOutput, ...] | Exception | None


@dataclass(eq=False)
class Scripted:
    """Gives the prepared answers one after the other; None: never answers. Only ``generate`` is of interest."""

    id: str
    answers: list[Answer]
    requests: list[GenerationRequest] = field(default_factory=list)
    before: Callable[[], None] = lambda: None
    kind: ReplicaKind = ReplicaKind.STANDALONE
    devices: tuple[str, ...] = ("d",)

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        self.requests.append(request)
        await asyncio.sleep(1)
        answer = self.answers.pop(0)
        self.before()
        if answer is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        if isinstance(answer, Exception):
            raise answer
        return answer


def out(*tokens: int, reason: FinishReason = FinishReason.STOP, version: int = 0, prefill: int = 3) -> TokenOutput:
    spans = ((version, len(tokens)),) if tokens else ()
    return TokenOutput(tokens, tuple(-float(t) for t in tokens), spans, reason, 1, prefill)


ABORT = FinishReason.ABORT


def generate(
    *replicas: Scripted,
    num_responses: int = 1,
    max_tokens: int = 10,
    partial_rollout: bool = True,
    stop: tuple[int, ...] = (),
    prepare: Callable[[LoadBalancer, GenerationClient], None] = lambda balancer, client: None,
    wait_timeout_s: float = 50.0,
) -> tuple[tuple[Sample, ...], float]:
    """The samples, and when they were there."""

    async def main() -> tuple[tuple[Sample, ...], float]:
        balancer = LoadBalancer(RoutingTable(), WaitBoard(), wait_timeout_s)
        client = GenerationClient(balancer, partial_rollout)
        balancer.on_retired = client.give_up
        balancer.add(replicas)  # type: ignore[arg-type]
        prepare(balancer, client)
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stop)
        samples = await client.generate("q", PROMPT, num_responses, sampling)
        assert balancer.table.total_inflight == 0
        assert sampling == SamplingParams(max_tokens=max_tokens, stop_token_ids=stop), "never mutated"
        return samples, asyncio.get_running_loop().time()

    return run_virtual(main())


def test_an_aborted_response_continues_with_what_it_has_and_what_is_left() -> None:
    replica = Scripted("a", [(out(1, 2, 3, reason=ABORT),), (out(4, 5, version=2, prefill=6),)])
    (sample,), ended = generate(replica)
    assert [r.prefixes for r in replica.requests] == [((),), ((1, 2, 3),)]
    assert [r.budgets for r in replica.requests] == [(10,), (7,)]
    assert sample.token_ids == (1, 2, 3, 4, 5) and sample.log_probs == (-1.0, -2.0, -3.0, -4.0, -5.0)
    assert sample.version_spans == ((0, 3), (2, 2)) and (sample.min_version, sample.max_version) == (0, 2)
    assert (sample.num_aborts, sample.num_preemptions, sample.num_reprefilled_tokens) == (1, 2, 6)
    assert ended == 2.0, "asked again at once"


def test_only_unfinished_responses_of_a_group_go_on_and_their_order_stays() -> None:
    replica = Scripted(
        "a",
        [
            (out(1, reason=ABORT), out(2, 2), out(3, reason=ABORT)),
            (out(1, 1), out(3, reason=ABORT)),
            (out(3),),
        ],
    )
    samples, _ = generate(replica, num_responses=3)
    assert [r.prefixes for r in replica.requests] == [((), (), ()), ((1,), (3,)), ((3, 3),)]
    assert [s.token_ids for s in samples] == [(1, 1, 1), (2, 2), (3, 3, 3)]
    assert [s.num_aborts for s in samples] == [1, 0, 2]


def test_without_partial_rollout_an_aborted_response_starts_over() -> None:
    replica = Scripted("a", [(out(1, 2, reason=ABORT), out(9)), (out(5, version=1),)])
    samples, _ = generate(replica, num_responses=2, partial_rollout=False)
    assert [r.prefixes for r in replica.requests] == [((), ()), ((),)]
    assert [r.budgets for r in replica.requests] == [(10, 10), (10,)]
    assert [s.token_ids for s in samples] == [(5,), (9,)]
    assert samples[0].version_spans == ((1, 1),) and samples[0].num_aborts == 1


def test_an_abort_before_the_first_token_counts_as_nothing() -> None:
    replica = Scripted("a", [(out(reason=ABORT, prefill=3),), (out(4),)])
    (sample,), _ = generate(replica)
    assert sample.token_ids == (4,)
    assert (sample.num_aborts, sample.num_reprefilled_tokens) == (0, 0)


@pytest.mark.parametrize("partial_rollout", [True, False])
@pytest.mark.parametrize(
    ("tokens", "reported", "reason"),
    [
        ((1, 2, 3), FinishReason.LENGTH, FinishReason.LENGTH),
        ((1, 2, 3), ABORT, FinishReason.LENGTH),  # the budget was full when it was aborted: nothing is left
        ((1, 2, 0), FinishReason.LENGTH, FinishReason.STOP),  # a stop token exactly at the budget
        ((1, 0), ABORT, FinishReason.STOP),
        ((1, 2), FinishReason.STOP, FinishReason.STOP),
    ],
)
def test_finish_reasons_at_the_edge(
    tokens: tuple[int, ...], reported: FinishReason, reason: FinishReason, partial_rollout: bool
) -> None:
    replica = Scripted("a", [(out(*tokens, reason=reported),)])
    (sample,), _ = generate(replica, max_tokens=3, stop=(0,), partial_rollout=partial_rollout)
    assert sample.finish_reason is reason and sample.token_ids == tokens


def test_the_budget_over_all_resumes_is_the_callers() -> None:
    replica = Scripted("a", [(out(1, reason=ABORT),)] * 4 + [(out(1, reason=FinishReason.LENGTH),)])
    (sample,), _ = generate(replica, max_tokens=5)
    assert [r.budgets[0] for r in replica.requests] == [5, 4, 3, 2, 1]
    assert sample.token_ids == (1,) * 5 and sample.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("answers", "complaint"),
    [
        ([(out(*range(1, 12)),)], "budget was exceeded"),
        ([(out(1, version=3, reason=ABORT),), (out(2, version=2),)], "versions decreased"),
        ([(out(1), out(2))], "one output per response"),
    ],
)
def test_replicas_that_break_the_rules_are_noticed(answers: list[Answer], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        generate(Scripted("a", answers))


def test_a_refusal_after_routing_was_cut_sends_the_request_elsewhere() -> None:
    a, b = Scripted("a", [NotAcceptingError("asleep")]), Scripted("b", [(out(1),)])

    def prepare(balancer: LoadBalancer, client: GenerationClient) -> None:
        a.before = lambda: balancer.remove((a,))  # type: ignore[arg-type]

    (sample,), _ = generate(a, b, prepare=prepare)
    assert sample.token_ids == (1,) and len(b.requests) == 1


def test_a_refusal_of_a_routable_replica_is_an_error_not_a_busy_loop() -> None:
    with pytest.raises(NotAcceptingError):
        generate(Scripted("a", [NotAcceptingError("asleep")]))


def test_a_death_is_told_and_the_tokens_so_far_move_on() -> None:
    a = Scripted("a", [(out(1, 2, reason=ABORT),), ReplicaDiedError("killed")])
    b = Scripted("b", [(out(3),)])
    told: list[str] = []

    def prepare(balancer: LoadBalancer, client: GenerationClient) -> None:
        client.on_death = lambda replica, error: told.append(f"{replica.id}: {error}")

    (sample,), _ = generate(a, b, prepare=prepare)
    assert told == ["a: killed"] and b.requests[0].prefixes == ((1, 2),)
    assert sample.token_ids == (1, 2, 3)


def test_nobody_waits_for_a_replica_that_was_taken_out() -> None:
    a, b = Scripted("a", [None]), Scripted("b", [(out(3),)])

    def prepare(balancer: LoadBalancer, client: GenerationClient) -> None:
        asyncio.get_running_loop().call_at(5.0, balancer.retire, a)

    (sample,), ended = generate(a, b, prepare=prepare)
    assert sample.token_ids == (3,) and ended == 6.0


def test_a_request_that_failed_is_not_bound_to_the_replica_that_failed_it() -> None:
    a, b = Scripted("a", [ReplicaError("hiccup")]), Scripted("b", [(out(3),)])

    async def main() -> None:
        balancer = LoadBalancer(RoutingTable(), WaitBoard(), 50.0)
        client = GenerationClient(balancer)
        balancer.add((a, b))  # type: ignore[arg-type]
        with pytest.raises(ReplicaError, match="hiccup"):
            await client.generate("q", PROMPT, 1, SamplingParams(max_tokens=4))
        assert len(await client.generate("q", PROMPT, 1, SamplingParams(max_tokens=4))) == 1

    run_virtual(main())
    assert len(b.requests) == 1


def test_waiting_for_a_replica_is_bounded_and_woken_by_an_event() -> None:
    late = Scripted("late", [(out(1),)])

    def prepare(balancer: LoadBalancer, client: GenerationClient) -> None:
        asyncio.get_running_loop().call_at(20.0, balancer.add, [late])

    _, ended = generate(prepare=prepare)
    assert ended == 21.0
    with pytest.raises(NoReplicaError, match=r"request q waited 50 s .*replica_wait_timeout_s"):
        generate()


def test_suspended_replicas_get_nothing_until_restored_together() -> None:
    async def main() -> list[tuple[str, float]]:
        replicas = [Scripted(name, [(out(1),)] * 4) for name in "ab"]
        balancer = LoadBalancer(RoutingTable(), WaitBoard(), 50.0)
        members = 0
        changes: list[int] = []
        balancer.on_members = lambda: changes.append(balancer.num_members)
        balancer.add(replicas)  # type: ignore[arg-type]
        balancer.suspend(replicas)  # type: ignore[arg-type]
        members = balancer.num_members
        assert members == 2 and balancer.routable() == []
        asyncio.get_running_loop().call_at(3.0, balancer.restore, replicas)
        got: list[tuple[str, float]] = []

        async def ask(name: str) -> None:
            _, replica = await balancer.acquire(name)
            got.append((replica.id, asyncio.get_running_loop().time()))

        await asyncio.gather(*(ask(f"q{i}") for i in range(4)))
        assert changes == [2], "suspension changes no membership"
        return got

    assert sorted(run_virtual(main())) == [("a", 3.0), ("a", 3.0), ("b", 3.0), ("b", 3.0)]


def test_loads_are_told_and_a_late_release_tells_nothing() -> None:
    async def main() -> Sequence[int]:
        replica = Scripted("a", [])
        balancer = LoadBalancer(RoutingTable(), WaitBoard(), 50.0)
        loads: list[int] = []
        balancer.on_load = lambda replica, load: loads.append(load)
        balancer.add((replica,))  # type: ignore[arg-type]
        first, _ = await balancer.acquire("q1")
        second, _ = await balancer.acquire("q2")
        balancer.release(first)
        balancer.remove((replica,))  # type: ignore[arg-type]
        balancer.add((replica,))  # type: ignore[arg-type]
        await balancer.acquire("q3")
        balancer.release(second)
        return loads

    assert run_virtual(main()) == [1, 2, 1, 0, 1]
