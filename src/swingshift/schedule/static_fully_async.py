"""``static_fully_async``: never lend. The baseline, and the colocated fallback."""

from __future__ import annotations

from swingshift.schedule.base import DynamicScheduleContext, DynamicSchedulePolicyBase, register_policy


@register_policy("static_fully_async")
class StaticFullyAsyncPolicy(DynamicSchedulePolicyBase):
    """Plain fully-asynchronous training.

    Without standalone replicas nobody but the hybrid ones can generate, so the policy then alternates: generate a
    full batch, train on it (classic colocated training).
    """

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        self.deactivate_ratio = deactivate_ratio
        self.only_hybrid = only_hybrid

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return ctx.step_required_samples if self.only_hybrid or ctx.only_hybrid else 0

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        alone = self.only_hybrid or ctx.only_hybrid
        self.decision = "colocated: generate the next batch" if alone else "keep: static policy"
        return alone
