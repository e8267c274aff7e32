"""The curves of the report: which metrics, and their values small enough for a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swingshift.observe.run_reader import Column, RunFolder

MAX_POINTS = 1500
"""Cycles of a run that are drawn one by one; more are averaged."""
MAX_LEVEL_BINS = 1000

TIME = "training/time_s"
_VALIDATION = ("val/version", "val/reward/mean")


@dataclass(frozen=True, slots=True)
class Chart:
    """One small figure. ``also`` is a second, dotted curve a run."""

    title: str
    metric: str
    unit: str
    meaning: str
    also: str = ""
    is_share: bool = False
    has_validation: bool = False


CHARTS = (
    Chart("Reward", "critic/rewards/mean", "", "mean over a cycle's responses", has_validation=True),
    Chart("Time per cycle", "timing_s/step", "s", "waiting, training, weight sync and switching included"),
    Chart("Queue", "dynamic_resource/mq_size", "groups", "left after a cycle's last collection; at zero the trainer "
          "starves, at the limit rollout is held back"),
    Chart("Utilization of all devices", "dynamic_resource/resource_utilization", "", "each side weighted by the "
          "device-seconds it had", is_share=True),
    Chart("Utilization of rollout", "dynamic_resource/rollout_resource_utilization", "", "groups in flight over "
          "those that could be", is_share=True),
    Chart("Utilization of training", "dynamic_resource/train_resource_utilization", "", "computing over the "
          "trainer's turns, waiting for groups included", is_share=True),
    Chart("Staleness", "fully_async/staleness/mean", "weight versions", "mean over a cycle's responses; dotted: the "
          "largest", also="fully_async/staleness/max"),
    Chart("Tokens trained on", "perf/tokens_per_s", "tokens/s", "response tokens over the time of the cycle"),
)  # fmt: skip


def chart_metrics() -> tuple[str, ...]:
    """Every column the charts need."""
    names = [name for chart in CHARTS for name in (chart.metric, chart.also) if name]
    return tuple(dict.fromkeys((TIME, *names)))


def cycle_series(columns: Mapping[str, Column]) -> dict[str, Any]:
    """The charts' columns as JSON values, means of equal numbers of cycles where there are too many."""
    num_cycles = len(columns["step"])
    per_point = -(-num_cycles // MAX_POINTS)
    series: dict[str, Any] = {"per_point": per_point, "step": _json(_last_of(columns["step"], per_point))}
    for name, column in columns.items():
        if name == "step" or np.isnan(column).all():
            continue
        reduce = _last_of if name == TIME else _largest_of if name.endswith("/max") else _mean_of
        series[name] = _json(reduce(column, per_point))
    return series


def validation_points(run: RunFolder) -> dict[str, list[float | None]]:
    """Rewards of the validations and the versions they measured."""
    version, reward = run.validations(_VALIDATION).values()
    known = ~np.isnan(version + reward)
    return {"step": _json(version[known]), "reward": _json(reward[known])}


def level_series(run: RunFolder) -> dict[str, Any]:
    """Groups queued and in flight over time; of a crowded stretch its lowest and its highest point."""
    levels = run.levels()
    series = {}
    for name in ("queued", "in_flight"):
        chosen = extremes(levels["time_s"], levels[name], MAX_LEVEL_BINS)
        series[name] = {"time_s": _json(levels["time_s"][chosen]), "groups": _json(levels[name][chosen])}
    return {**series, "num_points": len(levels["time_s"]), "num_bins": MAX_LEVEL_BINS}


def extremes(time_s: Column, values: Column, num_bins: int) -> NDArray[np.intp]:
    """Indices of the lowest and the highest value in each of ``num_bins`` equal stretches; all if they are few."""
    if len(values) <= 2 * num_bins:
        return np.arange(len(values))
    edges = np.linspace(time_s[0], time_s[-1], num_bins + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(time_s, edges)]))
    chosen = {0, len(values) - 1}
    for start, stop in zip(starts, np.append(starts[1:], len(values)), strict=True):
        part = values[start:stop]
        if len(part):
            chosen.update((int(start + np.argmin(part)), int(start + np.argmax(part))))
    return np.array(sorted(chosen), dtype=np.intp)


def _blocks(column: Column, size: int) -> list[Column]:
    return [column[start : start + size] for start in range(0, len(column), size)]


def _mean_of(column: Column, size: int) -> Column:
    if size == 1:
        return column
    return np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in _blocks(column, size)])


def _largest_of(column: Column, size: int) -> Column:
    if size == 1:
        return column
    return np.array([np.nan if np.isnan(part).all() else np.nanmax(part) for part in _blocks(column, size)])


def _last_of(column: Column, size: int) -> Column:
    return np.array([part[-1] for part in _blocks(column, size)]) if size > 1 else column


def _json(column: Column) -> list[float | None]:
    """Six significant digits are more than a screen shows."""
    return [None if np.isnan(value) else float(f"{value:.6g}") for value in column.tolist()]
