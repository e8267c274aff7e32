"""``swingshift report``: one run, or several over each other, as one page that needs nothing but a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from swingshift import __version__
from swingshift.core.types import DeviceState
from swingshift.errors import ConfigError
from swingshift.observe.colors import DARK, DASHES, LIGHT, Theme
from swingshift.observe.event_files import DECISIONS_FILE
from swingshift.observe.output_file import output_file
from swingshift.observe.report_charts import (
    CHARTS,
    TIME,
    chart_metrics,
    cycle_series,
    level_series,
    validation_points,
)
from swingshift.observe.report_lanes import MAX_BYTES, lane_data
from swingshift.observe.report_tables import decisions_section, settings_table, summary_table
from swingshift.observe.run_reader import METRICS_FILE, Column, RunFolder, open_runs
from swingshift.observe.spans import STATES, Lane
from swingshift.observe.summary import RunTotals, format_seconds, summarise

_PAGE_FOLDER = Path(__file__).with_name("report_page")
_SCRIPTS = ("page.js", "charts.js", "lane_data.js", "lane_traces.js", "lanes.js")


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Raises ConfigError if a folder is not a run's, has no finished cycle, or a file cannot be read or written."""
    runs = open_runs(folders)
    with output_file(out) as file:
        file.write(compose_page(runs))


def compose_page(runs: Sequence[tuple[str, RunFolder]]) -> str:
    data, summaries, decisions = [], {}, []
    for name, run in runs:
        columns = run.cycles(chart_metrics())
        if not len(columns["step"]):
            raise ConfigError(
                f"{run.folder / METRICS_FILE}: has no finished cycle; report the run once it has finished one"
            )
        lanes = run.lanes()
        length_s = _length_s(columns, lanes)
        data.append(_run_data(name, run, columns, lanes, length_s, MAX_BYTES // len(runs)))
        summaries[name] = run.summary() or _summary_so_far(run, lanes, length_s)
        recorded = (run.folder / DECISIONS_FILE).exists()
        decisions.append(decisions_section(name, run.decisions(), was_recorded=recorded))
    names = [name for name, _ in runs]
    parts = {
        "title": escape(" · ".join(names)),
        "heading": escape(names[0] if len(names) == 1 else f"{len(names)} runs"),
        "style": _theme_css(LIGHT, DARK) + _read("style.css"),
        "summary": summary_table(summaries),
        "decisions": "\n".join(decisions),
        "settings": settings_table({name: run.settings() for name, run in runs}),
        "notes": _notes(data),
        "version": escape(__version__),
        "data": _script_json({"runs": data, "charts": [asdict(chart) for chart in CHARTS], "dashes": DASHES}),
        "plotly": _plotly(),
        "scripts": "\n".join(_read(name) for name in _SCRIPTS),
    }
    # In one pass, so that nothing a run contains is taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _read("page.html"))


def _run_data(
    name: str, run: RunFolder, columns: Mapping[str, Column], lanes: Sequence[Lane], length_s: float, max_bytes: int
) -> dict[str, Any]:
    return {
        "name": name,
        "is_simulated": run.is_simulated,
        "length_s": length_s,
        "cycles": cycle_series(columns),
        "validation": validation_points(run),
        "levels": level_series(run),
        "lanes": lane_data(lanes, length_s, max_bytes),
    }


def _length_s(columns: Mapping[str, Column], lanes: Sequence[Lane]) -> float:
    ends = [float(lane.end_s[-1]) for lane in lanes if len(lane.end_s)]
    last = float(columns[TIME][-1])
    return max([1e-3, *ends, *([last] if last == last else [])])


def _summary_so_far(run: RunFolder, lanes: Sequence[Lane], length_s: float) -> dict[str, Any]:
    """Of a run without ``summary.json``: it was killed, or still goes on."""
    seconds = {lane.device: _seconds(lane) for lane in lanes}
    totals = RunTotals.of_file(run.folder / METRICS_FILE)
    return summarise(totals, seconds, wall_s=length_s, exit_reason="has not ended, or was killed")


def _seconds(lane: Lane) -> dict[DeviceState, float]:
    spent = lane.end_s - lane.start_s
    return {state: float(spent[lane.state == i].sum()) for i, state in enumerate(STATES)}


# --- what was left out ---------------------------------------------------------------------------------------------


def _notes(data: Sequence[Mapping[str, Any]]) -> str:
    lines = [line for run in data for line in _notes_of(run)]
    return "".join(f"<li>{escape(line)}</li>" for line in lines) or "<li>Nothing: all of it is here.</li>"


def _notes_of(run: Mapping[str, Any]) -> list[str]:
    name, lanes, levels, per_point = run["name"], run["lanes"], run["levels"], run["cycles"]["per_point"]
    lines = []
    if lanes["kind"] == "bins":
        lines.append(
            f"{name}: its {lanes['num_spans']:,} device spans are too many for a page and are shown as shares of "
            f"{format_seconds(lanes['bin_s'])} each; timeline.jsonl and `swingshift trace` have all."
        )
    if per_point > 1:
        lines.append(f"{name}: each point of a curve is the mean of {per_point} cycles (dotted: the largest).")
    if levels["num_points"] > 2 * levels["num_bins"]:
        lines.append(
            f"{name}: of its {levels['num_points']:,} queue levels the page has the lowest and the highest of each "
            f"{format_seconds(run['length_s'] / levels['num_bins'])}."
        )
    return lines


# --- parts of the page ---------------------------------------------------------------------------------------------


def _read(name: str) -> str:
    return (_PAGE_FOLDER / name).read_text(encoding="utf-8")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs  # takes its time

    return str(get_plotlyjs())


def _script_json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it ends the element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _theme_css(light: Theme, dark: Theme) -> str:
    return (
        f":root {{ color-scheme: light dark; {_variables(light)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(dark)} }} }}\n"
    )


def _variables(theme: Theme) -> str:
    named = {
        "background": theme.background,
        "surface": theme.surface,
        "ink": theme.ink,
        "muted": theme.muted,
        "line": theme.line,
        **{f"state-{state.value}": color for state, color in theme.states.items()},
        **{f"run-{i}": color for i, color in enumerate(theme.runs)},
    }
    return " ".join(f"--{name}: {value};" for name, value in named.items())
