"""Are the rows of a run fit to be calibrated on? Damaged lines, gaps, and numbers that no run wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swingshift.errors import ConfigError
from swingshift.sim.calibration import Column

COUNTED = "engine/standalone/num_tokens"
"""In every row of a version that can be calibrated on."""
MIN_CYCLES = 6
"""A run needs as many sync cycles; the first warms up and is left out."""
_NEVER_NEGATIVE = (
    "engine/",
    "perf/",
    "timing_s/",
    "fully_async/trainer/step_consumed",
    "response_length/sum_squares",
)
_NEVER_ALL_ZERO = {
    "fully_async/trainer/step_consumed_samples": "how many groups were trained on",
    "fully_async/trainer/step_consumed_trajectories": "how many responses were trained on",
    "perf/tokens": "how many tokens were trained on",
}


def damaged_lines(path: Path) -> list[int]:
    """Numbers of the lines that are no records. Half a line at the end is what a killed run leaves, and is none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [number for number, line in enumerate(file, 1) if line.endswith("\n") and not _is_record(line)]


def _is_record(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def fitted_rows(cycles: Mapping[str, Column]) -> NDArray[np.bool_]:
    """Not the first, in which processes warm up, and none after a gap: how long such a cycle took is not known."""
    fitted: NDArray[np.bool_] = np.diff(cycles["step"], prepend=np.nan) == 1.0
    return fitted


def check_rows(path: Path, cycles: Mapping[str, Column]) -> None:
    """Raises ConfigError, naming the file, for rows to which nothing can be fitted."""
    num_cycles = len(cycles["step"])
    if num_cycles == 0:
        raise ConfigError(f"{path}: holds no cycle; name the folder of a run that trained")
    kinds = ("standalone", "hybrid")
    if not any(cycles[f"engine/{kind}/num_tokens"].any() for kind in kinds):
        raise ConfigError(
            f"{path}: its rows do not say what engines computed (no engine/… metrics); run again with this version"
        )
    if num_cycles < MIN_CYCLES:
        raise ConfigError(
            f"{path.parent}: {num_cycles} sync cycles are too few to fit anything; give at least {MIN_CYCLES}"
        )
    for name, column in cycles.items():
        if name.startswith(_NEVER_NEGATIVE) and (column < 0.0).any():
            raise ConfigError(f"{path}: {name}={column.min():g} in a row is no count and no duration; restore it")
    for name, what in _NEVER_ALL_ZERO.items():
        if not cycles[name].any():
            raise ConfigError(f"{path}: its rows do not say {what} ({name} is 0 throughout); restore it")
    if not (np.diff(cycles["training/time_s"]) > 0.0).all():
        raise ConfigError(f"{path}: training/time_s does not grow from row to row; restore it")
    fitted = fitted_rows(cycles)
    busy = sum((cycles[f"engine/{kind}/busy_s"][fitted] > 0.0).sum() for kind in kinds)
    if fitted.sum() < MIN_CYCLES - 1 or busy < MIN_CYCLES - 1:
        what = "follow one another" if fitted.sum() < MIN_CYCLES - 1 else "say that an engine was busy"
        raise ConfigError(f"{path}: fewer than {MIN_CYCLES - 1} rows {what} (engine/…/busy_s); restore it")
