"""How near each policy comes to the work-conserving bound, over the suite of simulated workloads.

Prints T*/T of every policy on every workload beside the same split without lending and the best static split of as
many devices that fits into memory. ``--quick`` shortens every run to 4 cycles and skips the workloads above 64
devices.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swingshift.schedule import available_policies
from swingshift.sim.pool import Workers
from swingshift.sim.presets import load_scenario, suite_names
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario
from swingshift.sim.split_search import best_static
from swingshift.sim.splits import with_split

QUICK_CYCLES = 4
QUICK_DEVICES = 64


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


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a policy (None: without lending), or the search for the best static split."""

    workload: str
    seed: int
    scenario: Scenario
    policy: str | None = None
    searches: bool = False


def jobs_of(scenario: Scenario, policies: Sequence[str], seed: int) -> list[Job]:
    """The longest first."""
    seeded, cluster = with_seed(scenario, seed), scenario.cluster
    jobs = [Job(scenario.name, seed, seeded, searches=True)]
    jobs += [Job(scenario.name, seed, with_policy(seeded, policy), policy) for policy in policies]
    if cluster.rollout_devices:
        static = with_split(seeded, cluster.trainer_devices, cluster.rollout_devices, False)
        jobs.append(Job(scenario.name, seed, static))
    return jobs


def run_job(job: Job) -> dict[str, Any]:
    if job.searches:
        found = best_static(job.scenario)
        return {"wall_s": found.wall_s, "split": f"{found.trainer_devices}+{found.rollout_devices}"}
    summary = run_scenario(job.scenario)
    return {"wall_s": summary["wall_s"], "efficiency": summary["efficiency"]}


def measure(scenarios: Sequence[Scenario], policies: Sequence[str], num_seeds: int, jobs: int | None) -> list[Any]:
    """A list of ``{workload, policy, seed, wall_s, efficiency, static_same_split_s, best_static_s, …}``."""
    todo = [job for seed in range(num_seeds) for s in scenarios for job in jobs_of(s, policies, seed)]
    results: list[dict[str, Any]] = [{}] * len(todo)
    with Workers(jobs) as workers:
        for index, result in workers.map(run_job, todo):
            results[index] = result
            if sys.stderr.isatty():
                print(f"\r{sum(map(bool, results))} of {len(todo)} jobs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    pairs = list(zip(todo, results, strict=True))
    best = {(job.workload, job.seed): result for job, result in pairs if job.searches}
    same = {(j.workload, j.seed): r["wall_s"] for j, r in pairs if j.policy is None and not j.searches}
    return [
        {
            "workload": job.workload,
            "policy": job.policy,
            "seed": job.seed,
            **result,
            "static_same_split_s": same.get((job.workload, job.seed)),
            "best_static_s": best[job.workload, job.seed]["wall_s"],
            "best_static_split": best[job.workload, job.seed]["split"],
        }
        for job, result in pairs
        if job.policy is not None
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
