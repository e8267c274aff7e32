"""A run folder read back, live or simulated: cycles, lanes, levels, decisions, attempts, summary, configuration.

A run that was resumed lives the time after its checkpoint again; what it wrote before about that time is left out.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from swingshift.errors import ConfigError
from swingshift.observe.event_files import ATTEMPTS_FILE, DECISIONS_FILE, LEVELS_FILE, SPANS_FILE
from swingshift.observe.line_file import read_lines
from swingshift.observe.metric_rows import is_closing, read_cycle_rows
from swingshift.observe.spans import Lane, newest_history, read_lanes

METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
CONFIG_FILES = ("config.yaml", "scenario.yaml")
_MARKS = (METRICS_FILE, SPANS_FILE, SUMMARY_FILE, *CONFIG_FILES)

_BROKEN = (
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    AttributeError,
    AssertionError,
    RecursionError,
    yaml.YAMLError,
)

Column = NDArray[np.float64]
LEVEL_NAMES = ("time_s", "queued", "in_flight", "staleness_samples")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call to a replica; see ``runtime.observations.Attempt``."""

    request: str
    replica: str
    start_s: float
    end_s: float
    outcome: str
    num_responses: int
    num_tokens: int
    num_prefill_tokens: int
    every: int


class RunFolder:
    """Every method raises ConfigError, naming the file, if what it needs cannot be read."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError if no run made this folder."""
        self.folder = folder
        with _reading(folder):
            if not folder.is_dir():
                what = "is a file" if folder.exists() else "no such folder"
                raise ConfigError(f"{folder}: {what}; name the folder of a run")
            if not any((folder / name).exists() for name in _MARKS):
                raise ConfigError(
                    f"{folder}: not the folder of a run (it has none of {', '.join(_MARKS)}); "
                    "`swingshift train` and `swingshift simulate --out` make one"
                )

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def is_simulated(self) -> bool:
        return (self.folder / "scenario.yaml").exists()

    def cycles(self, names: Sequence[str]) -> dict[str, Column]:
        """``step`` and these metrics, each of shape [num_cycles]; NaN where a row lacks the value."""
        columns = {name: array("d") for name in ("step", *names)}
        with _reading(self.folder / METRICS_FILE) as path:
            for row in read_cycle_rows(path):
                for name, column in columns.items():
                    column.append(_number(row.get(name)))
        arrays = {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
        keep = newest_history(arrays["step"], is_unique=True)
        return {name: column[keep] for name, column in arrays.items()}

    def validations(self, names: Sequence[str]) -> dict[str, Column]:
        """These metrics of all validations, each of shape [num_validations]; NaN where a row lacks the value."""
        order, columns = array("d"), {name: array("d") for name in names}
        with _reading(self.folder / METRICS_FILE) as path:
            for row in read_lines(path):
                order.append(_number(row.get("step")) + 0.5 * is_closing(row))
                for name, column in columns.items():
                    column.append(_number(row.get(name)))
        arrays = [np.array(column, dtype=np.float64) for column in columns.values()]
        keep = newest_history(np.array(order, dtype=np.float64), is_unique=True)
        keep &= ~np.isnan(arrays).all(axis=0)
        return {name: column[keep] for name, column in zip(columns, arrays, strict=True)}

    def lanes(self) -> list[Lane]:
        with _reading(self.folder / SPANS_FILE) as path:
            return read_lanes(path)

    def levels(self) -> dict[str, Column]:
        """Group counts over time, each of shape [num_points], the columns of ``LEVEL_NAMES``."""
        columns = {name: array("d") for name in LEVEL_NAMES}
        with _reading(self.folder / LEVELS_FILE) as path:
            for record in read_lines(path):
                for name, column in columns.items():
                    column.append(float(record[name]))
        arrays = {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
        keep = newest_history(arrays["time_s"], is_unique=True)
        return {name: column[keep] for name, column in arrays.items()}

    def decisions(self) -> list[dict[str, Any]]:
        with _reading(self.folder / DECISIONS_FILE) as path:
            found = list(read_lines(path))
            keep = newest_history(np.array([float(record["time_s"]) for record in found], dtype=np.float64))
        return [record for record, kept in zip(found, keep, strict=True) if kept]

    def attempts(self) -> list[Attempt]:
        """By the time they ended."""
        with _reading(self.folder / ATTEMPTS_FILE) as path:
            found = [Attempt(**record) for record in read_lines(path)]
            keep = newest_history(np.array([attempt.end_s for attempt in found], dtype=np.float64))
        return [attempt for attempt, kept in zip(found, keep, strict=True) if kept]

    def summary(self) -> dict[str, Any] | None:
        """None if the run was killed or still goes on."""
        with _reading(self.folder / SUMMARY_FILE) as path:
            if not path.exists():
                return None
            summary = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(summary, dict):
                raise ValueError("not a mapping")
            return summary

    def settings(self) -> dict[str, Any]:
        """The resolved configuration or scenario, flat: dotted keys to values. Empty where none was written."""
        for name in CONFIG_FILES:
            with _reading(self.folder / name) as path:
                if path.exists():
                    return dict(_flat(yaml.safe_load(path.read_text(encoding="utf-8")) or {}))
        return {}


def open_runs(folders: Sequence[Path]) -> list[tuple[str, RunFolder]]:
    """Each with a name that tells it from the others: its folder's, with the parent's if need be."""
    runs = [RunFolder(folder) for folder in folders]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = ["/".join(run.folder.resolve().parts[-2:]) for run in runs]
    named: dict[str, RunFolder] = {}
    for name, run in zip(names, runs, strict=True):
        others = sum(1 for known in named if known == name or known.startswith(f"{name} ("))
        named[f"{name} ({others + 1})" if others else name] = run
    return list(named.items())


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """What the file system or a file's content may do to us, as one line that names the file."""
    try:
        yield path
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}); check the folder") from error
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(
            f"{path}: holds something that no run wrote ({type(error).__name__}: {reason}); restore or remove it"
        ) from error


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
