"""Feeds prompts to the engines within the staleness budget and queues finished groups for the trainer.

One task submits; each group in flight is a task of its own (generate, score, queue). All waits are on events.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from swingshift.core.ledger import GroupLedger
from swingshift.core.metrics import IdleTimes, RolloutCycle, RolloutUtilization
from swingshift.core.staleness import BudgetNumbers, StalenessBudget
from swingshift.core.types import Prompt, Sample, SampleGroup, SamplingParams, WeightVersion
from swingshift.errors import DataError, ReplicaError, TooManyFailuresError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.ports import PromptSource, RewardFn
from swingshift.runtime.queue import SampleQueue
from swingshift.runtime.signals import Signal, WaitBoard

logger = logging.getLogger(__name__)


class Buffered(StrEnum):
    """Why a wait for groups ended."""

    ENOUGH = "enough"
    EXHAUSTED = "exhausted"
    """No more will come in this cycle: the data set has ended or the staleness budget is spent."""
    NO_REPLICA = "no_replica"
    """More could come, but no replica is there to generate it."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    num_responses: int
    sampling: SamplingParams
    max_sample_retries: int = 2
    max_failed_ratio: float = 0.1


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt that is in flight (or must be submitted again after a resume)."""

    group_id: int
    prompt: Prompt


class Rollouter:
    """Call ``start`` inside the session's task group; ``stop`` ends submission, ``cancel`` drops what is in flight.

    ``num_replicas()`` counts the replicas that generate, each once; ``has_replica()`` says whether one is routable.
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
        self.settings = settings
        self.queue = SampleQueue(numbers.max_required_samples)
        self.budget = StalenessBudget(numbers.max_required_samples)
        self.ledger = GroupLedger()
        self.changed = Signal(board)
        self.version: WeightVersion = 0
        self._prompts = prompts
        self._client = client
        self._reward = reward
        self._now = now
        self._num_replicas = num_replicas
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._pending: dict[int, PendingPrompt] = {}
        self._resubmit: deque[PendingPrompt] = deque()
        self._next_group_id = 0
        self._stopped = False
        self._utilization = RolloutUtilization()
        self._idle = IdleTimes(now())
        self._generated_before_cycle = 0

    # --- life -------------------------------------------------------------------------------------------------

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._idle = IdleTimes(self._now())
        self._running[-1] = tasks.create_task(self._feed(), name="rollouter")
        self.capacity_changed()

    def stop(self) -> None:
        """Submit nothing more; what is in flight goes on."""
        self._stopped = True
        self.changed.notify()

    async def cancel(self) -> None:
        """Drop what is in flight. Call only when its prompts are saved or no longer needed."""
        self.stop()
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def restore(
        self,
        *,
        queued: list[SampleGroup],
        resubmit: list[PendingPrompt],
        next_group_id: int,
        num_consumed: int,
        num_failed: int,
    ) -> None:
        """Before ``start``: what a checkpoint had queued and in flight, and the counts since training began."""
        self._next_group_id = next_group_id
        self.ledger.resume(num_consumed, num_failed)
        for group in queued:
            self.ledger.submit(group.group_id)
            self.ledger.queue(group.group_id)
            self.queue.put(group)
        self._resubmit.extend(resubmit)
        self.budget.reset(len(queued))
        self._generated_before_cycle = self.ledger.num_generated

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def num_remaining(self) -> int:
        """Prompts still to be submitted."""
        return len(self._resubmit) + self._prompts.remaining()

    @property
    def is_over(self) -> bool:
        """Nothing is left to submit, to generate or to consume."""
        return self.num_remaining == 0 and not self.ledger.live

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
        return sorted([*self._pending.values(), *self._resubmit], key=lambda p: p.group_id)

    @property
    def next_group_id(self) -> int:
        return self._next_group_id

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
        return groups

    def reset_staleness(self, version: WeightVersion) -> RolloutCycle:
        """A weight sync: outstanding groups are what counts from now on. Returns the cycle's figures."""
        now = self._now()
        self.version = version
        self.budget.reset(len(self.ledger.live))
        busy_s, capacity_s = self._utilization.close(now)
        window = self._idle.close(now)
        generated = self.ledger.num_generated - self._generated_before_cycle
        self._generated_before_cycle = self.ledger.num_generated
        self._changed()
        return RolloutCycle(
            busy_s=busy_s,
            capacity_s=capacity_s,
            active_time_s=window.active_time_s,
            version_time_s=window.version_time_s,
            step_generated_samples=generated,
            total_generated_samples=self.ledger.num_generated,
            staleness_samples=self.budget.staleness_samples,
            failed_samples=self.ledger.num_failed,
        )

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
            self._submit(self._next_prompt())

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

    def _submit(self, pending: PendingPrompt) -> None:
        assert self._tasks is not None, "submitted before start"
        self.budget.submit()
        self.ledger.submit(pending.group_id)
        self._pending[pending.group_id] = pending
        name = f"group {pending.group_id}"
        self._running[pending.group_id] = self._tasks.create_task(self._run_group(pending), name=name)
        self._changed()

    # --- one group --------------------------------------------------------------------------------------------

    async def _run_group(self, pending: PendingPrompt) -> None:
        submit_version, submit_time = self.version, self._now()
        try:
            samples = await self._generate(pending)
            group = SampleGroup(pending.group_id, pending.prompt, samples, submit_version, submit_time, self._now())
            group = group.with_rewards(await self._reward.score(group))
        except (ReplicaError, DataError) as error:
            self._fail(pending, error)
        else:
            self._end(pending)
            self.ledger.queue(pending.group_id)
            self.queue.put(group)
            self._changed()

    async def _generate(self, pending: PendingPrompt) -> tuple[Sample, ...]:
        retries = self.settings.max_sample_retries
        while True:
            try:
                return await self._client.generate(
                    str(pending.group_id), pending.prompt, self.settings.num_responses, self.settings.sampling
                )
            except ReplicaError as error:
                if retries == 0:
                    raise
                retries -= 1
                logger.warning("group %d failed and is tried again: %s", pending.group_id, error)

    def _end(self, pending: PendingPrompt) -> None:
        del self._running[pending.group_id]
        del self._pending[pending.group_id]

    def _fail(self, pending: PendingPrompt, error: Exception) -> None:
        self._end(pending)
        self.ledger.fail(pending.group_id)
        self.budget.refund()
        logger.warning("group %d (prompt %s) failed: %s", pending.group_id, pending.prompt.uid, error)
        self._changed()
        # The first cycle's worth of groups is the sample below which a rate means nothing.
        basis = max(self.ledger.num_submitted, self.numbers.step_required_samples)
        if self.ledger.num_failed > self.settings.max_failed_ratio * basis:
            raise TooManyFailuresError(
                f"{self.ledger.num_failed} of {self.ledger.num_submitted} groups failed, more than "
                f"async_training.max_failed_ratio={self.settings.max_failed_ratio:g} allows; the latest: {error}"
            ) from error

    def _changed(self) -> None:
        now = self._now()
        self._utilization.record(now, self.ledger.num_in_flight, self.max_concurrent_samples)
        if self.ledger.num_in_flight == 0 and self.budget.num_submittable == 0:
            self._idle.pause(now)
        else:
            self._idle.resume(now)
        self.changed.notify()
