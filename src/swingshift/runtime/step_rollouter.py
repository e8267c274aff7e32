"""Feeds prompts to the engines in whole batches and keeps their groups in the store of the replay buffer.

Unlike the fully-asynchronous rollouter it submits nothing by itself: the step loop says how many prompts a step
brings, the replay buffer replaces what it evicts. Concurrency alone bounds what runs at once; the rest is pending.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from swingshift.core.buffer import Evictions, GroupStore, StoreRules
from swingshift.core.metrics import RolloutCycle
from swingshift.core.staleness import BudgetNumbers
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.group_runner import GroupRunner, PendingPrompt, RolloutMeter, RolloutSettings
from swingshift.runtime.ports import PromptSource, RewardFn
from swingshift.runtime.signals import Signal, WaitBoard


class StepRollouter:
    """A global step ``g`` trains version ``g − 1``: a prompt submitted at step ``g`` has that submit version."""

    def __init__(
        self,
        *,
        numbers: BudgetNumbers,
        settings: RolloutSettings,
        rules: StoreRules,
        prompts: PromptSource,
        client: GenerationClient,
        reward: RewardFn,
        board: WaitBoard,
        now: Callable[[], float],
        num_replicas: Callable[[], int],
    ) -> None:
        self.numbers = numbers
        self.store = GroupStore(rules)
        self.changed = Signal(board)
        self._prompts = prompts
        self._num_replicas = num_replicas
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
        self._waiting: deque[PendingPrompt] = deque()
        self._next_group_id = 0
        self._stopped = False
        self.on_levels: Callable[[], None] = lambda: None
        """Called when what is finished, in flight or outstanding has changed."""

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
        """Before ``start``: finished groups as they were; prompts that waited or were in flight, once more each."""
        self._next_group_id = next_group_id
        self.ledger.resume(num_consumed, num_failed, num_evicted)
        for group in queued:
            self.ledger.submit(group.group_id)
            self.ledger.queue(group.group_id)
            self.store.admit(group.group_id, group.submit_version + 1)
            self.store.finish(group)
        for pending in resubmit:
            self._admit(pending)

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
        return len(self._waiting) + self._prompts.remaining()

    @property
    def is_over(self) -> bool:
        """Nothing is left to submit, to generate or to train on."""
        return self.num_remaining == 0 and not self.ledger.live

    @property
    def num_outstanding(self) -> int:
        """Groups submitted and not yet trained on, evicted or given up."""
        return len(self._waiting) + len(self.ledger.live)

    @property
    def staleness_samples(self) -> int:
        """What the fully-asynchronous rollouter counts against its budget."""
        return self.num_outstanding

    @property
    def num_replicas(self) -> int:
        return self._num_replicas()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def max_concurrent_samples(self) -> int:
        return self.numbers.max_concurrent_samples(self._num_replicas())

    def pending(self) -> list[PendingPrompt]:
        """Prompts in flight or waiting, oldest first."""
        return sorted([*self._runner.in_flight(), *self._waiting], key=lambda p: p.group_id)

    def buffered(self) -> list[SampleGroup]:
        """Finished groups, oldest first."""
        return self.store.finished()

    @property
    def next_group_id(self) -> int:
        return self._next_group_id

    def counts(self) -> tuple[int, ...]:
        """As long as they are the same ``check`` need not be called again."""
        return (*self.ledger.counts(), len(self._waiting), len(self.store))

    def check(self) -> None:
        """Invariant 1 of the design: ledger and store agree."""
        self.ledger.check()
        self.store.check()
        assert self.ledger.num_queued == self.store.num_finished
        assert self.ledger.num_in_flight + len(self._waiting) == self.store.num_unfinished

    # --- what the step loop and the replay buffer ask ---------------------------------------------------------

    def submit(self, num_prompts: int, step: int) -> int:
        """New prompts, as many of them as the data still hold; returns how many."""
        count = 0
        while count < num_prompts and not self._stopped:
            prompt = self._prompts.next()
            if prompt is None:
                break
            self._admit(PendingPrompt(self._next_group_id, prompt, step - 1))
            self._next_group_id += 1
            count += 1
        self._changed()
        return count

    def evict(self, step: int) -> Evictions:
        """Drop what is of no use at ``step``. Whoever asks refills."""
        evictions = self.store.evict(step)
        for group_id in evictions.finished_ids:
            self.ledger.evict(group_id)
        if evictions.num_groups:
            self._changed()
        return evictions

    def take(self, num_groups: int, step: int) -> list[SampleGroup]:
        groups = self.store.take(num_groups, step)
        for group in groups:
            self.ledger.consume(group.group_id)
        self._changed()
        return groups

    def reset_staleness(self, version: WeightVersion) -> RolloutCycle:
        """A weight sync. Returns the step's figures."""
        self.version = version
        cycle = self._meter.close(staleness_samples=self.num_outstanding)
        self._changed()
        return cycle

    def validated(self) -> None:
        """A validation ended: the engines worked for it, not for the step that begins."""
        self._meter.discard()

    def capacity_changed(self) -> None:
        """Replicas came or went."""
        self._changed()

    # --- submission -------------------------------------------------------------------------------------------

    def _admit(self, pending: PendingPrompt) -> None:
        version = self.version if pending.submit_version is None else pending.submit_version
        self._waiting.append(pending)
        self.store.admit(pending.group_id, version + 1)

    async def _feed(self) -> None:
        while True:
            await self.changed.until(
                lambda: self._stopped or self._can_run(), who="rollouter", what=self._why_not_running
            )
            if self._stopped:
                return
            pending = self._waiting.popleft()
            self.store.start(pending.group_id)
            self._runner.submit(pending)
            self._changed()

    def _can_run(self) -> bool:
        return bool(self._waiting) and self.ledger.num_in_flight < self.max_concurrent_samples

    def _why_not_running(self) -> str:
        if not self._waiting:
            return "prompts of the next step"
        return f"concurrency ({self.ledger.num_in_flight} in flight, {self.max_concurrent_samples} allowed)"

    def _finished(self, group: SampleGroup) -> None:
        self.store.finish(group)
        self._changed()

    def _failed(self, pending: PendingPrompt) -> None:
        self.store.fail(pending.group_id)
        self._changed()

    def _changed(self) -> None:
        is_paused = self.ledger.num_in_flight == 0 and not self._waiting
        self._meter.record(capacity=self.max_concurrent_samples, is_paused=is_paused)
        self.changed.notify()
        self.on_levels()
