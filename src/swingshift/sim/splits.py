"""Ways to split a number of devices between training and rollout, and which of them can exist."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from swingshift.errors import ConfigError
from swingshift.sim.bound import lending_bound_s, static_bound_s
from swingshift.sim.memory import has_model, memory_verdict
from swingshift.sim.scenario import Scenario, with_lending
from swingshift.sim.scenario_checks import check_scenario, split_problem
from swingshift.sim.scenario_world import split_of
from swingshift.sim.work import work_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """One split. ``wall_s`` are whole runs, scaled up from the simulated cycles, one a seed.

    ``shares``: what all device-time went to, see ``plan_reason``; None before it is simulated.
    """

    trainer_devices: int
    rollout_devices: int
    lending: bool
    bound_s: float
    wall_s: tuple[float, ...] = ()
    shares: Mapping[str, float] | None = None

    @property
    def median_s(self) -> float:
        return statistics.median(self.wall_s)

    @property
    def split(self) -> str:
        return f"{self.trainer_devices}+{self.rollout_devices}"


@dataclass(frozen=True, slots=True)
class Splits:
    """``dropped``: why memory does not hold a split, by its name, in the order of trainer devices."""

    possible: tuple[Candidate, ...]
    dropped: Mapping[str, str]


def with_split(scenario: Scenario, trainer_devices: int, rollout_devices: int, lending: bool) -> Scenario:
    cluster = scenario.cluster.model_copy(
        update={"trainer_devices": trainer_devices, "rollout_devices": rollout_devices}
    )
    return with_lending(scenario.model_copy(update={"cluster": cluster}), lending)


def splits_of(scenario: Scenario, num_devices: int, lending: bool) -> Splits:
    """All in multiples of ``devices_per_replica`` that the mode allows. Raises ConfigError if it allows none."""
    size, possible = scenario.cluster.devices_per_replica, []
    dropped: dict[str, str] = {}
    problems = []
    for trainer in range(size, num_devices + 1, size):
        split = with_split(scenario, trainer, num_devices - trainer, lending)
        problem = split_problem(split)
        if problem is not None:
            problems.append(problem)
            continue
        found = Candidate(trainer, num_devices - trainer, lending, _bound_s(split, lending))
        errors = memory_verdict(split)[0] if has_model(split) else []
        if errors:
            dropped[found.split] = errors[0]
            continue
        check_scenario(split)
        possible.append(found)
    if lending and not possible and not dropped:
        raise ConfigError(f"--devices={num_devices}: cannot be split; {problems[0]}")
    return Splits(tuple(possible), dropped)


def _bound_s(split: Scenario, lending: bool) -> float:
    return (lending_bound_s if lending else static_bound_s)(work_of(split, lending=lending), split_of(split))
