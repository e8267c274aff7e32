"""Every mode of global steps in one small world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from step_builders import (
    OFF,
    step_world,
    sync_world,
)

from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig

NUM_PROMPTS = 41
OPTIONS: dict[str, Any] = {
    "num_prompts": NUM_PROMPTS,
    "lengths": lognormal_lengths(50, 0.7, 100),
    "replica_cost": ReplicaCost(step_base_s=0.01, max_num_seqs=4, sleep_s=0.03, wake_s=0.03),
    "trainer_cost": TrainerCost(per_group_s=0.1),
}


def world_of(mode: str, **options: Any) -> WorldConfig:
    """Anew each time: policies learn."""
    options = {**OPTIONS, **options}
    match mode:
        case "switching":
            return step_world(**options)
        case "off":
            return step_world(switch=OFF, **options)
        case "two batches ahead":
            return step_world(warmup=2, **options)
        case "wait":
            return step_world(rules=StoreRules(2, OffPolicyStrategy.WAIT), **options)
        case "sync":
            return sync_world(**{"num_hybrid": 2, **options})
        case _:
            return sync_world(**{"num_hybrid": 2, "warmup": 1, **options})


MODES = ["switching", "off", "two batches ahead", "wait", "sync", "colocate_async"]


def both(*scripts: Callable[[World], object]) -> Callable[[World], None]:
    def script(world: World) -> None:
        for one in scripts:
            one(world)

    return script
