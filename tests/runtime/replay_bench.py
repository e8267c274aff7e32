"""A replay buffer and its rollouter over an engine that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from swingshift.core.buffer import Evictions, GroupPhase, OffPolicyStrategy, StoreRules
from swingshift.core.routing import RoutingTable
from swingshift.core.staleness import BudgetNumbers
from swingshift.core.types import (
    FinishReason,
    GenerationRequest,
    Prompt,
    ReplicaKind,
    Sample,
    SampleGroup,
    SamplingParams,
    TokenOutput,
)
from swingshift.errors import DataError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.group_feeder import FeederParts
from swingshift.runtime.group_runner import RolloutSettings
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.replay_buffer import ReplayBuffer
from swingshift.runtime.signals import WaitBoard
from swingshift.runtime.step_rollouter import StepRollouter
from swingshift.sim.loop import run_virtual
from swingshift.sim.workload import SimPrompts

WAIT = OffPolicyStrategy.WAIT
USEFUL, USELESS = (0.0, 1.0), (1.0, 1.0)


def group(group_id: int, rewards: tuple[float, ...] = USEFUL, submit_version: int = 0) -> SampleGroup:
    samples = tuple(Sample((1,), (-0.5,), ((submit_version, 1),), FinishReason.STOP, reward=r) for r in rewards)
    return SampleGroup(group_id, Prompt(str(group_id), (0,)), samples, submit_version)


@dataclass(eq=False)
class Engine:
    """Generates, and scores, what it is told to; what nobody tells it of takes for ever."""

    id: str = "engine"
    kind: ReplicaKind = ReplicaKind.STANDALONE
    devices: tuple[str, ...] = ("device",)
    started: list[int] = field(default_factory=list)
    running: dict[int, asyncio.Future[tuple[float, ...] | None]] = field(default_factory=dict)
    fails_at_once: bool = False

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        group_id = int(request.request_id)
        self.started.append(group_id)
        self.running[group_id] = asyncio.get_running_loop().create_future()
        if not self.fails_at_once:
            await self.running[group_id]
        output = TokenOutput((1,), (-0.5,), ((0, 1),), FinishReason.STOP)
        return (output,) * request.num_responses

    async def score(self, scored: SampleGroup) -> tuple[float, ...]:
        future = self.running.pop(scored.group_id)
        rewards = None if self.fails_at_once else future.result()
        if rewards is None:
            raise DataError(f"group {scored.group_id} is bad")
        return rewards

    def finish(self, *group_ids: int, rewards: tuple[float, ...] | None = USEFUL) -> None:
        for group_id in group_ids:
            self.running[group_id].set_result(rewards)

    def fail(self, *group_ids: int) -> None:
        self.finish(*group_ids, rewards=None)


@dataclass
class Bench:
    rollouter: StepRollouter
    buffer: ReplayBuffer
    engine: Engine
    prompts: SimPrompts
    replicas: list[int]
    """[how many serve]"""
    board: WaitBoard

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def submit(self, num_prompts: int, step: int = 1) -> int:
        return self.rollouter.submit(num_prompts, step)

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(seconds, event)

    async def phases(self) -> dict[int, GroupPhase | None]:
        """Once everything that can start has."""
        await asyncio.sleep(0.001)
        return {i: self.rollouter.store.phase(i) for i in range(self.rollouter.next_group_id)}


@asynccontextmanager
async def bench(
    rules: StoreRules | None = None,
    *,
    num_prompts: int = 100,
    replicas: int = 1,
    per_replica: int = 100,
    max_refills: int = 20,
    max_failed_ratio: float = 1.0,
    prepare: Callable[[StepRollouter], None] = lambda rollouter: None,
) -> AsyncIterator[Bench]:
    """Mini-batches of 4 and batches of 8 groups; as many in flight as wanted."""
    engine, prompts, board = Engine(), SimPrompts(num_prompts), WaitBoard()
    balancer = LoadBalancer(RoutingTable(), board, 1e6)
    balancer.add([engine])  # type: ignore[list-item]
    serving = [replicas]
    parts = FeederParts(
        numbers=BudgetNumbers(4, 1, 2, 100.0, per_replica),
        settings=RolloutSettings(2, SamplingParams(max_tokens=1), 0, max_failed_ratio),
        prompts=prompts,
        client=GenerationClient(balancer),
        reward=engine,
        board=board,
        now=asyncio.get_running_loop().time,
        num_replicas=lambda: serving[0],
    )
    rollouter = StepRollouter(parts, rules or StoreRules())
    prepare(rollouter)
    async with asyncio.TaskGroup() as tasks:
        rollouter.start(tasks)
        yield Bench(rollouter, ReplayBuffer(rollouter, max_refills), engine, prompts, serving, board)
        rollouter.check()
        await rollouter.cancel()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    run_virtual(main())


def ids(groups: list[SampleGroup]) -> list[int]:
    return [g.group_id for g in groups]


def reasons(evictions: Evictions) -> tuple[int, int, int, int, int]:
    e = evictions
    return (e.num_groups, e.num_stale, e.num_filtered, e.num_failed, e.num_refilled)


FILTER = StoreRules(filter_metric="reward")
