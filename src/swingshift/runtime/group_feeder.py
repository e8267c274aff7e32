"""What both rollouters share: one task that submits prompts to a runner, the replicas they run on, start and end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from swingshift.core.staleness import BudgetNumbers
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.group_runner import GroupRunner, PendingPrompt, RolloutMeter, RolloutSettings
from swingshift.runtime.ports import PromptSource, RewardFn
from swingshift.runtime.signals import Signal, WaitBoard


@dataclass(frozen=True, slots=True)
class FeederParts:
    """What a rollouter works with. ``num_replicas()`` counts the replicas that generate, each once."""

    numbers: BudgetNumbers
    settings: RolloutSettings
    prompts: PromptSource
    client: GenerationClient
    reward: RewardFn
    board: WaitBoard
    now: Callable[[], float]
    num_replicas: Callable[[], int]


class GroupFeeder(ABC):
    """Call ``start`` inside the session's task group; ``stop`` ends submission, ``cancel`` drops what is in flight.

    Subclasses say what may be submitted, and keep what comes back.
    """

    def __init__(self, parts: FeederParts) -> None:
        self.numbers = parts.numbers
        self.changed = Signal(parts.board)
        self._prompts = parts.prompts
        self._num_replicas = parts.num_replicas
        # The first cycle's worth of groups is the sample below which a rate of failures means nothing.
        self._runner = GroupRunner(
            settings=parts.settings,
            client=parts.client,
            reward=parts.reward,
            now=parts.now,
            failure_basis=parts.numbers.step_required_samples,
            on_finished=self._finished,
            on_failed=self._failed,
        )
        self.ledger = self._runner.ledger
        self._meter = RolloutMeter(parts.now, self.ledger)
        self._feeding: asyncio.Task[None] | None = None
        self._next_group_id = 0
        self._stopped = False
        self.on_levels: Callable[[], None] = lambda: None
        """Called when what is finished, in flight or left to submit has changed."""

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

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> WeightVersion:
        """The trainer's, as of the last weight sync."""
        return self._runner.version

    @version.setter
    def version(self, version: WeightVersion) -> None:
        self._runner.version = version

    @property
    def num_replicas(self) -> int:
        return self._num_replicas()

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    @property
    def max_concurrent_samples(self) -> int:
        return self.numbers.max_concurrent_samples(self._num_replicas())

    @property
    def next_group_id(self) -> int:
        return self._next_group_id

    @property
    @abstractmethod
    def num_remaining(self) -> int:
        """Prompts still to be submitted."""

    @property
    def is_over(self) -> bool:
        """Nothing is left to submit, to generate or to train on."""
        return self.num_remaining == 0 and not self.ledger.live

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
            self._runner.submit(self._next_prompt())
            self._changed()

    def _can_submit(self) -> bool:
        return self._may_submit() and self.ledger.num_in_flight < self.max_concurrent_samples

    def _why_not_submitting(self) -> str:
        if not self._may_submit():
            return self._why_nothing_may_be_submitted()
        return f"concurrency ({self.ledger.num_in_flight} in flight, {self.max_concurrent_samples} allowed)"

    @abstractmethod
    def _may_submit(self) -> bool:
        """Is there a prompt to submit, concurrency aside?"""

    @abstractmethod
    def _why_nothing_may_be_submitted(self) -> str: ...

    @abstractmethod
    def _next_prompt(self) -> PendingPrompt:
        """The one that is submitted now."""

    @abstractmethod
    def _finished(self, group: SampleGroup) -> None: ...

    @abstractmethod
    def _failed(self, pending: PendingPrompt) -> None: ...

    def _changed(self) -> None:
        is_paused = self.ledger.num_in_flight == 0 and not self._may_submit()
        self._meter.record(capacity=self.max_concurrent_samples, is_paused=is_paused)
        self.changed.notify()
        self.on_levels()
