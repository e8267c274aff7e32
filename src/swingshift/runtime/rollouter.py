"""Feeds prompts to the engines within the staleness budget and queues finished groups for the trainer.

One task submits; each group in flight is a task of its own (generate, score, queue). All waits are on events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum

from swingshift.core.metrics import RolloutCycle
from swingshift.core.staleness import BudgetNumbers, StalenessBudget
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.group_runner import GroupRunner, PendingPrompt, RolloutMeter, RolloutSettings
from swingshift.runtime.ports import PromptSource, RewardFn
from swingshift.runtime.queue import SampleQueue
from swingshift.runtime.signals import Signal, WaitBoard


class Buffered(StrEnum):
    """Why a wait for groups ended."""

    ENOUGH = "enough"
    EXHAUSTED = "exhausted"
    """No more will come in this cycle: the data set has ended or the staleness budget is spent."""
    NO_REPLICA = "no_replica"
    """More could come, but no replica is there to generate it."""
    STOPPED = "stopped"


class Rollouter:
    """Call ``start`` inside the session's task group; ``stop`` ends submission, ``cancel`` drops what is in flight.

    ``num_replicas()`` counts the replicas that generate, each once.
    """

    def __init__(
        self,
        *,
        numbers: BudgetNumbers,
        settings: RolloutSettings,
        prompts: PromptSource,
        client: GenerationClient,
        reward: RewardFn,
        board: WaitBoard,
        now: Callable[[], float],
        num_replicas: Callable[[], int],
    ) -> None:
        self.numbers = numbers
        self.queue = SampleQueue(numbers.max_required_samples)
        self.budget = StalenessBudget(numbers.max_required_samples)
        self.changed = Signal(board)
        self._prompts = prompts
        self._num_replicas = num_replicas
        # The first cycle's worth of groups is the sample below which a rate of failures means nothing.
        self._runner = GroupRunner(
            settings=settings,
            client=client,
            reward=reward,
            now=now,
            failure_basis=numbers.step_required_samples,
            on_finished=self._finished,
            on_failed=self._failed,
        )
        self.ledger = self._runner.ledger
        self._meter = RolloutMeter(now, self.ledger)
        self._feeding: asyncio.Task[None] | None = None
        self._resubmit: deque[PendingPrompt] = deque()
        self._next_group_id = 0
        self._stopped = False
        self.on_levels: Callable[[], None] = lambda: None
        """Called when what is queued, in flight or left of the budget has changed."""

    # --- life -------------------------------------------------------------------------------------------------

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._runner.start(tasks)
        self._meter.start()
        self._feeding = tasks.create_task(self._feed(), name="rollouter")
        self.capacity_changed()

    def stop(self) -> None:
        """Submit nothing more; what is in flight goes on."""
        self._stopped = True
        self.changed.notify()

    async def cancel(self) -> None:
        """Drop what is in flight. Call only when its prompts are saved or no longer needed."""
        self.stop()
        if self._feeding is not None:
            self._feeding.cancel()
            await asyncio.wait([self._feeding])
        await self._runner.cancel()

    def restore(
        self,
        *,
        queued: list[SampleGroup],
        resubmit: list[PendingPrompt],
        next_group_id: int,
        num_consumed: int,
        num_failed: int,
        num_evicted: int = 0,
    ) -> None:
        """Before ``start``: what a checkpoint had queued and in flight, and the counts since training began."""
        self._next_group_id = next_group_id
        self.ledger.resume(num_consumed, num_failed, num_evicted)
        for group in queued:
            self.ledger.submit(group.group_id)
            self.ledger.queue(group.group_id)
            self.queue.put(group)
        self._resubmit.extend(resubmit)
        self.budget.reset(len(queued))

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> WeightVersion:
        """The trainer's, as of the last weight sync."""
        return self._runner.version

    @version.setter
    def version(self, version: WeightVersion) -> None:
        self._runner.version = version

    @property
    def num_remaining(self) -> int:
        """Prompts still to be submitted."""
        return len(self._resubmit) + self._prompts.remaining()

    @property
    def is_over(self) -> bool:
        """Nothing is left to submit, to generate or to consume."""
        return self.num_remaining == 0 and not self.ledger.live

    @property
    def staleness_samples(self) -> int:
        """Counted against the budget since the last weight sync."""
        return self.budget.staleness_samples

    @property
    def max_concurrent_samples(self) -> int:
        return self.numbers.max_concurrent_samples(self._num_replicas())

    @property
    def num_producible(self) -> int:
        """Groups that can be in the queue before the next weight sync, at most."""
        to_come = 0 if self._stopped else min(self.budget.num_submittable, self.num_remaining)
        return len(self.queue) + self.ledger.num_in_flight + to_come

    def pending(self) -> list[PendingPrompt]:
        """Prompts in flight or waiting to be submitted again, oldest first."""
        return sorted([*self._runner.in_flight(), *self._resubmit], key=lambda p: p.group_id)

    def buffered(self) -> list[SampleGroup]:
        """Finished groups that nobody has consumed, oldest first."""
        return list(self.queue.peek_all())

    @property
    def next_group_id(self) -> int:
        return self._next_group_id

    def counts(self) -> tuple[int, ...]:
        """As long as they are the same ``check`` need not be called again."""
        return (*self.ledger.counts(), len(self.queue), self.budget.staleness_samples)

    def check(self) -> None:
        """Invariant 1 of the design, and the budget."""
        ledger, budget = self.ledger, self.budget
        ledger.check()
        assert ledger.num_queued == len(self.queue)
        assert len(self.queue) <= self.queue.capacity
        assert budget.staleness_samples >= len(ledger.live), "an outstanding group is not budgeted"
        assert budget.staleness_samples <= budget.max_required_samples

    # --- what the train loop asks -----------------------------------------------------------------------------

    async def wait_buffered(self, num_groups: int, *, who: str) -> Buffered:
        """Wait until ``num_groups`` are queued, or as many as can still come, or nobody can generate them."""
        outcome: Buffered | None = None

        def settled() -> bool:
            nonlocal outcome
            outcome = self._buffered(num_groups)
            return outcome is not None

        await self.changed.until(
            settled,
            who=who,
            what=lambda: f"{num_groups} groups in the queue (has {len(self.queue)}, can have {self.num_producible})",
        )
        assert outcome is not None
        return outcome

    def _buffered(self, num_groups: int) -> Buffered | None:
        if len(self.queue) >= num_groups:
            return Buffered.ENOUGH
        if self._stopped:
            return Buffered.STOPPED
        if len(self.queue) >= self.num_producible:
            return Buffered.EXHAUSTED
        if self._num_replicas() == 0:
            return Buffered.NO_REPLICA
        return None

    def take(self, num_groups: int) -> list[SampleGroup]:
        groups = self.queue.take(num_groups)
        for group in groups:
            self.ledger.consume(group.group_id)
        self.changed.notify()
        self.on_levels()
        return groups

    def reset_staleness(self, version: WeightVersion) -> RolloutCycle:
        """A weight sync: outstanding groups are what counts from now on. Returns the cycle's figures."""
        self.version = version
        self.budget.reset(len(self.ledger.live))
        cycle = self._meter.close(staleness_samples=self.budget.staleness_samples)
        self._changed()
        return cycle

    def capacity_changed(self) -> None:
        """Replicas came or went."""
        self._changed()

    # --- submission -------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        while True:
            await self.changed.until(
                lambda: self._stopped or self._can_submit(), who="rollouter", what=self._why_not_submitting
            )
            if self._stopped:
                return
            self.budget.submit()
            self._runner.submit(self._next_prompt())
            self._changed()

    def _can_submit(self) -> bool:
        return (
            self.num_remaining > 0
            and self.budget.num_submittable > 0
            and self.ledger.num_in_flight < self.max_concurrent_samples
        )

    def _why_not_submitting(self) -> str:
        if self.num_remaining == 0:
            return "the end of the run (every prompt is submitted)"
        if self.budget.num_submittable == 0:
            return f"staleness budget ({self.budget.staleness_samples} of {self.budget.max_required_samples} used)"
        return f"concurrency ({self.ledger.num_in_flight} in flight, {self.max_concurrent_samples} allowed)"

    def _next_prompt(self) -> PendingPrompt:
        if self._resubmit:
            return self._resubmit.popleft()
        prompt = self._prompts.next()
        assert prompt is not None, "the prompt source ended before remaining() said so"
        self._next_group_id += 1
        return PendingPrompt(self._next_group_id - 1, prompt)

    def _finished(self, group: SampleGroup) -> None:
        self.queue.put(group)
        self._changed()

    def _failed(self, pending: PendingPrompt) -> None:
        self.budget.refund()
        self._changed()

    def _changed(self) -> None:
        may_submit = self.budget.num_submittable > 0 and self.num_remaining > 0
        is_paused = self.ledger.num_in_flight == 0 and not may_submit
        self._meter.record(capacity=self.max_concurrent_samples, is_paused=is_paused)
        self.changed.notify()
        self.on_levels()
