"""A grid of scenarios, one line of JSON a finished point; a sweep that is started again does only what is missing."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swingshift.config.layers import is_override
from swingshift.errors import ConfigError
from swingshift.observe.line_file import LineFile, read_lines
from swingshift.sim.compare import split_values
from swingshift.sim.pool import Workers
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario
from swingshift.sim.workload import read_lengths

DROPPED = ("device_seconds", "split")
"""Parts of a summary that a table has no use for."""


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of the grid, and one seed."""

    settings: Mapping[str, str]
    scenario: Scenario
    digest: str
    """See ``digest_of``."""


def digest_of(scenario: Scenario) -> str:
    """Of everything that determines the result, so that a changed preset or file of lengths is run again."""
    text = json.dumps(scenario.model_dump(exclude={"description", "sources", "assumptions"}), sort_keys=True)
    found = hashlib.sha256(text.encode())
    lengths = scenario.workload.lengths
    if lengths.kind == "empirical" and lengths.file is not None:
        found.update(json.dumps(read_lengths(Path(lengths.file))).encode())
    return found.hexdigest()[:16]


def parse_grid(axes: Sequence[str]) -> dict[str, list[str]]:
    """``key=v1,v2`` each. Raises ConfigError for anything else, and for a key given twice."""
    grid: dict[str, list[str]] = {}
    for axis in axes:
        key, _, values = axis.partition("=")
        if not is_override(axis) or not split_values(values):
            raise ConfigError(f"--grid {axis}: is no list of values; write section.key=value1,value2")
        if key in grid:
            raise ConfigError(f"--grid {axis}: {key} is there twice; give all its values in one list")
        grid[key] = split_values(values)
    return grid


def points(source: str, overrides: Sequence[str], grid: Mapping[str, Sequence[str]], num_seeds: int) -> list[Point]:
    """The whole grid, checked. Raises ConfigError with one line per mistake and combination."""
    found, mistakes = [], []
    for values in itertools.product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        try:
            scenario = load_scenario(source, [*overrides, *(f"{k}={v}" for k, v in settings.items())])
        except ConfigError as error:
            mistakes += str(error).splitlines()
            continue
        for seed in range(scenario.workload.seed, scenario.workload.seed + num_seeds):
            seeded = with_seed(scenario, seed)
            found.append(Point(settings, seeded, digest_of(seeded)))
    if mistakes:
        raise ConfigError("\n".join(dict.fromkeys(mistakes)))
    return found


def missing(chosen: Sequence[Point], out: Path) -> list[Point]:
    """Points without a line in the file. Raises ConfigError if the file is no sweep's."""
    try:
        if out.exists() and out.stat().st_size and next(read_lines(out), {}).get("digest") is None:
            raise ConfigError(f"--out={out}: holds something else than a sweep; name another file")
        done = {record.get("digest") for record in read_lines(out)}
    except OSError as error:
        raise ConfigError(f"--out={out}: cannot be read ({error.strerror}); name another file") from error
    return [point for point in chosen if point.digest not in done]


def records_of(chosen: Sequence[Point], out: Path) -> list[dict[str, Any]]:
    """The file's lines about these points, in their order."""
    records = {record["digest"]: record for record in read_lines(out)}
    return [records[point.digest] for point in chosen]


def sweep(
    todo: Sequence[Point], out: Path, num_processes: int | None = None, on_result: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Run points and append each to the file as it is finished. Raises ConfigError if the file cannot be written."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = LineFile(out, flush_each=True)
    except OSError as error:
        raise ConfigError(f"--out={out}: cannot be written ({error.strerror}); name another file") from error
    records = []
    try:
        with Workers(num_processes) as workers:
            for index, summary in workers.map(run_scenario, [point.scenario for point in todo]):
                kept = {key: value for key, value in summary.items() if key not in DROPPED}
                records.append({"digest": todo[index].digest, **todo[index].settings, **kept})
                file.write(records[-1])
                on_result()
    finally:
        file.close()
    return records
