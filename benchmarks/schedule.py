"""How near each policy comes to the work-conserving bound, over the suite of simulated workloads.

Prints T*/T of every policy on every workload beside the same split without lending and the best static split of as
many devices. ``--quick`` shortens every run to 4 cycles and skips the workloads above 64 devices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swingshift.schedule import available_policies
from swingshift.sim.bound import static_bound_s
from swingshift.sim.planner import with_split
from swingshift.sim.pool import Workers
from swingshift.sim.presets import load_scenario, suite_names
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_world import split_of
from swingshift.sim.work import work_of

QUICK_CYCLES = 4
QUICK_DEVICES = 64
NUM_STATIC = 3
"""Static splits simulated per workload and seed: those with the least bounds, and the scenario's own."""


def choose(names: Sequence[str], quick: bool) -> list[Scenario]:
    scenarios = [load_scenario(name) for name in names]
    if not quick:
        return scenarios
    small = [s for s in scenarios if num_devices(s) <= QUICK_DEVICES]
    return [load_scenario(s.name, [f"workload.num_cycles={QUICK_CYCLES}"]) for s in small]


def num_devices(scenario: Scenario) -> int:
    return scenario.cluster.trainer_devices + scenario.cluster.rollout_devices


def with_policy(scenario: Scenario, policy: str) -> Scenario:
    schedule = scenario.async_training.model_copy(update={"dynamic_schedule_policy": policy})
    return scenario.model_copy(update={"async_training": schedule})


def static_splits(scenario: Scenario) -> list[Scenario]:
    """The scenario's own split first, then the most promising others."""
    cluster, total = scenario.cluster, num_devices(scenario)
    size = cluster.devices_per_replica
    splits = [with_split(scenario, a, total - a, False) for a in range(size, total, size)]
    work = work_of(splits[0], lending=False)
    splits.sort(key=lambda s: static_bound_s(work, split_of(s)))
    own = [with_split(scenario, cluster.trainer_devices, cluster.rollout_devices, False)]
    own = own if cluster.rollout_devices else []
    others = [s for s in splits if s.cluster.trainer_devices != cluster.trainer_devices]
    return [*own, *others[:NUM_STATIC]]


def measure(scenarios: Sequence[Scenario], policies: Sequence[str], num_seeds: int, jobs: int | None) -> list[Any]:
    """A list of ``{workload, policy, seed, wall_s, efficiency, static_same_split_s, best_static_s}``."""
    runs: list[tuple[str, str, int, bool]] = []
    todo: list[Scenario] = []
    for scenario in scenarios:
        for seed in range(num_seeds):
            for policy in policies:
                runs.append((scenario.name, policy, seed, False))
                todo.append(with_seed(with_policy(scenario, policy), seed))
            for static in static_splits(scenario):
                own = static.cluster == scenario.cluster
                runs.append((scenario.name, "", seed, own))
                todo.append(with_seed(static, seed))
    results: list[dict[str, Any]] = [{}] * len(todo)
    with Workers(jobs) as workers:
        for index, summary in workers.map(run_scenario, todo):
            results[index] = summary
            if sys.stderr.isatty():
                print(f"\r{sum(map(bool, results))} of {len(todo)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    same = {(w, s): r["wall_s"] for (w, p, s, own), r in zip(runs, results, strict=True) if not p and own}
    best: dict[tuple[str, int], float] = {}
    for (workload, policy, seed, _), result in zip(runs, results, strict=True):
        if not policy:
            best[workload, seed] = min(result["wall_s"], best.get((workload, seed), float("inf")))
    return [
        {
            "workload": workload,
            "policy": policy,
            "seed": seed,
            "wall_s": result["wall_s"],
            "efficiency": result["efficiency"],
            "static_same_split_s": same.get((workload, seed)),
            "best_static_s": best[workload, seed],
        }
        for (workload, policy, seed, _), result in zip(runs, results, strict=True)
        if policy
    ]


def show(rows: Sequence[dict[str, Any]], policies: Sequence[str]) -> None:
    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    print("T*/T (median over seeds), and the time relative to the best static split of as many devices")
    print(f"{'workload':<22}" + "".join(f"{policy:>26}" for policy in policies))
    totals: dict[str, list[float]] = {policy: [] for policy in policies}
    for workload in workloads:
        cells = []
        for policy in policies:
            mine = [row for row in rows if row["workload"] == workload and row["policy"] == policy]
            share = statistics.median(row["efficiency"] for row in mine)
            relative = statistics.median(row["wall_s"] / row["best_static_s"] for row in mine)
            totals[policy].append(share)
            cells.append(f"{share:>17.1%} ({relative:5.2f}×)")
        print(f"{workload:<22}" + "".join(f"{cell:>26}" for cell in cells))
    means = "".join(f"{statistics.geometric_mean(totals[policy]):>17.1%}{'':>9}" for policy in policies)
    print(f"{'geometric mean':<22}{means}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="short runs, small clusters only")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, help="processes; default: one a core")
    parser.add_argument("--workloads", nargs="+", default=suite_names(), metavar="NAME")
    parser.add_argument("--policies", nargs="+", default=list(available_policies()), metavar="NAME")
    options = parser.parse_args(arguments)
    num_seeds = 1 if options.quick else options.seeds
    rows = measure(choose(options.workloads, options.quick), options.policies, num_seeds, options.jobs)
    show(rows, options.policies)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
