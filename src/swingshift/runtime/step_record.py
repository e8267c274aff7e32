"""What a global step is made of, and what happened in the one under way."""

from __future__ import annotations

from dataclasses import dataclass, field

from swingshift.core.buffer import Evictions
from swingshift.core.step_metrics import StepFigures
from swingshift.core.types import SampleGroup
from swingshift.runtime.stopwatch import Stopwatch
from swingshift.schedule.step_policy import StepOutcome, SwitchDecision


@dataclass(frozen=True, slots=True)
class StepSettings:
    """Of one run in global steps. ``parameter_sync_step`` mini-batches make a step of ``train_batch_size`` groups."""

    train_batch_size: int
    parameter_sync_step: int
    num_warmup_batches: int = 1
    """Batches submitted before the first step's own, so that generation runs ahead of training."""
    total_training_steps: int | None = None
    needs_warmup: bool = False
    """True: with nothing in flight before the first step the mode makes no sense (``separate_async``)."""

    @property
    def mini_batch_size(self) -> int:
        return self.train_batch_size // self.parameter_sync_step

    @property
    def num_warmup(self) -> int:
        return self.num_warmup_batches * self.train_batch_size

    def num_wanted(self, step: int, num_ahead: int, num_stored: int) -> int:
        """Prompts a step brings: a batch. Less if a stop within a step left more than was ahead, or near the end."""
        limit = self.at_most_needed(num_ahead + self.train_batch_size, step - 1)
        # Failed groups that are still in the store will be replaced when they are evicted.
        return min(self.train_batch_size, max(0, limit - num_stored))

    def at_most_needed(self, num_groups: int, num_done: int) -> int:
        """``num_groups``, or fewer if the steps left after ``num_done`` need less."""
        if self.total_training_steps is None:
            return num_groups
        return min(num_groups, max(0, self.total_training_steps - num_done) * self.train_batch_size)


@dataclass(slots=True)
class StepRecord:
    """What happened in the step under way."""

    watch: Stopwatch
    began_s: float
    threshold: int = 0
    sample_wait_s: float = 0.0
    wait_samples: int = 0
    num_left: int = 0
    """Groups the next step could take when this one had ended."""
    is_idle: bool = False
    evictions: Evictions = field(default_factory=Evictions)
    rates: Rates = field(default_factory=lambda: Rates())
    groups: list[SampleGroup] = field(default_factory=list)
    """Of the newest mini-batch."""

    @property
    def lent_s(self) -> float:
        """Seconds that were not the trainer's turn: its devices were lent, or given back."""
        return self.watch.seconds.get("wait_for_enough_samples", 0.0) + self.watch.seconds.get("deactivate", 0.0)

    def outcome(self, now: float) -> StepOutcome:
        """What the policy learns from."""
        rates = self.rates
        return StepOutcome(
            duration_s=now - self.began_s,
            sample_wait_s=self.sample_wait_s,
            wait_samples=self.wait_samples,
            alone_rate=rates.alone_groups / rates.alone_s if rates.alone_s > 0.0 else None,
            lent_rate=rates.lent_groups / rates.lent_s if rates.lent_s > 0.0 else None,
        )

    def figures(self, decision: SwitchDecision, ratio: float, validate_s: float, validate_groups: int) -> StepFigures:
        """What the step's row says."""
        return StepFigures(
            threshold_ratio=ratio,
            wait_samples=self.wait_samples,
            sample_wait_s=self.sample_wait_s,
            is_idle=self.is_idle,
            threshold=self.threshold,
            sampleable_count=decision.sampleable_count,
            next_threshold=decision.threshold,
            remaining=decision.remaining,
            per_sample_time_s=decision.per_sample_time_s,
            benefit_s=decision.benefit_s,
            switch_cost_s=decision.switch_cost_s,
            lend=decision.lend,
            evictions=self.evictions,
            timings_s=self.watch.seconds,
            validate_s=validate_s,
            validate_groups=validate_groups,
        )


@dataclass(slots=True)
class Rates:
    """Groups finished and seconds passed, with the devices lent and without."""

    lent_s: float = 0.0
    lent_groups: int = 0
    alone_s: float = 0.0
    alone_groups: int = 0

    def add(self, is_lent: bool, seconds: float, groups: int) -> None:
        if is_lent:
            self.lent_s += seconds
            self.lent_groups += groups
        else:
            self.alone_s += seconds
            self.alone_groups += groups
