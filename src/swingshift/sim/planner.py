"""How to split a number of devices, and whether lending pays: by simulation, pruned by the bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swingshift.errors import ConfigError
from swingshift.sim.plan_reason import explain, shares_of
from swingshift.sim.pool import Workers
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_world import num_groups, step_required_samples
from swingshift.sim.splits import Candidate, splits_of, with_split
from swingshift.sim.students_t import students_t

PLAN_CYCLES = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """``saved_s``: mean over seeds of what lending saves against the best static split, and its 95% interval.

    ``dropped``: splits that memory does not hold, without and with lending, and why.
    """

    static: Candidate | None
    lending: Candidate
    saved_s: float | None
    saved_low_s: float | None
    saved_high_s: float | None
    why: str
    simulated: tuple[Candidate, ...]
    num_pruned: int
    dropped: tuple[tuple[str, str], ...]


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
    short = _shortened(scenario, num_cycles)
    whole_s = num_groups(scenario) / num_groups(short)
    alone, lent = splits_of(short, num_devices, False), splits_of(short, num_devices, True)
    if not lent.possible:
        _raise_nothing_fits(num_devices, lent.dropped)
    with Workers(num_processes) as workers:
        search = _Search(short, whole_s, num_seeds, workers, on_result)
        static, pruned_static = search.best(alone.possible)
        lending, pruned_lending = search.best(lent.possible)
    assert lending is not None
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
        (*alone.dropped.items(), *lent.dropped.items()),
    )


def _raise_nothing_fits(num_devices: int, dropped: Mapping[str, str]) -> None:
    # The split with the most trainer devices is the one that lacks least.
    split, why = list(dropped.items())[-1]
    raise ConfigError(f"--devices={num_devices}: no split fits into memory, not even {split}: {why}")


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and half of its 95% interval; no interval from a single value."""
    mean, n = statistics.mean(values), len(values)
    if n == 1:
        return mean, None
    return mean, students_t(n - 1) * statistics.stdev(values) / math.sqrt(n)


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
        summaries = dict(self._workers.map(run_scenario, seeds))
        done = replace(
            candidate,
            bound_s=candidate.bound_s * self._factor,
            wall_s=tuple(self._whole_s(summaries[k]) for k in range(len(seeds))),
            shares=shares_of(list(summaries.values())),
        )
        self.simulated.append(done)
        self._on_result(done)
        return done

    def _whole_s(self, summary: Mapping[str, Any]) -> float:
        """What training on all groups takes at this pace. A run that evicts many trains on fewer, and ends sooner."""
        num_trained, wall_s = int(summary["num_consumed_groups"]), float(summary["wall_s"])
        return wall_s * (self._factor * num_groups(self._scenario) / max(1, num_trained))


def _shortened(scenario: Scenario, num_cycles: int) -> Scenario:
    """The first cycles only; the whole scenario if it has no more."""
    groups = num_cycles * step_required_samples(scenario)
    if groups >= num_groups(scenario):
        return scenario
    workload = scenario.workload.model_copy(update={"num_cycles": num_cycles, "num_groups": None})
    return scenario.model_copy(update={"workload": workload})
