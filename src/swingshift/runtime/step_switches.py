"""Switches of the trainer's devices between training and rollout within global steps: performed, timed, explained.

Whether to switch is for the step loop and its policy to decide. A global step ``g`` begins with version ``g − 1``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from swingshift.core.ledger import GroupLedger
from swingshift.core.types import WeightVersion
from swingshift.errors import NoReplicaError
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.observations import Decision, Question
from swingshift.runtime.replay_buffer import StepBuffer
from swingshift.runtime.step_record import StepRecord
from swingshift.schedule.base import Rebalance
from swingshift.schedule.step_policy import StepPolicy

logger = logging.getLogger(__name__)


class StepSwitches:
    """Each switch writes into the record of the step under way and tells the policy what it cost."""

    def __init__(
        self,
        controller: DynamicResourceController,
        policy: StepPolicy,
        buffer: StepBuffer,
        ledger: GroupLedger,
        now: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._policy = policy
        self._buffer = buffer
        self._ledger = ledger
        self._now = now
        self._has_generated_alone = False
        self._rate_mark = (0.0, 0)
        self._decisions: list[Decision] = []

    async def take_back(self, record: StepRecord, step: int, threshold: int, when: str) -> None:
        """Lent devices return to the trainer."""
        count = self._buffer.get_sampleable_count(step)
        numbers = {"sampleable_count": float(count), "threshold": float(threshold)}
        reason = f"{count} of {threshold} groups sampleable, {when}"
        self.note(step - 1, Question.TAKE_BACK, True, reason, numbers)
        self.mark_rates(record)
        with record.watch.time("deactivate"):
            await self._controller.deactivate()
        self._policy.switched(to_trainer_s=self._controller.costs.last_deactivate_s)

    async def lend(self, record: StepRecord) -> None:
        """The cost excludes the standalone sync, which happens without lending too."""
        with record.watch.time("activate"):
            is_lent = await self._controller.activate()
        if is_lent:
            began_s = self._now()
            with record.watch.time("rebalance"):
                await self._controller.rebalance(Rebalance.PROPORTIONAL)
            # Moving requests is part of what lending costs.
            rebalance_s = self._now() - began_s
            self._policy.switched(to_rollout_s=self._controller.costs.last_activate_s + rebalance_s)
        self.restart_rates()

    async def generate_alone(self, record: StepRecord, step: int, num_groups: int) -> None:
        """Nobody else can generate any more: let the hybrid replicas do it, then take them back."""
        reason = f"no standalone replica generates; lending the trainer's devices for {num_groups} groups"
        # Once is news; the steps after it say the same again and again.
        logger.log(logging.INFO if self._has_generated_alone else logging.WARNING, "%s", reason)
        self._has_generated_alone = True
        self.note(step - 1, Question.LEND, True, reason, {})
        self.mark_rates(record)
        with record.watch.time("activate"):
            is_lent = await self._controller.activate()
        if is_lent:
            self._policy.switched(to_rollout_s=self._controller.costs.last_activate_s)
            self.restart_rates()
            with record.watch.time("wait_for_enough_samples"):
                found = await self._buffer.wait_for_sampleable(step, num_groups)
            record.evictions.add(found.evictions)
            await self.take_back(record, step, num_groups, f"after a wait: {found.outcome}")
        elif not self._controller.expects_replicas():
            raise NoReplicaError(
                f"no standalone replica is left and no hybrid one could be woken ({self._controller.why_retired()})"
            )

    # --- what is told of them ---------------------------------------------------------------------------------

    def mark_rates(self, record: StepRecord) -> None:
        """Credit the time since the last mark to the state the devices were in."""
        since_s, before = self._rate_mark
        self.restart_rates()
        now, generated = self._rate_mark
        record.rates.add(self._controller.is_hybrid_active, now - since_s, generated - before)

    def restart_rates(self) -> None:
        """Credit nobody with the time since the last mark."""
        self._rate_mark = (self._now(), self._ledger.num_generated)

    def note(
        self, version: WeightVersion, question: Question, is_yes: bool, reason: str, numbers: Mapping[str, float]
    ) -> None:
        """A decision, taken here or by the step loop."""
        answer = "yes" if is_yes else "no"
        self._decisions.append(Decision(self._now(), version, question, answer, reason, numbers))

    def take_decisions(self) -> tuple[Decision, ...]:
        """Those since it was last called."""
        decisions, self._decisions = tuple(self._decisions), []
        return decisions
