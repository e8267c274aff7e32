"""``fixed_ratio``: lend whenever the backlog is short, by a ratio that never changes. For ablations."""

from __future__ import annotations

from swingshift.core.cost import backlog_gap
from swingshift.schedule.base import (
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    Rebalance,
    register_policy,
)


@register_policy("fixed_ratio")
class FixedRatioDynamicSchedulePolicy(DynamicSchedulePolicyBase):
    """The gap test of ``default`` without its cost gate and without adaptation."""

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        self.only_hybrid = only_hybrid
        self.deactivate_ratio = 1.0 if only_hybrid else deactivate_ratio

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        ratio = 1.0 if self.only_hybrid or ctx.only_hybrid else self.deactivate_ratio
        return int(ratio * ctx.step_required_samples)

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        if self.only_hybrid or ctx.only_hybrid:
            self.decision = "lend: there is no standalone replica"
            return True
        gap = backlog_gap(
            self.deactivate_ratio,
            ctx.step_required_samples,
            ctx.total_generated_samples,
            ctx.expected_samples,
        )
        self.decision = f"{'lend' if gap > 0 else 'keep'}: {gap:.1f} groups short of the wanted backlog"
        return gap > 0

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        return Rebalance.FULL
