"""Scenarios side by side, each over several seeds: medians, spread, and how they relate to the first."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from swingshift.config.layers import is_override
from swingshift.errors import ConfigError
from swingshift.sim.pool import Workers
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario

METRICS = (
    "wall_s",
    "efficiency",
    "train_resource_utilization",
    "rollout_resource_utilization",
    "resource_utilization",
    "num_activations",
    "staleness_mean",
)


@dataclass(frozen=True, slots=True)
class Item:
    """One column of the comparison: what was written on the command line, and what it means."""

    label: str
    scenario: Scenario


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one number over the seeds."""

    median: float
    low: float
    high: float


def parse_item(text: str, overrides: Sequence[str] = ()) -> Item:
    """``PRESET|FILE`` or ``PRESET|FILE:key=value,key=value``; ``overrides`` come first."""
    source, own = _split(text)
    return Item(text, load_scenario(source, [*overrides, *own]))


def _split(text: str) -> tuple[str, list[str]]:
    """At the first colon behind which an override starts (policies and paths may have colons too)."""
    for at, character in enumerate(text):
        rest = text[at + 1 :]
        if character == ":" and (not rest or is_override(rest)):
            return text[:at], split_values(rest)
    if ":" in text and "=" in text.partition(":")[2]:
        raise ConfigError(f"{text}: what follows the colon is no key=value; write PRESET:section.key=value,…")
    return text, []


def split_values(text: str) -> list[str]:
    """At commas outside of brackets and quotes."""
    parts, depth, quote, start = [], 0, "", 0
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part]


def compare(
    items: Sequence[Item],
    num_seeds: int,
    num_processes: int | None = None,
    on_result: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Per item: label, the runs' summaries by seed, spreads of ``METRICS``, and ``speedup`` over the first item."""
    assert items and num_seeds >= 1
    jobs = [with_seed(i.scenario, i.scenario.workload.seed + k) for i in items for k in range(num_seeds)]
    summaries: list[dict[str, Any]] = [{}] * len(jobs)
    with Workers(num_processes) as workers:
        for index, summary in workers.map(run_scenario, jobs):
            summaries[index] = summary
            on_result()
    rows = []
    first = summaries[:num_seeds]
    for position, item in enumerate(items):
        runs = summaries[position * num_seeds : (position + 1) * num_seeds]
        # The same seed draws the same workload, so ratios seed by seed are freer of chance than those of medians.
        ratios = [a["wall_s"] / b["wall_s"] for a, b in zip(first, runs, strict=True)]
        rows.append(
            {
                "item": item.label,
                "name": item.scenario.name,
                "seeds": [run["seed"] for run in runs],
                **{name: spread_of([run[name] for run in runs]) for name in METRICS},
                "bound_s": spread_of([run["bound_s"] for run in runs]),
                "speedup": spread_of(ratios),
            }
        )
    return rows


def spread_of(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
