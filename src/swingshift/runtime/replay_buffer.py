"""The replay buffer of ``separate_async``: groups wait here until a step samples them, or are evicted and replaced.

Reads and waits consume nothing; only ``sample`` takes. Waiting is on events: a group that finishes, fails or turns
out useless wakes whoever waits. Validation never passes through here, so it is neither evicted nor refilled.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from swingshift.core.buffer import Evictions
from swingshift.core.types import SampleGroup
from swingshift.errors import DataError, ReplayBufferError
from swingshift.runtime.rollouter import Buffered
from swingshift.runtime.step_rollouter import StepRollouter

logger = logging.getLogger(__name__)

_FIRST_BACK_OFF_S = 0.05
_LONGEST_BACK_OFF_S = 10.0


@dataclass(frozen=True, slots=True)
class Sampleable:
    """How a wait for groups ended, and what was evicted (and refilled) meanwhile."""

    num_groups: int
    evictions: Evictions
    outcome: Buffered


class StepBuffer(Protocol):
    """What the step loop needs of a replay buffer, ours or a user's own."""

    def get_sampleable_count(self, global_steps: int) -> int:
        """Groups that could be sampled now. Without side effects."""

    async def wait_for_sampleable(self, global_steps: int, target_count: int) -> Sampleable:
        """Wait until so many can be sampled, evicting and refilling meanwhile. Consumes nothing."""

    async def sample(self, global_steps: int, batch_size: int) -> tuple[list[SampleGroup], Evictions]:
        """Wait, then take the oldest groups; fewer only if no more will come."""


def check_buffer(buffer: object, name: str) -> None:
    """Raises ReplayBufferError (a TypeError) if a replay buffer lacks what switching needs."""
    missing = [
        m for m in ("get_sampleable_count", "wait_for_sampleable", "sample") if not callable(getattr(buffer, m, None))
    ]
    if missing:
        raise ReplayBufferError(
            f"trainer.v1.replay_buffer.path={name}: the class has no method {' and no '.join(missing)}; "
            "implement what swingshift.runtime.replay_buffer.StepBuffer lists"
        )


class ReplayBuffer:
    """``max_refills``: groups evicted in a row, without one that survived, after which the run ends."""

    def __init__(self, rollouter: StepRollouter, max_refills: int) -> None:
        self._rollouter = rollouter
        self._store = rollouter.store
        self._max_refills = max_refills
        self._in_vain = Evictions()
        """Evicted since the last group that survived."""

    def get_sampleable_count(self, global_steps: int) -> int:
        return self._store.sampleable_count(global_steps)

    async def wait_for_sampleable(self, global_steps: int, target_count: int) -> Sampleable:
        evictions = Evictions()
        while True:
            evictions.add(await self._replace_useless(global_steps))
            outcome = self._outcome(global_steps, target_count)
            if outcome is not None:
                return Sampleable(self.get_sampleable_count(global_steps), evictions, outcome)
            await self._rollouter.changed.until(
                lambda: (
                    self._store.has_evictable(global_steps) or self._outcome(global_steps, target_count) is not None
                ),
                who="step loop",
                what=lambda: self._describe(global_steps, target_count),
            )

    async def sample(self, global_steps: int, batch_size: int) -> tuple[list[SampleGroup], Evictions]:
        found = await self.wait_for_sampleable(global_steps, batch_size)
        if found.outcome is Buffered.STOPPED:
            return [], found.evictions
        return self._rollouter.take(min(batch_size, found.num_groups), global_steps), found.evictions

    def _outcome(self, step: int, target: int) -> Buffered | None:
        """Why to stop waiting, or None."""
        count = self.get_sampleable_count(step)
        if count >= target:
            return Buffered.ENOUGH
        if self._rollouter.is_stopped:
            return Buffered.STOPPED
        if self._store.num_unfinished == 0 and not self._store.has_evictable(step):
            return Buffered.EXHAUSTED
        if self._rollouter.num_replicas == 0:
            return Buffered.NO_REPLICA
        return None

    async def _replace_useless(self, step: int) -> Evictions:
        """Evict, and submit as many new prompts as were evicted (as long as there are any)."""
        evictions = self._rollouter.evict(step)
        if self._store.trainable_count(step) > 0:
            self._in_vain = Evictions()
        else:
            self._in_vain.add(evictions)
        if evictions.num_groups == 0:
            return evictions
        vain = self._in_vain
        if vain.num_groups > self._max_refills:
            raise DataError(
                f"{vain.num_groups} groups in a row were of no use and replaced in vain ({vain.num_stale} stale, "
                f"{vain.num_filtered} filtered, {vain.num_failed} failed; algorithm.filter_groups."
                "max_num_gen_batches batches are allowed); easier or harder prompts, or no filter, would give "
                "something to train on"
            )
        await self._back_off(vain.num_failed)
        evictions.num_refilled = self._rollouter.submit(evictions.num_groups, step)
        logger.debug("step %d: evicted %d groups, refilled %d", step, evictions.num_groups, evictions.num_refilled)
        return evictions

    async def _back_off(self, num_failed: int) -> None:
        """Failures can be instant; replacing them must not become a busy loop."""
        rounds = num_failed // max(1, self._rollouter.numbers.required_samples)
        if rounds == 0:
            return
        delay_s = min(_FIRST_BACK_OFF_S * 2.0 ** (rounds - 1), _LONGEST_BACK_OFF_S)
        try:
            await self._rollouter.changed.until(
                lambda: self._rollouter.is_stopped,
                who="replay buffer",
                what=lambda: f"{delay_s:g} s before it replaces failed groups",
                timeout_s=delay_s,
            )
        except TimeoutError:
            return

    def _describe(self, step: int, target: int) -> str:
        count, unfinished = self.get_sampleable_count(step), self._store.num_unfinished
        blocked = ", blocked by an old one in flight" if self._store.is_blocked(step) else ""
        return f"{target} sampleable groups (has {count}, {unfinished} not finished{blocked})"
