"""Does the simulator predict what lending does to a real run? The demo, live, against its own calibrated simulation.

Per seed: a static run, live; a scenario fitted to that run alone; the simulated wall time with lending, written down
before anything lends; then the same with lending, live. Both live runs start from the same warm-started model and
train on as many groups. Wall time is ``wall_s`` of ``summary.json``: from the first weight sync to the end, without
starting Ray and loading the model. Prints measured and simulated times, writes ``results.json`` and each scenario.
The exit code is 1 if the median error with lending is above 10%. Whatever else uses the cores spoils it: ``load`` is
the machine's load (of one minute) just before each live run, which a static run of our own raises to about 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from swingshift.sim.calibration_data import read_run
from swingshift.sim.calibration_fit import calibrate
from swingshift.sim.calibration_report import write_scenario
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario, with_lending

CONFIGS = Path(__file__).parent.parent / "configs"
STATIC, DYNAMIC = ["demo.yaml", "demo_static.yaml"], ["demo.yaml"]
TARGET = 0.10
SIMULATED_SEEDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/live-vs-simulated"))
    parser.add_argument("--groups", type=int, default=1280, help="sample groups a run trains on")
    parser.add_argument("--repeats", type=int, default=3, help="seeds, each with two live runs")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="passed to every live run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    overrides = [f"rollout.total_rollout_steps={args.groups}", *args.overrides]
    results = []
    for seed in range(args.repeats):
        results.append(compare(args.out, seed, overrides))
        (args.out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    return report(results)


def compare(out: Path, seed: int, overrides: list[str]) -> dict[str, Any]:
    """One seed: measure, calibrate, predict, measure again."""
    loads = [os.getloadavg()[0]]
    static = run_live(STATIC, out / f"static-{seed}", seed, overrides)
    calibration = calibrate([read_run(out / f"static-{seed}")])
    scenario = calibration.scenario
    write_scenario(scenario, out / f"scenario-{seed}.yaml")
    predictions = {"static": simulated_s(scenario), "dynamic": simulated_s(with_lending(scenario, True))}
    (out / f"predictions-{seed}.json").write_text(json.dumps(predictions, indent=2) + "\n")
    model = out / f"static-{seed}" / "init_model"
    loads.append(os.getloadavg()[0])
    dynamic = run_live(DYNAMIC, out / f"dynamic-{seed}", seed, [*overrides, f"actor_rollout_ref.model.path={model}"])
    return {
        "seed": seed,
        "loads_before": loads,
        "static_s": static,
        "dynamic_s": dynamic,
        "simulated_static_s": predictions["static"],
        "simulated_dynamic_s": predictions["dynamic"],
        "fits": {name: {"r2": f.r2, "relative_error": f.relative_error} for name, f in calibration.fits.items()},
    }


def run_live(files: list[str], folder: Path, seed: int, overrides: list[str]) -> float:
    """``wall_s`` of a live run."""
    command = [sys.executable, "-m", "swingshift", "-q", "train", *(str(CONFIGS / name) for name in files)]
    command += [f"trainer.default_local_dir={folder}", "trainer.overwrite=true", f"trainer.seed={seed}"]
    command += [f"data.seed={seed}", "trainer.logger=jsonl", *overrides]
    subprocess.run(command, check=True)
    return float(json.loads((folder / "summary.json").read_text())["wall_s"])


def simulated_s(scenario: Scenario) -> float:
    """Median over seeds: the response lengths are drawn, not those of the live run."""
    return statistics.median(run_scenario(with_seed(scenario, seed))["wall_s"] for seed in range(SIMULATED_SEEDS))


def report(results: list[dict[str, Any]]) -> int:
    table = Table(title="Live and simulated wall time, calibrated on the static run alone", title_justify="left")
    for name in ("seed", "run", "load", "live", "simulated", "error"):
        table.add_column(name, justify="left" if name == "run" else "right")
    errors: dict[str, list[float]] = {"static": [], "dynamic": []}
    for result in results:
        for (mode, found), load in zip(errors.items(), result["loads_before"], strict=True):
            live, simulated = result[f"{mode}_s"], result[f"simulated_{mode}_s"]
            found.append(simulated / live - 1.0)
            figures = (f"{load:.1f}", f"{live:.2f} s", f"{simulated:.2f} s", f"{found[-1]:+.1%}")
            table.add_row(str(result["seed"]), mode, *figures)
    Console(width=100).print(table)
    speedups = [(r["static_s"] / r["dynamic_s"], r["simulated_static_s"] / r["simulated_dynamic_s"]) for r in results]
    live, simulated = (statistics.median(pair[i] for pair in speedups) for i in (0, 1))
    print(f"lending makes the run {live:.2f} times as fast live, {simulated:.2f} times simulated")
    error = statistics.median(errors["dynamic"])
    verdict = "within" if abs(error) <= TARGET else "NOT within"
    print(f"median error with lending {error:+.1%}: {verdict} {TARGET:.0%}")
    return 0 if abs(error) <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
