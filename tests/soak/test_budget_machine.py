"""The rollouter against a simple model: budget, concurrency, queue and ledger after whatever happens in any order."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stepping_loop import SteppingLoop

from swingshift.core.staleness import BudgetNumbers
from swingshift.core.types import FinishReason, Prompt, Sample, SamplingParams
from swingshift.errors import ReplicaError
from swingshift.runtime.group_feeder import FeederParts
from swingshift.runtime.group_runner import RolloutSettings
from swingshift.runtime.rollouter import Buffered, Rollouter
from swingshift.runtime.signals import WaitBoard
from swingshift.sim.workload import SimPrompts, SimReward

SAMPLE = Sample((1,), (-1.0,), ((0, 1),), FinishReason.STOP)


class HeldClient:
    """Every group is under way until the machine says how it ends."""

    def __init__(self) -> None:
        self.under_way: dict[int, asyncio.Future[None]] = {}

    async def generate(self, request_id: str, prompt: Prompt, num: int, *more: Any) -> tuple[Sample, ...]:
        future = self.under_way[int(request_id)] = asyncio.get_running_loop().create_future()
        try:
            await future
        finally:
            del self.under_way[int(request_id)]
        return (SAMPLE,) * num


class RolloutMachine(RuleBasedStateMachine):
    @initialize(
        mini_batch=st.integers(1, 4),
        num_batches=st.integers(1, 2),
        num_collections=st.integers(1, 3),
        threshold=st.sampled_from([0.0, 0.3, 1.0]),
        per_replica=st.integers(1, 4),
        num_prompts=st.sampled_from([0, 3, 20, 60]),
        num_replicas=st.integers(1, 4),
    )
    def begin(
        self,
        mini_batch: int,
        num_batches: int,
        num_collections: int,
        threshold: float,
        per_replica: int,
        num_prompts: int,
        num_replicas: int,
    ) -> None:
        self.most = int(mini_batch * num_batches * (1 + threshold) * num_collections)
        self.per_replica = per_replica
        self.num_prompts = num_prompts
        self.num_replicas = num_replicas
        self.num_submitted = self.staleness = self.num_consumed = 0
        self.flying: list[int] = []
        self.queued: list[int] = []
        self.failed: list[int] = []
        self.is_stopped = False
        numbers = BudgetNumbers(mini_batch, num_batches, num_collections, threshold, per_replica)
        self.stepping = SteppingLoop()
        self.stepping.run(self._start(numbers))
        self._settle()

    async def _start(self, numbers: BudgetNumbers) -> None:
        self.client = HeldClient()
        parts = FeederParts(
            numbers=numbers,
            settings=RolloutSettings(1, SamplingParams(8), max_sample_retries=0, max_failed_ratio=1.0),
            prompts=SimPrompts(self.num_prompts),
            client=self.client,  # type: ignore[arg-type]
            reward=SimReward(),
            board=WaitBoard(),
            now=asyncio.get_running_loop().time,
            num_replicas=lambda: self.num_replicas,
        )
        self.rollouter = Rollouter(parts)
        self._over = asyncio.Event()
        self._host = asyncio.ensure_future(self._run())
        await asyncio.sleep(0)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.rollouter.start(tasks)
            await self._over.wait()
            await self.rollouter.cancel()

    def teardown(self) -> None:
        if not hasattr(self, "stepping"):
            return

        async def end() -> None:
            self._over.set()
            await self._host

        self.stepping.run(end())
        assert not self.client.under_way
        self.stepping.close()

    # --- what can happen --------------------------------------------------------------------------------------

    @rule(num=st.integers(0, 4))
    def replicas_come_and_go(self, num: int) -> None:
        self.num_replicas = num
        self.rollouter.capacity_changed()
        self._settle()

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Several at the same moment, in any order."""
        for group in data.draw(st.lists(st.sampled_from(self.flying), min_size=1, unique=True)):
            self.client.under_way[group].set_result(None)
            self.flying.remove(group)
            self.queued.append(group)
        self._settle()

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.flying))
        self.client.under_way[group].set_exception(ReplicaError("no"))
        self.flying.remove(group)
        self.failed.append(group)
        self.staleness -= 1
        self._settle()

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        num = data.draw(st.integers(1, len(self.queued)))
        assert [g.group_id for g in self.rollouter.take(num)] == self.queued[:num]
        del self.queued[:num]
        self.num_consumed += num
        self._settle()

    @rule()
    def sync(self) -> None:
        self.rollouter.reset_staleness(self.rollouter.version + 1)
        self.staleness = len(self.flying) + len(self.queued)
        self._settle()

    @precondition(lambda self: self.num_submitted > 10)
    @rule()
    def stop(self) -> None:
        self.rollouter.stop()
        self.is_stopped = True
        self._settle()

    def _settle(self) -> None:
        self.stepping.settle()
        most_flying = min(self.num_replicas * self.per_replica, self.most)
        while (
            not self.is_stopped
            and self.num_submitted < self.num_prompts
            and self.staleness < self.most
            and len(self.flying) < most_flying
        ):
            self.flying.append(self.num_submitted)
            self.num_submitted += 1
            self.staleness += 1

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def everything_is_where_the_model_has_it(self) -> None:
        if not hasattr(self, "rollouter"):
            return
        rollouter, ledger = self.rollouter, self.rollouter.ledger
        rollouter.check()
        assert sorted(self.client.under_way) == sorted(self.flying)
        assert [g.group_id for g in rollouter.buffered()] == self.queued
        assert [p.group_id for p in rollouter.pending()] == sorted(self.flying)
        assert rollouter.staleness_samples == self.staleness <= self.most
        assert (ledger.num_submitted, ledger.num_consumed) == (self.num_submitted, self.num_consumed)
        assert (ledger.num_failed, ledger.num_queued) == (len(self.failed), len(self.queued))
        assert rollouter.next_group_id == self.num_submitted
        assert rollouter.is_over is (self.num_submitted == self.num_prompts and not self.flying and not self.queued)

    @invariant()
    def a_wait_ends_exactly_when_it_must(self) -> None:
        if not hasattr(self, "rollouter"):
            return
        left = 0 if self.is_stopped else min(self.most - self.staleness, self.num_prompts - self.num_submitted)
        can_have = len(self.queued) + len(self.flying) + left
        assert self.rollouter.num_producible == can_have
        for wanted in (0, len(self.queued), len(self.queued) + 1, can_have, can_have + 1, 10_000):
            outcome = self.rollouter._buffered(wanted)
            if len(self.queued) >= wanted:
                assert outcome is Buffered.ENOUGH
            elif self.is_stopped:
                assert outcome is Buffered.STOPPED
            elif not self.flying and not left:
                assert outcome is Buffered.EXHAUSTED
            elif self.num_replicas == 0:
                assert outcome is Buffered.NO_REPLICA
            else:
                assert outcome is None, f"a wait for {wanted} groups ended with {outcome}"


TestRollout = RolloutMachine.TestCase
TestRollout.settings = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True)
