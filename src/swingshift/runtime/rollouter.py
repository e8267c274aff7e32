"""Feeds prompts to the engines within the staleness budget and queues finished groups for the trainer.

One task submits; each group in flight is a task of its own (generate, score, queue). All waits are on events.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from swingshift.core.metrics import RolloutCycle
from swingshift.core.staleness import StalenessBudget
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.group_feeder import FeederParts, GroupFeeder
from swingshift.runtime.group_runner import PendingPrompt
from swingshift.runtime.queue import SampleQueue


class Buffered(StrEnum):
    """Why a wait for groups ended."""

    ENOUGH = "enough"
    EXHAUSTED = "exhausted"
    """No more will come in this cycle: the data set has ended or the staleness budget is spent."""
    NO_REPLICA = "no_replica"
    """More could come, but no replica is there to generate it."""
    STOPPED = "stopped"


class Rollouter(GroupFeeder):
    """Submits whenever the budget allows it, and queues what is finished."""

    def __init__(self, parts: FeederParts) -> None:
        super().__init__(parts)
        self.queue = SampleQueue(self.numbers.max_required_samples)
        self.budget = StalenessBudget(self.numbers.max_required_samples)
        self._resubmit: deque[PendingPrompt] = deque()

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
    def num_remaining(self) -> int:
        """Prompts still to be submitted."""
        return len(self._resubmit) + self._prompts.remaining()

    @property
    def staleness_samples(self) -> int:
        """Counted against the budget since the last weight sync."""
        return self.budget.staleness_samples

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

    # --- submission -------------------------------------------------------------------------------------------

    def _may_submit(self) -> bool:
        return self.budget.num_submittable > 0 and self.num_remaining > 0

    def _why_nothing_may_be_submitted(self) -> str:
        if self.num_remaining == 0:
            return "the end of the run (every prompt is submitted)"
        return f"staleness budget ({self.budget.staleness_samples} of {self.budget.max_required_samples} used)"

    def _next_prompt(self) -> PendingPrompt:
        self.budget.submit()
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
