"""``default``: lend while the backlog is short and the switch pays for itself; adapt how long to lend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swingshift.core.cost import (
    DEFAULT_SWITCH_COST_S,
    INITIAL_PER_SAMPLE_TIME_S,
    backlog_gap,
    mean_switch_cost_s,
    per_sample_time_s,
)
from swingshift.schedule.base import (
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    Rebalance,
    register_policy,
)

RATIO_INCREASE_MIN = 0.02
RATIO_INCREASE_MAX = 0.1
RATIO_DECREASE = 0.02


@register_policy("default")
class DefaultDynamicSchedulePolicy(DynamicSchedulePolicyBase):
    """Adaptive ``deactivate_ratio`` and a cost/benefit gate on activation.

    The ratio stays in [0, 1]: without the floor it winds up during calm cycles and then needs dozens of starved
    ones to recover.
    """

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        self.only_hybrid = only_hybrid
        self.deactivate_ratio = 1.0 if only_hybrid else deactivate_ratio
        self.per_sample_time_s = INITIAL_PER_SAMPLE_TIME_S

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        ratio = 1.0 if self._alone(ctx) else self.deactivate_ratio
        return int(ratio * ctx.step_required_samples)

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        if self._alone(ctx):
            self.decision = "lend: there is no standalone replica"
            return True
        gap = backlog_gap(
            self.deactivate_ratio,
            ctx.step_required_samples,
            ctx.total_generated_samples,
            ctx.expected_samples,
        )
        if gap <= 0:
            self.decision = f"keep: backlog exceeds the wanted one by {-gap:.1f} groups"
            return False
        saved_s = gap * self._sample_time(ctx)
        cost_s = self._switch_cost(ctx)
        lend = saved_s > cost_s
        verdict, sign = ("lend", ">") if lend else ("keep", "≤")
        self.decision = f"{verdict}: {gap:.1f} groups short ≈ {saved_s:.2f} s {sign} {cost_s:.2f} s switch cost"
        return lend

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        if global_steps <= 0 or self._alone(ctx):
            return
        self.per_sample_time_s = self._sample_time(ctx)
        num_waited = sum(ctx.step_wait_samples)
        if num_waited > 0:
            share = num_waited / ctx.step_required_samples
            self.deactivate_ratio += min(max(share, RATIO_INCREASE_MIN), RATIO_INCREASE_MAX)
        else:
            self.deactivate_ratio -= RATIO_DECREASE
        self.deactivate_ratio = min(max(self.deactivate_ratio, 0.0), 1.0)

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        return Rebalance.FULL

    def state_dict(self) -> dict[str, Any]:
        return {"deactivate_ratio": self.deactivate_ratio, "per_sample_time_s": self.per_sample_time_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.deactivate_ratio = float(state["deactivate_ratio"])
        self.per_sample_time_s = float(state["per_sample_time_s"])

    def _alone(self, ctx: DynamicScheduleContext) -> bool:
        """No standalone replica: by configuration, or because the last one died."""
        return self.only_hybrid or ctx.only_hybrid

    def _sample_time(self, ctx: DynamicScheduleContext) -> float:
        measured = per_sample_time_s(ctx.step_wait_times, ctx.step_wait_samples)
        return self.per_sample_time_s if measured is None else measured

    def _switch_cost(self, ctx: DynamicScheduleContext) -> float:
        measured = mean_switch_cost_s(ctx.switch_costs_s)
        return DEFAULT_SWITCH_COST_S if measured is None else measured
