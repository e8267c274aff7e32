"""Feeds prompts to the engines in whole batches and keeps their groups in the store of the replay buffer.

Unlike the fully-asynchronous rollouter it submits nothing by itself: the step loop says how many prompts a step
brings, the replay buffer replaces what it evicts. Concurrency alone bounds what runs at once; the rest is pending.
"""

from __future__ import annotations

from collections import deque

from swingshift.core.buffer import Evictions, GroupStore, StoreRules
from swingshift.core.metrics import RolloutCycle
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.group_feeder import FeederParts, GroupFeeder
from swingshift.runtime.group_runner import PendingPrompt


class StepRollouter(GroupFeeder):
    """A global step ``g`` trains version ``g − 1``: a prompt submitted at step ``g`` has that submit version."""

    def __init__(self, parts: FeederParts, rules: StoreRules) -> None:
        super().__init__(parts)
        self.store = GroupStore(rules)
        self._waiting: deque[PendingPrompt] = deque()

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
    def num_remaining(self) -> int:
        """Prompts still to be submitted."""
        return len(self._waiting) + self._prompts.remaining()

    @property
    def num_outstanding(self) -> int:
        """Groups submitted and not yet trained on, evicted or given up."""
        return len(self._waiting) + len(self.ledger.live)

    @property
    def staleness_samples(self) -> int:
        """What the fully-asynchronous rollouter counts against its budget."""
        return self.num_outstanding

    def pending(self) -> list[PendingPrompt]:
        """Prompts in flight or waiting, oldest first."""
        return sorted([*self._runner.in_flight(), *self._waiting], key=lambda p: p.group_id)

    def buffered(self) -> list[SampleGroup]:
        """Finished groups, oldest first."""
        return self.store.finished()

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

    # --- submission -------------------------------------------------------------------------------------------

    def _admit(self, pending: PendingPrompt) -> None:
        version = self.version if pending.submit_version is None else pending.submit_version
        self._waiting.append(pending)
        self.store.admit(pending.group_id, version + 1)

    def _may_submit(self) -> bool:
        return bool(self._waiting)

    def _why_nothing_may_be_submitted(self) -> str:
        return "prompts of the next step"

    def _next_prompt(self) -> PendingPrompt:
        pending = self._waiting.popleft()
        self.store.start(pending.group_id)
        return pending

    def _finished(self, group: SampleGroup) -> None:
        self.store.finish(group)
        self._changed()

    def _failed(self, pending: PendingPrompt) -> None:
        self.store.fail(pending.group_id)
        self._changed()
