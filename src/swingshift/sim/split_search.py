"""The fastest split without lending, for comparisons: a local search, much cheaper than a proof.

``planner`` proves its answer with the bound, which takes most of all splits where runs stay far above it. Here the
search goes from the split with the least bound to better neighbours, in ever smaller steps, until none within two is
better: with more devices on one side that side only gets faster and the other only slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import Scenario
from swingshift.sim.splits import splits_of, with_split

NEIGHBOURS = (-1, 1, -2, 2)
FIRST_STEPS = 16
"""The first step is this part of all splits, at least one."""


@dataclass(frozen=True, slots=True)
class BestStatic:
    trainer_devices: int
    rollout_devices: int
    wall_s: float
    num_simulated: int


def best_static(scenario: Scenario) -> BestStatic:
    """Of as many devices as the scenario has; two at least must be splittable."""
    cluster = scenario.cluster
    candidates = splits_of(scenario, cluster.trainer_devices + cluster.rollout_devices, lending=False).possible
    assert candidates, "there is a split without lending"
    walls: dict[int, float] = {}

    def wall_s(index: int) -> float:
        if index not in walls:
            found = candidates[index]
            split = with_split(scenario, found.trainer_devices, found.rollout_devices, False)
            walls[index] = float(run_scenario(split)["wall_s"])
        return walls[index]

    best = min(range(len(candidates)), key=lambda index: candidates[index].bound_s)
    step = max(1, len(candidates) // FIRST_STEPS)
    while True:
        near = [best + step * k for k in NEIGHBOURS if 0 <= best + step * k < len(candidates)]
        better = min([best, *near], key=wall_s)
        if better != best:
            best = better
        elif step > 1:
            step //= 2
        else:
            found = candidates[best]
            return BestStatic(found.trainer_devices, found.rollout_devices, walls[best], len(walls))
