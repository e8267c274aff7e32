"""Generates and scores sample groups, each in a task of its own, and keeps count of them.

What is submitted, when, and what becomes of a finished group is the caller's business: the rollouter's in
fully-asynchronous mode, the replay buffer's where training goes in global steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from swingshift.core.ledger import GroupLedger
from swingshift.core.metrics import IdleTimes, RolloutCycle, RolloutUtilization
from swingshift.core.types import Prompt, Sample, SampleGroup, SamplingParams, WeightVersion
from swingshift.errors import DataError, ReplicaError, TooManyFailuresError
from swingshift.runtime.client import GenerationClient, PartialResponse
from swingshift.runtime.ports import RewardFn

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    num_responses: int
    sampling: SamplingParams
    max_sample_retries: int = 2
    max_failed_ratio: float = 0.1


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt that waits or is in flight.

    ``submit_version``: when it was first submitted, if that matters. ``responses``: what an earlier session had
    generated of it.
    """

    group_id: int
    prompt: Prompt
    submit_version: WeightVersion | None = None
    responses: tuple[PartialResponse, ...] = ()


class GroupRunner:
    """``on_finished`` receives each scored group, ``on_failed`` each prompt that was given up.

    ``failure_basis``: groups below which a share of failed ones means nothing.
    """

    def __init__(
        self,
        *,
        settings: RolloutSettings,
        client: GenerationClient,
        reward: RewardFn,
        now: Callable[[], float],
        failure_basis: int,
        on_finished: Callable[[SampleGroup], None],
        on_failed: Callable[[PendingPrompt], None],
    ) -> None:
        self.settings = settings
        self.ledger = GroupLedger()
        self.version: WeightVersion = 0
        """Of the trainer, as of the last weight sync."""
        self._client = client
        self._reward = reward
        self._now = now
        self._failure_basis = failure_basis
        self._on_finished = on_finished
        self._on_failed = on_failed
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._pending: dict[int, PendingPrompt] = {}
        self._responses: dict[int, list[PartialResponse]] = {}

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks

    async def cancel(self) -> None:
        """Drop what is in flight. Call only when its prompts are saved or no longer needed."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def in_flight(self) -> list[PendingPrompt]:
        """With the tokens they have so far."""
        has = self._responses
        return [replace(p, responses=tuple(map(replace, has[p.group_id]))) for p in self._pending.values()]

    def submit(self, pending: PendingPrompt) -> None:
        assert self._tasks is not None, "submitted before start"
        self.ledger.submit(pending.group_id)
        if pending.submit_version is None:
            # From now on it is known, also to a checkpoint: tokens of it may be resumed at a later version.
            pending = replace(pending, submit_version=self.version)
        self._pending[pending.group_id] = pending
        self._responses[pending.group_id] = list(map(replace, pending.responses))
        name = f"group {pending.group_id}"
        self._running[pending.group_id] = self._tasks.create_task(self._run(pending), name=name)

    async def _run(self, pending: PendingPrompt) -> None:
        submit_version = pending.submit_version
        assert submit_version is not None, "run before it was submitted"
        submit_time = self._now()
        try:
            samples = await self._generate(pending)
            group = SampleGroup(pending.group_id, pending.prompt, samples, submit_version, submit_time, self._now())
            group = group.with_rewards(await self._reward.score(group))
        except (ReplicaError, DataError) as error:
            self._fail(pending, error)
        else:
            self._end(pending)
            self.ledger.queue(pending.group_id)
            self._on_finished(group)

    async def _generate(self, pending: PendingPrompt) -> tuple[Sample, ...]:
        retries = self.settings.max_sample_retries
        while True:
            try:
                return await self._client.generate(
                    str(pending.group_id),
                    pending.prompt,
                    self.settings.num_responses,
                    self.settings.sampling,
                    self._responses[pending.group_id],
                )
            except ReplicaError as error:
                if retries == 0:
                    raise
                retries -= 1
                logger.warning("group %d failed and is tried again: %s", pending.group_id, error)

    def _end(self, pending: PendingPrompt) -> None:
        del self._running[pending.group_id]
        del self._pending[pending.group_id]
        del self._responses[pending.group_id]

    def _fail(self, pending: PendingPrompt, error: Exception) -> None:
        self._end(pending)
        self.ledger.fail(pending.group_id)
        logger.warning("group %d (prompt %s) failed: %s", pending.group_id, pending.prompt.uid, error)
        self._on_failed(pending)
        if self.ledger.num_failed > self.settings.max_failed_ratio * max(
            self.ledger.num_submitted, self._failure_basis
        ):
            raise TooManyFailuresError(
                f"{self.ledger.num_failed} of {self.ledger.num_submitted} groups failed, more than "
                f"async_training.max_failed_ratio={self.settings.max_failed_ratio:g} allows; the latest: {error}"
            ) from error


class RolloutMeter:
    """Utilization, pauses and counts of rollout between two weight syncs."""

    def __init__(self, now: Callable[[], float], ledger: GroupLedger) -> None:
        self._now = now
        self._ledger = ledger
        self._utilization = RolloutUtilization()
        self._idle = IdleTimes(now())
        self._generated_before = 0

    def start(self) -> None:
        """The run begins, perhaps from a checkpoint's counts."""
        self._idle = IdleTimes(self._now())
        self._generated_before = self._ledger.num_generated

    def record(self, *, capacity: int, is_paused: bool) -> None:
        """From now on ``capacity`` groups could be in flight; ``is_paused``: none is, and none may follow."""
        now = self._now()
        self._utilization.record(now, self._ledger.num_in_flight, capacity)
        if is_paused:
            self._idle.pause(now)
        else:
            self._idle.resume(now)

    def discard(self) -> None:
        """What passed since the last close belongs to something else (validation); what was generated counts."""
        now = self._now()
        self._utilization.close(now)
        self._idle.close(now)

    def close(self, *, staleness_samples: int) -> RolloutCycle:
        now = self._now()
        busy_s, capacity_s = self._utilization.close(now)
        window = self._idle.close(now)
        generated = self._ledger.num_generated - self._generated_before
        self._generated_before = self._ledger.num_generated
        return RolloutCycle(
            busy_s=busy_s,
            capacity_s=capacity_s,
            active_time_s=window.active_time_s,
            version_time_s=window.version_time_s,
            step_generated_samples=generated,
            total_generated_samples=self._ledger.num_generated,
            staleness_samples=staleness_samples,
            dropped_samples=self._ledger.num_evicted,
            failed_samples=self._ledger.num_failed,
        )
