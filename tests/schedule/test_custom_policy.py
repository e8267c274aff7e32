"""The published example of a custom policy, unchanged but for its import line, runs a whole session."""

from __future__ import annotations

import pytest

from swingshift.schedule import base
from swingshift.sim.world import WorldConfig, simulate

EXAMPLE = '''
from swingshift.schedule import (
    DynamicSchedulePolicyBase,
    DynamicScheduleContext,
    register_policy,
)

@register_policy("my_policy")
class MyDynamicSchedulePolicy(DynamicSchedulePolicyBase):

    def __init__(self, deactivate_ratio: float = 0.5, only_hybrid: bool = False):
        self.deactivate_ratio = deactivate_ratio
        self.only_hybrid = only_hybrid

    def should_deactivate(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
    ) -> bool:
        """Return True to deactivate hybrid replicas this step."""
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return minimum buffered-sample count before deactivation proceeds."""
        return int(ctx.required_samples * ctx.trigger_parameter_sync_step * self.deactivate_ratio)

    def should_activate_after_step(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
    ) -> bool:
        """Return True to re-activate after weight sync."""
        return ctx.total_generated_samples < ctx.expected_samples + ctx.buffer_samples

    # Optional: override to update internal state after each step
    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass

    # Optional: override to customise request redistribution after activation
    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass
'''


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))


def test_the_published_example_runs() -> None:
    exec(compile(EXAMPLE, "my_policy.py", "exec"), {"__name__": "my_policy"})
    world = simulate(WorldConfig(policy="my_policy", deactivate_ratio=0.5, num_prompts=80))
    assert world.exit_reason == "finished"
    assert sorted(world.trainer.trained) == list(range(80))
    switches = [row["dynamic_resource/num_activations"] for row in world.rows]
    assert sum(switches) >= 5, "it lends in most cycles"
    assert sum(row["dynamic_resource/num_deactivations"] for row in world.rows) >= 5
    assert all(row["dynamic_resource/deactivate_ratio"] == 0.5 for row in world.rows)


def test_the_published_example_runs_without_standalone_replicas() -> None:
    exec(compile(EXAMPLE, "my_policy.py", "exec"), {"__name__": "my_policy"})
    world = simulate(WorldConfig(policy="my_policy", num_standalone=0, num_hybrid=2, num_prompts=40))
    assert sorted(world.trainer.trained) == list(range(40))
