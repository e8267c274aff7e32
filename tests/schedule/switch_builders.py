"""Policies of global steps, and steps to tell them of."""

from __future__ import annotations

from typing import Any

from swingshift.schedule.step_policy import StepOutcome
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy

BATCH, MINI_BATCH, K = 64, 16, 4


def policy(**options: Any) -> StepSwitchPolicy:
    """One standalone device and two hybrid ones, as in the published comparison."""
    config = HybridRolloutSwitchConfig(**{"enable_switch": True, **options})
    return StepSwitchPolicy(config, BATCH, K, standalone_share=1 / 3)


def outcome(wait_s: float = 0.0, samples: int = 0, duration_s: float = 100.0, **rates: float | None) -> StepOutcome:
    return StepOutcome(duration_s, wait_s, samples, **rates)


IDLE, CALM = outcome(10.0, 5), outcome()


def after(*outcomes: StepOutcome, **options: Any) -> StepSwitchPolicy:
    built = policy(**options)
    for one in outcomes:
        built.step_ended(one)
    return built


def measured(to_rollout_s: float, to_trainer_s: float, *outcomes: StepOutcome, **options: Any) -> StepSwitchPolicy:
    """With both directions of a switch timed once."""
    built = after(*outcomes, **options)
    built.switched(to_rollout_s=to_rollout_s)
    built.switched(to_trainer_s=to_trainer_s)
    return built
