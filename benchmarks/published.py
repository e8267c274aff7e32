"""The tables of the published runs in docs/simulator.md: what was fitted, what was predicted, and from what.

``qwen3.5-35b-a3b-dapo`` as shipped: both static splits and the run with lending. ``separate-async-24xh100`` as
shipped, and for other assumed training speeds: the rollout speed is fitted to the run without switching, and the run
with it is predicted. All steps of every run are simulated, which takes minutes. ``--fit`` also fits the two speeds of
the first preset anew.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from swingshift.sim.fit import fit_rollout, fit_speeds, with_speeds
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import Scenario, with_lending

DAPO, SEPARATE = "qwen3.5-35b-a3b-dapo", "separate-async-24xh100"
WIDE = ("cluster.trainer_devices=8", "cluster.rollout_devices=24")
HOUR = 3600.0
TOTAL_16_16_S, TOTAL_8_24_S, TOTAL_LENT_S = 6.546 * HOUR, 5.4 / (1 - 0.153) * HOUR, 5.4 * HOUR
TOTAL_ALONE_S = 18.80 * HOUR
TRAIN_SPEEDS = (0.40, 0.30, 0.25, 0.22)


def run(scenario: Scenario) -> dict[str, Any]:
    """The summary, with the mean queue at a cycle's end."""
    queue: list[float] = []
    summary = run_scenario(scenario, on_report=lambda report: queue.append(report.row["dynamic_resource/mq_size"]))
    return {**summary, "queue": statistics.mean(queue)}


def dapo() -> None:
    print(
        f"{'':<26}{'published':>10}{'simulated':>10}{'error':>8}{'queue':>7}{'rollout':>9}{'train':>7}{'cluster':>9}"
    )
    for name, lending, overrides, published_s in (
        ("16+16 without lending", False, (), TOTAL_16_16_S),
        ("8+24 without lending", False, WIDE, TOTAL_8_24_S),
        ("16+16 with lending", True, (), TOTAL_LENT_S),
    ):
        found = run(with_lending(load_scenario(DAPO, overrides), lending))
        shares = [found[f"{key}resource_utilization"] for key in ("rollout_", "train_", "")]
        print(
            f"{name:<26}{published_s / HOUR:>8.3f} h{found['wall_s'] / HOUR:>8.3f} h"
            f"{found['wall_s'] / published_s - 1:>8.1%}{found['queue']:>7.0f}"
            f"{shares[0]:>9.0%}{shares[1]:>7.0%}{shares[2]:>9.0%}"
        )
        if lending:
            print(f"a round trip takes {found['switch_s'] / found['num_activations']:.2f} s")


def fit_dapo() -> None:
    narrow, wide = (with_lending(load_scenario(DAPO, overrides), False) for overrides in ((), WIDE))
    print(fit_speeds((narrow, TOTAL_16_16_S), (wide, TOTAL_8_24_S)))


def separate(train_speed: float | None) -> None:
    """One row; None: the preset as it is."""
    overrides = [] if train_speed is None else [f"efficiency.train_speed={train_speed}"]
    scenario = load_scenario(SEPARATE, overrides)
    if train_speed is not None:
        scenario = with_speeds(scenario, fit_rollout(with_lending(scenario, False), TOTAL_ALONE_S).speeds)
    alone, lent = run(with_lending(scenario, False)), run(with_lending(scenario, True))
    busy = alone["device_seconds"]["hybrid-0"]["train"] / alone["wall_s"]
    speeds = scenario.efficiency
    print(
        f"{speeds.train_speed:<6}{speeds.rollout_speed:>8.4f}{busy:>6.0%}"
        f"{alone['wall_s'] / HOUR:>8.2f} h{lent['wall_s'] / HOUR:>8.2f} h"
        f"{alone['tokens_per_s']:>9,.0f} → {lent['tokens_per_s']:<8,.0f}"
        f"{alone['staleness_mean']:.2f} → {lent['staleness_mean']:.2f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the two speeds of the first preset anew, too")
    options = parser.parse_args(arguments)
    dapo()
    if options.fit:
        fit_dapo()
    print(f"\n{'train':<6}{'rollout':>8}{'busy':>6}{'alone':>10}{'switching':>10}{'tokens/s':>14}{'staleness':>21}")
    for train_speed in (None, *TRAIN_SPEEDS):
        separate(train_speed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
