"""The demo several ways on the same devices: static, with lending (dynamic), and colocated.

``--modes separate-static separate-async`` compares training in global steps without and with lending.
Every run consumes the same number of groups of the same task from the same warm-started model. Modes are
interleaved, so that a machine that slows down slows all of them. Prints medians and the spread over seeds, writes
``summary.json`` (a list, one object a run) and ``compare.png`` (reward curves over groups and over time).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

CONFIGS = Path(__file__).parent.parent / "configs"
NO_SWITCH = "trainer.v1.separate_async.hybrid_rollout.enable_switch=false"
MODES: dict[str, list[str]] = {
    "static": ["demo.yaml", "demo_static.yaml"],
    "dynamic": ["demo.yaml"],
    "colocated": ["demo.yaml", "demo_colocated.yaml"],
    "separate-static": ["demo_separate_async.yaml", NO_SWITCH],
    "separate-async": ["demo_separate_async.yaml"],
}
"""Files and overrides of each way."""
USUAL = ["static", "dynamic", "colocated"]
PAIRS = [("static", "dynamic"), ("separate-static", "separate-async")]
"""Without and with lending, otherwise the same."""
COLORS = {
    "static": "#777777",
    "dynamic": "#1a6e4a",
    "colocated": "#d1792e",
    "separate-static": "#777777",
    "separate-async": "#1a6e4a",
}
KEPT = (
    "wall_s",
    "num_consumed_groups",
    "reward_first_tenth",
    "reward_last_tenth",
    "tokens_per_s",
    "num_activations",
    "switch_s",
    "train_resource_utilization",
    "rollout_resource_utilization",
    "resource_utilization",
    "device_busy_ratio",
    "staleness_mean",
    "exit_reason",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/compare-demo"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, default=1920, help="sample groups a run trains on")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=USUAL)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="passed to every run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    overrides = [f"rollout.total_rollout_steps={args.groups}", *args.overrides]
    results = []
    for seed in range(args.repeats):
        model: Path | None = None
        for mode in args.modes:
            folder = args.out / f"{mode}-{seed}"
            run(mode, seed, folder, model, overrides)
            # The first run of a seed built the warm-started model; the others start from the same one.
            model = model or folder / "init_model"
            summary = json.loads((folder / "summary.json").read_text())
            results.append({"mode": mode, "seed": seed, **{key: summary[key] for key in KEPT}})
            print(f"{mode} seed {seed}: {summary['wall_s']:.1f} s, reward {summary['reward_last_tenth']:.3f}")
    (args.out / "summary.json").write_text(json.dumps(results, indent=2) + "\n")
    draw(args.out, args.modes, args.repeats)
    return report(results, args.modes)


def run(mode: str, seed: int, folder: Path, model: Path | None, overrides: list[str]) -> None:
    files = [str(CONFIGS / part) for part in MODES[mode] if part.endswith(".yaml")]
    command = [sys.executable, "-m", "swingshift", "-q", "train", *files]
    command += [part for part in MODES[mode] if not part.endswith(".yaml")]
    command += [f"trainer.default_local_dir={folder}", "trainer.overwrite=true", f"trainer.seed={seed}"]
    command += [f"data.seed={seed}", "trainer.logger=jsonl", *overrides]
    if model is not None:
        command.append(f"actor_rollout_ref.model.path={model}")
    subprocess.run(command, check=True)


def report(results: list[dict], modes: list[str]) -> int:
    """Print the table; 1 if lending did not beat the static split by more than the spread."""
    table = Table(title="The same groups, each way (median over seeds; min to max in brackets)", title_justify="left")
    for name in (
        "mode",
        "wall time",
        "vs static",
        "reward, last tenth",
        "train",
        "rollout",
        "cluster",
        "devices busy",
    ):
        table.add_column(name)

    def values(mode: str, key: str) -> list[float]:
        return [r[key] for r in results if r["mode"] == mode]

    def cell(mode: str, key: str, form: str) -> str:
        found = values(mode, key)
        return f"{statistics.median(found):{form}} [{min(found):{form}}–{max(found):{form}}]"

    baseline = next((static for static, _ in PAIRS if static in modes), None)
    for mode in modes:
        ratio = "–"
        if baseline is not None:
            pairs = zip(values(mode, "wall_s"), values(baseline, "wall_s"), strict=True)
            ratio = f"{statistics.median(a / b for a, b in pairs) - 1:+.1%}"
        table.add_row(
            mode,
            cell(mode, "wall_s", ".1f") + " s",
            ratio,
            cell(mode, "reward_last_tenth", ".3f"),
            *(
                f"{statistics.median(values(mode, key)):.1%}"
                for key in (
                    "train_resource_utilization",
                    "rollout_resource_utilization",
                    "resource_utilization",
                    "device_busy_ratio",
                )
            ),
        )
    console = Console()
    Console(width=max(console.width, 150)).print(table)
    verdicts = [beats(static, lent, values) for static, lent in PAIRS if {static, lent} <= set(modes)]
    return 0 if all(verdicts) else 1


def beats(static: str, lent: str, values: Callable[[str, str], list[float]]) -> bool:
    """Is the slowest run with lending faster than the fastest without?"""
    slowest, fastest = max(values(lent, "wall_s")), min(values(static, "wall_s"))
    verdict = "beats" if slowest < fastest else "does NOT beat"
    print(
        f"{lent} {verdict} {static} by more than the spread: slowest {slowest:.1f} s, fastest without {fastest:.1f} s"
    )
    return slowest < fastest


def draw(out: Path, modes: list[str], repeats: int) -> None:
    """Reward over consumed groups (they should overlap) and over time (lending should be ahead)."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    by_groups, by_time = figure.subplots(1, 2, sharey=True)
    for mode in modes:
        for seed in range(repeats):
            rows = [json.loads(line) for line in (out / f"{mode}-{seed}" / "metrics.jsonl").read_text().splitlines()]
            reward = smooth(np.array([r["critic/rewards/mean"] for r in rows]), max(1, len(rows) // 12))
            groups = np.cumsum([r["fully_async/trainer/step_consumed_samples"] for r in rows])
            seconds = np.array([r["training/time_s"] for r in rows])
            label = mode if seed == 0 else None
            for axes, x in ((by_groups, groups), (by_time, seconds)):
                axes.plot(x, reward, color=COLORS[mode], label=label, linewidth=1.4, alpha=0.85)
    by_groups.set(xlabel="sample groups trained on", ylabel="reward", title="The same learning …")
    by_time.set(xlabel="wall time (s)", title="… in less time")
    for axes in (by_groups, by_time):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    by_groups.legend(frameon=False)
    figure.savefig(out / "compare.png", dpi=110)


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred running mean; the window shrinks at the ends."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(0, index - width), np.minimum(len(values), index + width + 1)
    return (total[high] - total[low]) / (high - low)


if __name__ == "__main__":
    sys.exit(main())
