"""Policies that answer anything: whatever is decided, nothing may be lost, hang or break an invariant."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from swingshift.schedule.base import DynamicScheduleContext, DynamicSchedulePolicyBase, Rebalance
from swingshift.schedule.step_policy import StepOutcome, SwitchDecision


class _Answers:
    """The same ones from the same seed; ``num_given`` goes into checkpoints."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.num_given = 0

    def next(self) -> random.Random:
        self.num_given += 1
        return random.Random(f"answer {self._seed} {self.num_given}")

    def state_dict(self) -> dict[str, Any]:
        return {"num_given": self.num_given}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.num_given = state["num_given"]


class RandomPolicy(DynamicSchedulePolicyBase):
    """Of the fully-asynchronous modes."""

    def __init__(self, seed: int) -> None:
        self._answers = _Answers(seed)

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return self._answers.next().random() < 0.8

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return self._answers.next().choice((0, 1, ctx.required_samples, ctx.step_required_samples, 1000))

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        self.decision = "drawn"
        return self._answers.next().random() < 0.7

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        kinds: tuple[Rebalance | None, ...] = (None, *Rebalance)
        return self._answers.next().choice(kinds)

    def state_dict(self) -> dict[str, Any]:
        return self._answers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._answers.load_state_dict(state)


class RandomStepPolicy:
    """Of training in global steps."""

    lends = True
    idle_threshold_ratio = 0.01
    ratio = 0.5

    def __init__(self, seed: int, train_batch_size: int) -> None:
        self._answers = _Answers(seed)
        self._batch = train_batch_size

    def threshold(self) -> int:
        return self._answers.next().choice((0, 1, self._batch, 2 * self._batch, 1000))

    def switched(self, *, to_rollout_s: float | None = None, to_trainer_s: float | None = None) -> None:
        pass

    def step_ended(self, outcome: StepOutcome) -> None:
        pass

    def decide(self, *, sampleable_count: int, is_last: bool) -> SwitchDecision:
        lend = self._answers.next().random() < 0.7 and not is_last
        return SwitchDecision(lend, "drawn", sampleable_count)

    def state_dict(self) -> dict[str, Any]:
        return self._answers.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._answers.load_state_dict(state)
