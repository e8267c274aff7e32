"""The staleness budget of fully-asynchronous training: how many groups may be submitted ahead of the trainer.

Everything is counted in sample groups. ``staleness_samples`` grows by one per submitted group and falls back to
*in flight + queued* at each weight sync; submission pauses while it has reached ``max_required_samples``. A group
that fails gives its share back at once: nobody will ever consume it.

Because every group in flight or queued is also counted in ``staleness_samples``, a queue with room for
``max_required_samples`` groups can never overflow.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetNumbers:
    """The constants that follow from the configuration."""

    ppo_mini_batch_size: int
    require_batches: int
    trigger_parameter_sync_step: int
    staleness_threshold: float
    concurrent_samples_per_replica: int

    @property
    def required_samples(self) -> int:
        """Groups per collection."""
        return self.ppo_mini_batch_size * self.require_batches

    @property
    def step_required_samples(self) -> int:
        """Groups per sync cycle."""
        return self.required_samples * self.trigger_parameter_sync_step

    @property
    def max_required_samples(self) -> int:
        """Groups that may be outstanding per sync cycle; also the queue's capacity."""
        return int(self.required_samples * (1 + self.staleness_threshold) * self.trigger_parameter_sync_step)

    @property
    def buffer_samples(self) -> int:
        """Groups that may be buffered ahead: ``step_required_samples × staleness_threshold``."""
        return int(self.step_required_samples * self.staleness_threshold)

    def max_concurrent_samples(self, num_active_replicas: int) -> int:
        """Groups in flight at once with this many replicas, each counted once."""
        return min(num_active_replicas * self.concurrent_samples_per_replica, self.max_required_samples)


@dataclass(slots=True)
class StalenessBudget:
    """Live accounting against ``BudgetNumbers.max_required_samples``."""

    max_required_samples: int
    staleness_samples: int = 0

    @property
    def num_submittable(self) -> int:
        """Groups that may still be submitted before the next reset (concurrency apart)."""
        return max(0, self.max_required_samples - self.staleness_samples)

    def submit(self) -> None:
        assert self.num_submittable > 0, "submitted beyond the staleness budget"
        self.staleness_samples += 1

    def refund(self) -> None:
        """A submitted group failed for good; its share of the budget is free again."""
        assert self.staleness_samples > 0
        self.staleness_samples -= 1

    def reset(self, num_outstanding: int) -> None:
        """At a weight sync: what is in flight or queued now is what counts against the next cycle."""
        assert num_outstanding <= self.max_required_samples
        self.staleness_samples = num_outstanding
