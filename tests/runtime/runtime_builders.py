"""Small things the runtime tests share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from swingshift.errors import DataError
from swingshift.schedule import DynamicScheduleContext, DynamicSchedulePolicyBase, Rebalance
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

FREE = ReplicaCost(step_base_s=0.01, abort_s=0.0, sleep_s=0.0, wake_s=0.0, kv_cache_s=0.0)
FREE_TRAINER = TrainerCost(per_group_s=0.2, sync_standalone_s=0.0)


COST = ReplicaCost(step_base_s=0.01, max_num_seqs=4, sleep_s=0.03, wake_s=0.03)
CONFIGS = {
    "dynamic": WorldConfig(num_prompts=41, lengths=lognormal_lengths(50, 0.7, 100), replica_cost=COST),
    "static": WorldConfig(num_prompts=41, lend=False, lengths=lognormal_lengths(50, 0.7, 100), replica_cost=COST),
    "colocated": WorldConfig(num_prompts=41, num_standalone=0, num_hybrid=2, replica_cost=COST),
}


def stop_at(when: float) -> Callable[[World], None]:
    def script(world: World) -> None:
        asyncio.get_running_loop().call_at(when, world.session.stop, "interrupted")

    return script


def resume_from(state: dict[str, Any]) -> Callable[[World], None]:
    return lambda world: world.session.load_state_dict(state)


@dataclass
class MemorySaver:
    """Keeps every saved state as the JSON it would be on disk."""

    states: list[tuple[int, str]] = field(default_factory=list)
    error: Exception | None = None

    async def save(self, step: int, state: Mapping[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.states.append((step, json.dumps(state)))

    @property
    def last(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(self.states[-1][1])
        return state


@dataclass
class ScriptedPolicy(DynamicSchedulePolicyBase):
    """Answers the same every time; ``wait`` may be larger than what can ever come."""

    deactivate: bool = True
    wait: int = 4
    activate: bool = True
    rebalance: Rebalance | None = None
    contexts: list[DynamicScheduleContext] = field(default_factory=list)

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        return self.deactivate

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return self.wait

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self.activate

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.contexts.append(ctx)

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        return self.rebalance


def fails_for(*group_ids: int) -> Callable[[int], float]:
    """A reward function that raises for these groups."""

    def score(group_id: int) -> float:
        if group_id in group_ids:
            raise DataError(f"the reward function failed for group {group_id}")
        return float(group_id)

    return score


def simulate_failing(
    config: WorldConfig, error: type[BaseException], match: str, script: Callable[[World], None] | None = None
) -> World:
    """A run that must end with this error; returns its world."""
    worlds: list[World] = []

    def keep(world: World) -> None:
        worlds.append(world)
        if script is not None:
            script(world)

    with pytest.raises(error, match=match):
        simulate(config, keep)
    return worlds[0]


def total(world: World, name: str) -> float:
    return sum(row[name] for row in world.rows)


def assert_all_trained_once(world: World, num_prompts: int) -> None:
    assert sorted(world.trainer.trained) == list(range(num_prompts))
    world.session.rollouter.ledger.check()
    assert not world.session.rollouter.ledger.live
