"""What the simulator's commands do; returns what to show, prints nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from swingshift.observe.summary import format_seconds, render_summary
from swingshift.runtime.cycle_report import CycleReport
from swingshift.sim import calibration_report, planner, sweep
from swingshift.sim.calibration_data import read_run
from swingshift.sim.calibration_fit import calibrate
from swingshift.sim.compare import Spread, compare, parse_item
from swingshift.sim.presets import load_scenario, preset_names, suite_names
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_world import num_groups, step_required_samples
from swingshift.sim.splits import Candidate

Shown = list[RenderableType]


# --- simulate -----------------------------------------------------------------------------------------------


def list_presets(*, as_json: bool = False) -> Shown:
    """For ``simulate`` without a preset."""
    if as_json:
        scenarios = [load_scenario(name) for name in preset_names()]
        return [_json([{"name": s.name, "devices": _split(s), "description": s.description} for s in scenarios])]
    table = Table(box=None, padding=(0, 2, 0, 0), title="Presets", title_justify="left")
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("devices", no_wrap=True)
    table.add_column("what it is")
    suite = suite_names()
    for name in sorted(preset_names(), key=lambda name: (name in suite, name)):
        scenario = load_scenario(name)
        table.add_row(name, _split(scenario), scenario.description)
    return [table]


def explain_scenario(scenario: Scenario) -> Shown:
    """Its description, where its figures come from and what was assumed."""
    lines = [f"{scenario.name}: {scenario.description}"]
    for title, texts in (("sources", scenario.sources), ("assumptions", scenario.assumptions)):
        lines += [f"{title}:", *(f"  - {text}" for text in texts)] if texts else []
    return ["\n".join(lines) + "\n"]


def simulate(
    source: str,
    overrides: Sequence[str],
    *,
    out: str | None = None,
    seed: int | None = None,
    as_json: bool = False,
    explain: bool = False,
) -> Shown:
    """Raises ConfigError for wrong input, before anything is written."""
    scenario = load_scenario(source, overrides)
    if seed is not None:
        scenario = with_seed(scenario, seed)
    if explain:
        return explain_scenario(scenario)
    num_cycles = -(-num_groups(scenario) // step_required_samples(scenario))
    with _progress("simulating", num_cycles) as advance:

        def on_report(report: CycleReport) -> None:
            advance()

        summary = run_scenario(scenario, out=None if out is None else Path(out), on_report=on_report)
    if as_json:
        return [_json(summary)]
    written = [f"everything is in {out}/ (run.png shows who did what when)\n"] if out is not None else []
    return [_without_lanes(summary), _bound_table(summary), *written]


def _without_lanes(summary: dict[str, Any]) -> RenderableType:
    """The table of a live run, with one line a kind of device instead of one a device."""
    kinds: dict[str, dict[str, float]] = {}
    for device, states in summary["device_seconds"].items():
        kind = kinds.setdefault(device.rpartition("-")[0], {})
        for state, seconds in states.items():
            kind[state] = kind.get(state, 0.0) + seconds
    return render_summary({**summary, "device_seconds": kinds})


def _bound_table(summary: dict[str, Any]) -> Table:
    table = Table(title="Work-conserving bound", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    alone = summary["static_bound_s"]
    split = summary["split"]
    table.add_row("training", f"{summary['train_work_device_s'] / 3600:,.2f} device-hours")
    table.add_row("rollout", f"{summary['rollout_work_device_s'] / 3600:,.2f} device-hours at its best batch")
    table.add_row("devices", f"{split['num_hybrid']} train, {split['num_standalone']} generate")
    table.add_row("without lending", "impossible" if alone is None else f"at least {format_seconds(alone)}")
    table.add_row("T*, with lending", f"at least {format_seconds(summary['bound_s'])} ({summary['bound_by']} binds)")
    table.add_row("T*/T", f"{summary['efficiency']:.1%}")
    return table


# --- compare ------------------------------------------------------------------------------------------------


def compare_items(
    texts: Sequence[str],
    overrides: Sequence[str],
    *,
    num_seeds: int = 1,
    as_json: bool = False,
    num_processes: int | None = None,
) -> Shown:
    """Raises ConfigError for wrong input."""
    items = [parse_item(text, overrides) for text in texts]
    with _progress("simulating", len(items) * num_seeds) as advance:
        rows = compare(items, num_seeds, num_processes, advance)
    if as_json:
        return [_json([{k: asdict(v) if isinstance(v, Spread) else v for k, v in row.items()} for row in rows])]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("item", "wall", "× first", "T*/T", "train", "rollout", "cluster", "lent", "staleness"):
        table.add_column(name, justify="left" if name == "item" else "right")
    for row in rows:
        table.add_row(
            row["item"],
            _spread(row["wall_s"], format_seconds),
            _spread(row["speedup"], lambda x: f"{x:.3f}"),
            *(_spread(row[f"{name}"], lambda x: f"{x:.0%}") for name in _SHARES),
            _spread(row["num_activations"], lambda x: f"{x:.0f}"),
            _spread(row["staleness_mean"], lambda x: f"{x:.2f}"),
        )
    seeds = "1 seed" if num_seeds == 1 else f"medians of {num_seeds} seeds (lowest–highest)"
    return [table, f"{seeds}; train, rollout, cluster: utilization; × first: how many times as fast as the first\n"]


_SHARES = ("efficiency", "train_resource_utilization", "rollout_resource_utilization", "resource_utilization")


def _spread(spread: Spread, show: Any) -> str:
    if show(spread.low) == show(spread.high):
        return str(show(spread.median))
    return f"{show(spread.median)} ({show(spread.low)}–{show(spread.high)})"


# --- sweep --------------------------------------------------------------------------------------------------


def run_sweep(
    source: str,
    overrides: Sequence[str],
    *,
    axes: Sequence[str],
    out: str,
    num_seeds: int = 1,
    as_json: bool = False,
    num_processes: int | None = None,
) -> Shown:
    """Raises ConfigError for wrong input, before anything runs."""
    grid = sweep.parse_grid(axes)
    chosen = sweep.points(source, overrides, grid, num_seeds)
    todo = sweep.missing(chosen, Path(out))
    with _progress("simulating", len(todo)) as advance:
        sweep.sweep(todo, Path(out), num_processes, advance)
    if as_json:
        return [_json(sweep.records_of(chosen, Path(out)))]
    had = f", {len(chosen) - len(todo)} were there already" if len(todo) < len(chosen) else ""
    return [f"{len(todo)} points simulated{had}; all {len(chosen)} are in {out}\n"]


# --- plan ---------------------------------------------------------------------------------------------------


def run_plan(
    source: str,
    overrides: Sequence[str],
    *,
    num_devices: int,
    num_seeds: int = 3,
    num_cycles: int = planner.PLAN_CYCLES,
    as_json: bool = False,
    num_processes: int | None = None,
) -> Shown:
    """Raises ConfigError for wrong input."""
    scenario = load_scenario(source, overrides)
    with _progress("simulating splits", None) as advance:
        found = planner.plan(
            scenario,
            num_devices,
            num_cycles=num_cycles,
            num_seeds=num_seeds,
            num_processes=num_processes,
            on_result=lambda candidate: advance(),
        )
    if as_json:
        return [_json(_plan_record(scenario, num_devices, found))]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("split", "lending", "wall", "at least"):
        table.add_column(name, justify="left" if name in ("split", "lending") else "right")
    for candidate in sorted(found.simulated, key=lambda c: c.median_s):
        best = candidate in (found.static, found.lending)
        spread = Spread(candidate.median_s, min(candidate.wall_s), max(candidate.wall_s))
        table.add_row(
            candidate.split,
            "yes" if candidate.lending else "no",
            _spread(spread, format_seconds),
            format_seconds(candidate.bound_s),
            style="bold" if best else None,
        )
    return [table, _plan_text(found)]


def _plan_text(found: planner.Plan) -> str:
    lines = [f"{found.num_pruned} splits were not simulated: their bounds are above the best run."]
    if found.dropped:
        split, why = found.dropped[-1]
        lines.append(f"{len(found.dropped)} splits do not fit into memory, such as {split}: {why}.")
    if found.static is not None:
        lines.append(f"Best without lending: {found.static.split}, {format_seconds(found.static.median_s)}.")
    lines.append(f"Best with lending:    {found.lending.split}, {format_seconds(found.lending.median_s)}.")
    if found.saved_s is not None and found.static is not None:
        interval = (
            "one seed, so no interval"
            if found.saved_low_s is None or found.saved_high_s is None
            else f"95% interval {_signed(found.saved_low_s)} to {_signed(found.saved_high_s)}"
        )
        share = found.saved_s / found.static.median_s
        lines.append(f"Lending saves {_signed(found.saved_s)} ({share:+.1%}; {interval}).")
    lines.append(f"Why: {found.why}.")
    return "".join(f"{line}\n" for line in lines)


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _plan_record(scenario: Scenario, num_devices: int, found: planner.Plan) -> dict[str, Any]:
    def hours(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / 3600

    return {
        "name": scenario.name,
        "num_devices": num_devices,
        "best_static": None if found.static is None else _candidate(found.static),
        "best_lending": _candidate(found.lending),
        "saved_h": hours(found.saved_s),
        "saved_low_h": hours(found.saved_low_s),
        "saved_high_h": hours(found.saved_high_s),
        "why": found.why,
        "simulated": [_candidate(candidate) for candidate in found.simulated],
        "num_pruned": found.num_pruned,
        "num_dropped": len(found.dropped),
        "dropped_because": found.dropped[-1][1] if found.dropped else None,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"split": candidate.split, **asdict(candidate), "median_s": candidate.median_s}


# --- calibrate ----------------------------------------------------------------------------------------------


def run_calibration(folders: Sequence[str], *, out: str | None = None, as_json: bool = False) -> Shown:
    """Raises ConfigError for wrong input, before anything is written."""
    runs = [read_run(Path(folder)) for folder in folders]
    if out is not None:
        calibration_report.check_output(Path(out))
    result = calibrate(runs)
    with _progress("simulating", len(runs)) as advance:
        checks = calibration_report.check_by_simulation(runs, result, advance)
    if out is not None:
        calibration_report.write_scenario(result.scenario, Path(out))
    if as_json:
        return [_json(calibration_report.record_of(result, checks))]
    written = f"\nthe scenario is in {out}\n" if out is not None else "\n--out FILE.yaml writes the scenario\n"
    return [*calibration_report.tables_of(result, checks), written]


# --- shared -------------------------------------------------------------------------------------------------


def _split(scenario: Scenario) -> str:
    return f"{scenario.cluster.trainer_devices}+{scenario.cluster.rollout_devices}"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Any]:
    """A bar on standard error, if that is a terminal; gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
