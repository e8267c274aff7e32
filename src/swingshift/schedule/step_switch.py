"""When to lend in global steps: the deciding part of ``separate_async``.

::

    step begins ── enough groups are sampleable? ── yes ──▶ take the devices back
                                     └── no ──▶ submit the step's prompts, wait until there are, take them back
    train …
    step ends ── adapt the threshold ── is lending worth a round trip? ── yes ──▶ lend

The published rules are the defaults; options that go beyond them are switched off: ``per_sample_time_decay``,
``measure_scaling_factor`` and ``benefit_margin``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swingshift.schedule.step_policy import StepOutcome, SwitchDecision


@dataclass(frozen=True, slots=True)
class HybridRolloutSwitchConfig:
    """Section ``trainer.v1.separate_async.hybrid_rollout``. Raises ValueError for what cannot work."""

    enable_switch: bool = False
    switch_threshold_ratio: float = 0.5
    """Share of a step's groups that must be sampleable before the devices go back; adapted from there."""
    adaptive_switch_threshold: bool = True
    switch_threshold_step_up: float = 0.1
    switch_threshold_step_down: float = 0.05
    switch_threshold_release_steps: int = 2
    """Steps of one kind (idle, calm) in a row before the ratio moves."""
    switch_cost_window_size: int = 3
    """Switches of each direction whose durations are averaged."""
    idle_threshold_ratio: float = 0.01
    """A step was idle if it waited for groups longer than this share of its duration."""
    per_sample_time_decay: float = 0.0
    """0: the average over the whole run. Else the share of its weight that a measurement loses each step."""
    measure_scaling_factor: bool = False
    """Take the standalone share of rollout from measured rates instead of device counts."""
    benefit_margin: float = 0.0
    """Standard deviations of the recent per-sample times by which the estimate is lowered before it must pay."""

    def __post_init__(self) -> None:
        _require(0.0 < self.switch_threshold_ratio <= 1.0, self, "switch_threshold_ratio", "lies outside (0, 1]")
        _require(self.switch_threshold_step_up >= 0.0, self, "switch_threshold_step_up", "is negative")
        _require(self.switch_threshold_step_down >= 0.0, self, "switch_threshold_step_down", "is negative")
        _require(self.switch_threshold_release_steps >= 1, self, "switch_threshold_release_steps", "is below 1")
        _require(self.switch_cost_window_size >= 1, self, "switch_cost_window_size", "is not positive")
        _require(self.idle_threshold_ratio >= 0.0, self, "idle_threshold_ratio", "is negative")
        _require(0.0 <= self.per_sample_time_decay < 1.0, self, "per_sample_time_decay", "lies outside [0, 1)")
        _require(self.benefit_margin >= 0.0, self, "benefit_margin", "is negative")


def _require(holds: bool, config: HybridRolloutSwitchConfig, name: str, what: str) -> None:
    if not holds:
        raise ValueError(f"hybrid_rollout.{name}={getattr(config, name)}: {what}; correct it")


def check_disaggregation(*, lent_by: str | None, disaggregated: bool) -> None:
    """Raises ValueError: a replica that only prefills or only decodes cannot be lent as a whole.

    ``lent_by`` is the setting that lends; None: nothing is ever lent.
    """
    if lent_by is not None and disaggregated:
        raise ValueError(
            "actor_rollout_ref.rollout.disaggregation.enable=true: prefill/decode disaggregation cannot be combined "
            f"with {lent_by}, which lends whole replicas"
        )


_RECENT = 8
"""Steps whose per-sample times tell how much they swing."""


@dataclass(slots=True)
class StepSwitchPolicy:
    """``separate_async``: lend when the groups still missing would take longer than a round trip costs.

    ``standalone_share``: standalone devices over all devices, the assumed share of rollout that goes on without
    lending.
    """

    config: HybridRolloutSwitchConfig
    train_batch_size: int
    parameter_sync_step: int
    standalone_share: float
    _ratio: float = field(init=False)
    _idle_steps: int = 0
    _calm_steps: int = 0
    _wait_s: float = 0.0
    _wait_samples: float = 0.0
    _recent_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _to_rollout_s: deque[float] = field(init=False)
    _to_trainer_s: deque[float] = field(init=False)
    _alone_rate: float | None = None
    _lent_rate: float | None = None

    def __post_init__(self) -> None:
        assert self.train_batch_size % self.parameter_sync_step == 0, "mini-batches must divide the batch"
        self._ratio = self.config.switch_threshold_ratio
        self._to_rollout_s = deque(maxlen=self.config.switch_cost_window_size)
        self._to_trainer_s = deque(maxlen=self.config.switch_cost_window_size)

    @property
    def lends(self) -> bool:
        return self.config.enable_switch

    @property
    def idle_threshold_ratio(self) -> float:
        return self.config.idle_threshold_ratio

    @property
    def ratio(self) -> float:
        return self._ratio

    def threshold(self) -> int:
        """At least one mini-batch, at most the whole batch."""
        if not self.lends:
            return 0
        mini_batch = self.train_batch_size // self.parameter_sync_step
        return min(max(round(self._ratio * self.train_batch_size), mini_batch), self.train_batch_size)

    def switched(self, *, to_rollout_s: float | None = None, to_trainer_s: float | None = None) -> None:
        if to_rollout_s is not None:
            self._to_rollout_s.append(to_rollout_s)
        if to_trainer_s is not None:
            self._to_trainer_s.append(to_trainer_s)

    def step_ended(self, outcome: StepOutcome) -> None:
        keep = 1.0 - self.config.per_sample_time_decay
        self._wait_s = keep * self._wait_s + outcome.sample_wait_s
        self._wait_samples = keep * self._wait_samples + outcome.wait_samples
        if outcome.wait_samples:
            self._recent_times_s.append(outcome.sample_wait_s / outcome.wait_samples)
        self._alone_rate = _newer(self._alone_rate, outcome.alone_rate)
        self._lent_rate = _newer(self._lent_rate, outcome.lent_rate)
        if self.config.adaptive_switch_threshold:
            self._adapt(outcome.sample_wait_s > self.config.idle_threshold_ratio * outcome.duration_s)

    def _adapt(self, was_idle: bool) -> None:
        """Hysteresis: only several steps of one kind in a row move the ratio, alternation never does."""
        release = self.config.switch_threshold_release_steps
        if was_idle:
            self._calm_steps, self._idle_steps = 0, min(self._idle_steps + 1, release)
            if self._idle_steps == release:
                self._ratio = min(1.0, self._ratio + self.config.switch_threshold_step_up)
        else:
            self._idle_steps, self._calm_steps = 0, min(self._calm_steps + 1, release)
            if self._calm_steps == release:
                # A ratio below one mini-batch would mean nothing.
                lowest = 1.0 / self.parameter_sync_step
                self._ratio = max(lowest, self._ratio - self.config.switch_threshold_step_down)

    def decide(self, *, sampleable_count: int, is_last: bool) -> SwitchDecision:
        threshold = self.threshold()
        remaining = max(0, threshold - sampleable_count)
        time_s, cost_s = self.per_sample_time_s(), self.switch_cost_s()
        benefit_s = None if time_s is None else remaining * time_s * (1.0 - self.alone_share())
        lend, reason = self._verdict(remaining, benefit_s, cost_s, is_last)
        return SwitchDecision(lend, reason, sampleable_count, threshold, remaining, time_s, benefit_s, cost_s)

    def _verdict(
        self, remaining: int, benefit_s: float | None, cost_s: float | None, is_last: bool
    ) -> tuple[bool, str]:
        if not self.lends:
            return False, "switching is off"
        if is_last:
            return False, "the last step: nothing is left to lend for"
        if remaining == 0:
            return False, f"keep: {self.threshold()} groups are sampleable already"
        if benefit_s is None or cost_s is None:
            unknown = "time per sample" if benefit_s is None else "cost of a switch"
            return True, f"lend: {remaining} groups are missing, the {unknown} is not measured yet"
        if benefit_s > cost_s:
            return True, f"lend: {remaining} missing groups, saves {benefit_s:.2f} s for {cost_s:.2f} s of switching"
        return (
            False,
            f"keep: {remaining} missing groups, would save {benefit_s:.2f} s for {cost_s:.2f} s of switching",
        )

    def per_sample_time_s(self) -> float | None:
        """Seconds per group really waited for, lowered by the margin; None before the first wait."""
        if self._wait_samples <= 0.0:
            return None
        mean_s = self._wait_s / self._wait_samples
        return max(0.0, mean_s - self.config.benefit_margin * _deviation(self._recent_times_s))

    def switch_cost_s(self) -> float | None:
        """Mean duration of a switch to rollout plus that of one to the trainer; None until both happened."""
        if not self._to_rollout_s or not self._to_trainer_s:
            return None
        return _mean(self._to_rollout_s) + _mean(self._to_trainer_s)

    def alone_share(self) -> float:
        """Share of the rollout speed with everything lent that the standalone replicas have alone."""
        if self.config.measure_scaling_factor and self._alone_rate is not None and self._lent_rate:
            return min(1.0, self._alone_rate / self._lent_rate)
        return self.standalone_share

    def state_dict(self) -> dict[str, Any]:
        return {
            "ratio": self._ratio,
            "idle_steps": self._idle_steps,
            "calm_steps": self._calm_steps,
            "wait_s": self._wait_s,
            "wait_samples": self._wait_samples,
            "recent_times_s": list(self._recent_times_s),
            "to_rollout_s": list(self._to_rollout_s),
            "to_trainer_s": list(self._to_trainer_s),
            "alone_rate": self._alone_rate,
            "lent_rate": self._lent_rate,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._ratio = float(state["ratio"])
        self._idle_steps, self._calm_steps = int(state["idle_steps"]), int(state["calm_steps"])
        self._wait_s, self._wait_samples = float(state["wait_s"]), float(state["wait_samples"])
        for window, key in (
            (self._recent_times_s, "recent_times_s"),
            (self._to_rollout_s, "to_rollout_s"),
            (self._to_trainer_s, "to_trainer_s"),
        ):
            window.clear()
            window.extend(state[key])
        self._alone_rate, self._lent_rate = state["alone_rate"], state["lent_rate"]


_SMOOTHING = 0.3


def _newer(old: float | None, new: float | None) -> float | None:
    """Exponential average of the rates."""
    if new is None or old is None:
        return old if new is None else new
    return old + _SMOOTHING * (new - old)


def _mean(values: deque[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: deque[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
