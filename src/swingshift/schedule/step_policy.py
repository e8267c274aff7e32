"""What the step loop asks a policy, and the policy of the modes in which training and rollout take turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one global step was like."""

    duration_s: float
    sample_wait_s: float
    """Waiting for mini-batches, with the devices not lent."""
    wait_samples: int
    """Groups really waited for: Σ max(0, mini-batch − sampleable when it was asked for)."""
    alone_rate: float | None = None
    """Groups finished per second while nothing was lent; None if that was never the case in the step."""
    lent_rate: float | None = None
    """The same while the devices were lent."""


@dataclass(frozen=True, slots=True)
class SwitchDecision:
    """Whether to lend after this step, and the numbers that made it so. What is unknown is None."""

    lend: bool
    reason: str
    sampleable_count: int = 0
    threshold: int = 0
    remaining: int = 0
    per_sample_time_s: float | None = None
    benefit_s: float | None = None
    switch_cost_s: float | None = None

    def numbers(self) -> dict[str, float]:
        """What is known of them."""
        named = {
            "sampleable_count": self.sampleable_count,
            "threshold": self.threshold,
            "remaining": self.remaining,
            "per_sample_time_s": self.per_sample_time_s,
            "benefit_s": self.benefit_s,
            "switch_cost_s": self.switch_cost_s,
        }
        return {name: float(value) for name, value in named.items() if value is not None}


class StepPolicy(Protocol):
    """What the step loop asks. Decides and explains; performs nothing."""

    @property
    def lends(self) -> bool:
        """False: the devices are never lent."""

    @property
    def idle_threshold_ratio(self) -> float: ...

    @property
    def ratio(self) -> float: ...

    def threshold(self) -> int:
        """Groups that must be sampleable before lent devices go back."""

    def switched(self, *, to_rollout_s: float | None = None, to_trainer_s: float | None = None) -> None:
        """A switch of the devices took this long."""

    def step_ended(self, outcome: StepOutcome) -> None:
        """Learn from a step."""

    def decide(self, *, sampleable_count: int, is_last: bool) -> SwitchDecision:
        """Lend now? ``sampleable_count``: groups that the next step could take at once."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(slots=True)
class EveryStepPolicy:
    """``sync`` and ``colocate_async``: the devices generate a whole batch, then train, then generate again."""

    train_batch_size: int
    lends: bool = True
    idle_threshold_ratio: float = 0.01

    @property
    def ratio(self) -> float:
        return 1.0

    def threshold(self) -> int:
        return self.train_batch_size

    def switched(self, *, to_rollout_s: float | None = None, to_trainer_s: float | None = None) -> None:
        pass

    def step_ended(self, outcome: StepOutcome) -> None:
        pass

    def decide(self, *, sampleable_count: int, is_last: bool) -> SwitchDecision:
        reason = "the last step: nothing is left to lend for" if is_last else "training and rollout take turns"
        threshold = self.threshold()
        return SwitchDecision(
            not is_last, reason, sampleable_count, threshold, remaining=max(0, threshold - sampleable_count)
        )

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
