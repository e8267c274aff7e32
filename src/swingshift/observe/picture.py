"""``run.png``: the reward, the queue, and which device did what when, over a whole run and close up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from swingshift.observe.lanes import (
    MAX_LANES,
    can_draw_spans,
    draw_shares,
    draw_spans,
    kind_of,
    legend_patches,
    some_of_each_kind,
)
from swingshift.observe.metric_rows import read_cycle_rows
from swingshift.observe.spans import Lane, read_lanes

_INK = "#222222"
_ACCENT = "#1B6E4B"
_ZOOM_CYCLES = 4
_ZOOM_LANES = 8
_MAX_BOUNDARIES = 60
_MIN_BINS, _MAX_BINS = 24, 160
_STYLE: dict[str, Any] = {"fontsize": 10, "color": _INK}


@dataclass(frozen=True, slots=True)
class Cycles:
    """One entry a cycle, each of shape [num_cycles]; NaN where a row lacks the value."""

    number: NDArray[np.float64]
    end_s: NDArray[np.float64]
    reward: NDArray[np.float64]
    queue: NDArray[np.float64]
    activations: NDArray[np.float64]


def draw_run(run_dir: Path) -> Path:
    """Draw ``run.png`` from ``metrics.jsonl`` and ``timeline.jsonl``; either may be missing or empty."""
    cycles = read_cycles(run_dir / "metrics.jsonl")
    lanes = read_lanes(run_dir / "timeline.jsonl")
    figure = compose(cycles, lanes, title=run_dir.resolve().name)
    FigureCanvasAgg(figure)
    path = run_dir / "run.png"
    figure.savefig(path, dpi=130, facecolor="white")
    return path


def read_cycles(path: Path) -> Cycles:
    """The rows of all cycles; where several runs wrote into one folder, the newest of each cycle."""
    rows: dict[int, Mapping[str, float | None]] = {}
    for row in read_cycle_rows(path):
        rows[int(row.get("step", len(rows)))] = row

    def column(name: str) -> NDArray[np.float64]:
        values = [row.get(name) for row in rows.values()]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    ends = column("training/time_s")
    if np.isnan(ends).any():  # Without the control clock the steps still give the pace.
        ends = np.cumsum(np.nan_to_num(column("timing_s/step")))
    return Cycles(
        np.array(list(rows), dtype=np.float64),
        ends,
        column("critic/rewards/mean"),
        column("dynamic_resource/mq_size"),
        np.nan_to_num(column("dynamic_resource/num_activations")),
    )


def compose(cycles: Cycles, lanes: Sequence[Lane], title: str) -> Figure:
    """Reward, queue and the lanes of the whole run share one time axis; the close-up has its own."""
    window = zoom_cycles(cycles, lanes)
    heights = [2.5, 1.1, _lanes_height(lanes)]
    if window is not None:
        heights.append(_lanes_height(some_of_each_kind(lanes, _ZOOM_LANES)))
    figure = Figure(figsize=(11, sum(heights) + 0.5 * len(heights)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    rows = figure.subplots(len(heights), 1, gridspec_kw={"height_ratios": heights})
    start_s, end_s = _extent(cycles, lanes)
    _draw_reward(rows[0], cycles, start_s)
    _draw_queue(rows[1], cycles, start_s)
    _draw_overview(rows[2], cycles, lanes, start_s, end_s)
    for axes in rows[:3]:
        unit = _time_axis(axes, end_s - start_s)
        axes.tick_params(labelbottom=axes is rows[2])
    rows[2].set_xlabel(f"time since the start ({unit})", **_STYLE)
    if window is not None:
        _draw_zoom(rows[3], rows[2], cycles, lanes, window, start_s)
    figure.align_ylabels(list(rows[:2]))
    return figure


def _lanes_height(lanes: Sequence[Lane]) -> float:
    num_kinds = len({kind_of(lane) for lane in lanes})
    return 0.35 + 0.34 * max(2, len(lanes) if len(lanes) <= MAX_LANES else 2 * num_kinds)


def _extent(cycles: Cycles, lanes: Sequence[Lane]) -> tuple[float, float]:
    starts = [lane.start_s[0] for lane in lanes if len(lane.start_s)]
    ends = [lane.end_s.max() for lane in lanes if len(lane.end_s)]
    start = float(min(starts, default=0.0))
    end = max([*map(float, ends), *cycles.end_s[-1:].tolist()], default=1.0)
    return start, max(end, start + 1e-3)


def _time_axis(axes: Axes, length_s: float) -> str:
    """Limits and round ticks in a unit that suits the length; returns the unit."""
    units = ((1.0, "ms", 1e-3), (600.0, "s", 1.0), (4 * 3600.0, "min", 60.0), (math.inf, "h", 3600.0))
    unit, scale = next((unit, scale) for limit, unit, scale in units if length_s < limit)
    ticks = np.asarray(MaxNLocator(8).tick_values(0.0, length_s / scale))
    ticks = ticks[(ticks >= 0.0) & (ticks * scale <= length_s)]
    axes.set_xlim(0.0, length_s)
    axes.set_xticks(ticks * scale, [f"{tick:g}" for tick in ticks])
    return unit


def _draw_reward(axes: Axes, cycles: Cycles, start_s: float) -> None:
    _plain(axes)
    axes.set_ylabel("reward", **_STYLE)
    known = ~np.isnan(cycles.reward)
    if not known.any():
        axes.text(0.5, 0.5, "no cycle finished", ha="center", va="center", transform=axes.transAxes, **_STYLE)
        axes.set_yticks([])
        return
    t, reward = cycles.end_s[known] - start_s, cycles.reward[known]
    width = len(reward) // 15
    thin: dict[str, Any] = {"lw": 0.8, "alpha": 0.45} if width > 0 else {"lw": 1.6}
    axes.plot(t, reward, color=_ACCENT, marker=_marker(t), ms=4, clip_on=False, label="each cycle", **thin)
    if width > 0:
        axes.plot(t, smooth(reward, width), color=_ACCENT, lw=2.2, label=f"mean of {2 * width + 1} cycles")
        axes.legend(loc="lower right", frameon=False, fontsize=9)
    tenth = max(1, len(reward) // 10)
    first, last = reward[:tenth].mean(), reward[-tenth:].mean()
    change = f"{first:.3f} → {last:.3f} (first and last tenth of cycles)"
    axes.set_title(f"Reward {change if len(reward) > 1 else f'{first:.3f}'}", loc="left", **_STYLE)
    axes.margins(y=0.08)


def _marker(t: NDArray[np.float64]) -> str | None:
    return "o" if len(t) < 15 else None


def smooth(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Centred moving mean over ``width`` neighbours on each side, fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - width, 0), np.minimum(at + width + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _draw_queue(axes: Axes, cycles: Cycles, start_s: float) -> None:
    _plain(axes)
    axes.set_ylabel("queue", **_STYLE)
    axes.set_title("Groups left in the queue at the end of each cycle", loc="left", **_STYLE)
    known = ~np.isnan(cycles.queue)
    t, queue = cycles.end_s[known] - start_s, cycles.queue[known]
    axes.fill_between(t, queue, color="#7A6FA8", alpha=0.25, lw=0)
    axes.plot(t, queue, color="#5B4F91", lw=1.0, marker=_marker(t), ms=4, clip_on=False)
    axes.set_ylim(0, max(1.0, float(queue.max()) * 1.15 if len(queue) else 1.0))
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _draw_overview(axes: Axes, cycles: Cycles, lanes: Sequence[Lane], start_s: float, end_s: float) -> None:
    axes.legend(
        handles=legend_patches(), loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=5, frameon=False,
        fontsize=9, handlelength=1.1, handleheight=1.0, columnspacing=1.2, borderaxespad=0.2,
    )  # fmt: skip
    moved, length_s = _shifted(lanes, start_s), end_s - start_s
    title = "Devices over the whole run"
    if can_draw_spans(moved, 0.0, length_s):
        draw_spans(axes, moved, 0.0, length_s)
        if len(cycles.end_s) <= _MAX_BOUNDARIES:
            _boundaries(axes, cycles.end_s - start_s)
    else:
        edges, cycles_per_bin = share_bins(cycles.end_s - start_s, length_s)
        draw_shares(axes, moved, edges)
        per = (
            ""
            if cycles_per_bin == 0
            else (" of each cycle" if cycles_per_bin == 1 else f" of every {cycles_per_bin} cycles")
        )
        title += f", as shares of the time{per}"
    axes.set_title(title, loc="left", **_STYLE)


def share_bins(ends_s: NDArray[np.float64], length_s: float) -> tuple[NDArray[np.float64], int]:
    """Bin edges over ``[0, length_s]`` and how many cycles a bin holds, 0 for bins of equal length.

    Bins of whole cycles do not beat against the rhythm of the run, as equal bins of about a cycle would.
    """
    if len(ends_s) < _MIN_BINS:
        return np.linspace(0.0, length_s, _MAX_BINS + 1), 0
    per_bin = -(-len(ends_s) // _MAX_BINS)
    inner = ends_s[per_bin - 1 :: per_bin]
    inner = inner[(inner > 0.0) & (inner < length_s)]
    return np.unique(np.concatenate([[0.0], inner, [length_s]])), per_bin


def zoom_cycles(cycles: Cycles, lanes: Sequence[Lane]) -> tuple[int, int] | None:
    """Which cycles ``[first, last)`` to show close up; None where the overview already shows it all.

    Near the middle, with a switch among them if there is any, and so few that single spans can be seen.
    """
    n = len(cycles.end_s)
    if n <= _ZOOM_CYCLES + 1 or not lanes:
        return None
    middle = (n - _ZOOM_CYCLES) // 2
    lending = np.flatnonzero(cycles.activations > 0)
    first = int(lending[np.argmin(abs(lending - middle))]) if len(lending) else middle
    first = min(first, n - _ZOOM_CYCLES)
    shown = some_of_each_kind(lanes, _ZOOM_LANES)
    left_s = cycles.end_s[first - 1] if first else _extent(cycles, lanes)[0]
    for last in range(first + _ZOOM_CYCLES, first + 1, -1):
        if can_draw_spans(shown, left_s, cycles.end_s[last - 1]):
            return first, last
    return first, first + 1


def _draw_zoom(
    axes: Axes, overview: Axes, cycles: Cycles, lanes: Sequence[Lane], window: tuple[int, int], start_s: float
) -> None:
    first, last = window
    left = float(cycles.end_s[first - 1]) if first else start_s
    length_s = float(cycles.end_s[last - 1]) - left
    shown = some_of_each_kind(lanes, _ZOOM_LANES)
    draw_spans(axes, _shifted(shown, left), 0.0, length_s)
    _boundaries(axes, cycles.end_s[first : last - 1] - left)
    edges = np.concatenate([[left], cycles.end_s[first:last]]) - left
    for number, middle in zip(cycles.number[first:last], (edges[:-1] + edges[1:]) / 2, strict=True):
        axes.text(middle, len(shown) - 0.55, f"cycle {number:.0f}", ha="center", va="bottom", fontsize=9, color=_INK)
    axes.set_ylim(top=len(shown) - 0.1)
    some = f", {len(shown)} of {len(lanes)} devices" if len(shown) < len(lanes) else ""
    axes.set_title(f"Close-up of the marked cycles{some}", loc="left", **_STYLE)
    unit = _time_axis(axes, length_s)
    axes.set_xlabel(f"time since the start of cycle {cycles.number[first]:.0f} ({unit})", **_STYLE)
    at = left - start_s
    overview.axvspan(at, at + length_s, facecolor="none", edgecolor=_INK, lw=1.2, zorder=5)


def _shifted(lanes: Sequence[Lane], by_s: float) -> list[Lane]:
    return [Lane(lane.device, lane.start_s - by_s, lane.end_s - by_s, lane.state) for lane in lanes]


def _boundaries(axes: Axes, times: NDArray[np.float64]) -> None:
    for t in times:
        axes.axvline(float(t), color=_INK, lw=0.6, alpha=0.55, dashes=(4, 3), zorder=4)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E6E6E6", lw=0.6)
    axes.set_axisbelow(True)
