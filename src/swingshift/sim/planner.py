"""How to split a number of devices, and whether lending pays: by simulation, pruned by the bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swingshift.errors import ConfigError
from swingshift.sim.bound import binding_term, lending_bound_s, static_bound_s
from swingshift.sim.pool import Workers
from swingshift.sim.presets import check_scenario
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario, with_lending
from swingshift.sim.scenario_world import num_groups, split_of
from swingshift.sim.work import work_of

PLAN_CYCLES = 16
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""Two-sided 95% quantiles of Student's t for 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One split. ``wall_s`` are whole runs, scaled up from the simulated cycles, one a seed."""

    trainer_devices: int
    rollout_devices: int
    lending: bool
    bound_s: float
    wall_s: tuple[float, ...] = ()

    @property
    def median_s(self) -> float:
        return statistics.median(self.wall_s)

    @property
    def split(self) -> str:
        return f"{self.trainer_devices}+{self.rollout_devices}"


@dataclass(frozen=True, slots=True)
class Plan:
    """``saved_s``: mean over seeds of what lending saves against the best static split, and its 95% interval."""

    static: Candidate | None
    lending: Candidate
    saved_s: float | None
    saved_low_s: float | None
    saved_high_s: float | None
    why: str
    simulated: tuple[Candidate, ...]
    num_pruned: int


def plan(
    scenario: Scenario,
    num_devices: int,
    *,
    num_cycles: int = PLAN_CYCLES,
    num_seeds: int = 3,
    num_processes: int | None = None,
    on_result: Callable[[Candidate], None] = lambda candidate: None,
) -> Plan:
    """Search all splits in multiples of ``devices_per_replica``. Raises ConfigError if none is possible."""
    size = scenario.cluster.devices_per_replica
    if num_devices < size or num_devices % size:
        raise ConfigError(
            f"--devices={num_devices}: is no positive multiple of cluster.devices_per_replica={size}; "
            "change one of them"
        )
    whole_s = _whole_run_factor(scenario, num_cycles)
    short = _shortened(scenario, num_cycles)
    with Workers(num_processes) as workers:
        search = _Search(short, whole_s, num_seeds, workers, on_result)
        static, pruned_static = search.best(_candidates(short, num_devices, False))
        lending, pruned_lending = search.best(_candidates(short, num_devices, True))
    assert lending is not None, "lending is possible with any number of devices"
    saved = None if static is None else [s - d for s, d in zip(static.wall_s, lending.wall_s, strict=True)]
    mean_s, half_s = (None, None) if saved is None else mean_and_half_width(saved)
    return Plan(
        static,
        lending,
        mean_s,
        None if mean_s is None or half_s is None else mean_s - half_s,
        None if mean_s is None or half_s is None else mean_s + half_s,
        explain(short, static, lending),
        tuple(search.simulated),
        pruned_static + pruned_lending,
    )


def with_split(scenario: Scenario, trainer_devices: int, rollout_devices: int, lending: bool) -> Scenario:
    cluster = scenario.cluster.model_copy(
        update={"trainer_devices": trainer_devices, "rollout_devices": rollout_devices}
    )
    return with_lending(scenario.model_copy(update={"cluster": cluster}), lending)


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half of its 95% interval; no interval from a single value."""
    mean, n = statistics.mean(values), len(values)
    if n == 1:
        return mean, None
    quantile = T_95[n - 2] if n - 2 < len(T_95) else 2.0
    return mean, quantile * statistics.stdev(values) / math.sqrt(n)


def explain(scenario: Scenario, static: Candidate | None, lending: Candidate) -> str:
    """Which term of the bound holds the better of the two back, and what lending can win at most."""
    if static is None:
        return "one engine's devices cannot be split, so training and rollout take turns on all of them"
    chosen = with_split(scenario, lending.trainer_devices, lending.rollout_devices, True)
    work, split = work_of(chosen), split_of(chosen)
    held = (
        f"training alone fills {lending.bound_s / lending.median_s:.0%} of its time: the trainer binds"
        if binding_term(work, split) == "training"
        else f"all devices together are the limit, and {lending.bound_s / lending.median_s:.0%} of it is reached"
    )
    share = work.train_s / (work.train_s + work.rollout_s)
    return (
        f"training is {share:.0%} of the work; {static.split} without lending can do no better than "
        f"{static.bound_s / 3600:.3f} h, {lending.split} with lending no better than {lending.bound_s / 3600:.3f} h; "
        f"with {lending.split}, {held}"
    )


class _Search:
    """Simulates candidates, the most promising first, until no bound beats the best run."""

    def __init__(
        self,
        scenario: Scenario,
        factor: float,
        num_seeds: int,
        workers: Workers,
        on_result: Callable[[Candidate], None],
    ) -> None:
        self.simulated: list[Candidate] = []
        self._scenario = scenario
        self._factor = factor
        self._num_seeds = num_seeds
        self._workers = workers
        self._on_result = on_result

    def best(self, candidates: Sequence[Candidate]) -> tuple[Candidate | None, int]:
        """The fastest by median, and how many were never simulated."""
        best: Candidate | None = None
        queue = sorted(candidates, key=lambda c: c.bound_s)
        for index, candidate in enumerate(queue):
            if best is not None and candidate.bound_s * self._factor >= best.median_s:
                return best, len(queue) - index
            done = self._simulate(candidate)
            if best is None or done.median_s < best.median_s:
                best = done
        return best, 0

    def _simulate(self, candidate: Candidate) -> Candidate:
        scenario = with_split(self._scenario, candidate.trainer_devices, candidate.rollout_devices, candidate.lending)
        seeds = [with_seed(scenario, scenario.workload.seed + k) for k in range(self._num_seeds)]
        walls = [0.0] * len(seeds)
        for index, summary in self._workers.map(run_scenario, seeds):
            walls[index] = summary["wall_s"] * self._factor
        done = Candidate(
            candidate.trainer_devices,
            candidate.rollout_devices,
            candidate.lending,
            candidate.bound_s * self._factor,
            tuple(walls),
        )
        self.simulated.append(done)
        self._on_result(done)
        return done


def _candidates(scenario: Scenario, num_devices: int, lending: bool) -> list[Candidate]:
    """Every split that can work; a static one needs devices on both sides."""
    size, found = scenario.cluster.devices_per_replica, []
    for trainer in range(size, num_devices + 1, size):
        rollout = num_devices - trainer
        if rollout == 0 and not lending:
            continue
        split = with_split(scenario, trainer, rollout, lending)
        check_scenario(split)
        work = work_of(split, lending=lending)
        bound_s = (lending_bound_s if lending else static_bound_s)(work, split_of(split))
        found.append(Candidate(trainer, rollout, lending, bound_s))
    return found


def _shortened(scenario: Scenario, num_cycles: int) -> Scenario:
    """The first cycles only."""
    cycles = min(num_cycles, scenario.workload.num_cycles)
    workload = scenario.workload.model_copy(update={"num_cycles": cycles, "num_groups": None})
    return scenario.model_copy(update={"workload": workload})


def _whole_run_factor(scenario: Scenario, num_cycles: int) -> float:
    return num_groups(scenario) / num_groups(_shortened(scenario, num_cycles))
