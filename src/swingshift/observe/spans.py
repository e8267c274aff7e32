"""The spans of a run as arrays: read from ``timeline.jsonl``, asked for windows and for shares of time."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swingshift.core.types import DeviceState
from swingshift.observe.line_file import read_lines

STATES = tuple(DeviceState)


@dataclass(frozen=True, slots=True)
class Lane:
    """One device's spans by start time: seconds and indices into ``STATES``, each of shape [num_spans]."""

    device: str
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    state: NDArray[np.int8]

    def window(self, left_s: float, right_s: float) -> Lane:
        """Only the spans that touch the window, cut to it."""
        keep = (self.end_s > left_s) & (self.start_s < right_s)
        start, end = self.start_s[keep].clip(left_s, right_s), self.end_s[keep].clip(left_s, right_s)
        return Lane(self.device, start, end, self.state[keep])

    def shares(self, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Fraction of each time bin spent in each state: [num_states, num_bins]. Unknown time is in none."""
        result = np.zeros((len(STATES), len(edges_s) - 1))
        for i in range(len(STATES)):
            mine = self.state == i
            if not mine.any():
                continue
            starts, ends = self.start_s[mine], self.end_s[mine]
            spent = np.cumsum(ends - starts)
            # Time spent in the state up to t is piecewise linear: it rises within spans and rests between.
            knots = np.stack([starts, ends], axis=1).ravel()
            values = np.stack([np.concatenate([[0.0], spent[:-1]]), spent], axis=1).ravel()
            result[i] = np.diff(np.interp(edges_s, knots, values)) / np.diff(edges_s)
        return result


def read_lanes(path: Path) -> list[Lane]:
    """All lanes of a run, standalone devices first, each kind by number. Empty where nothing was written."""
    columns: dict[str, tuple[array[float], array[float], array[int]]] = {}
    index = {state.value: i for i, state in enumerate(STATES)}
    for record in read_lines(path):
        lane = columns.setdefault(str(record["device"]), (array("d"), array("d"), array("b")))
        lane[0].append(record["start_s"])
        lane[1].append(record["end_s"])
        lane[2].append(index[record["state"]])
    return [_lane(device, *columns[device]) for device in sorted(columns, key=lane_order)]


def _lane(device: str, starts: array[float], ends: array[float], states: array[int]) -> Lane:
    start, end = np.array(starts, np.float64), np.array(ends, np.float64)
    # A resumed run lives the time after its checkpoint again; its spans cut off what was written before.
    end = np.minimum(end, _least_later(start))
    keep = end > start
    return Lane(device, start[keep], end[keep], np.array(states, np.int8)[keep])


def newest_history(order: NDArray[np.float64], *, is_unique: bool = False) -> NDArray[np.bool_]:
    """Which records, in the order they were written, no later one goes back behind: ``order`` is a time or a step.

    Of several at one ``is_unique`` place the last counts.
    """
    later = _least_later(order)
    return np.asarray(order < later if is_unique else order <= later)


def _least_later(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each the least of those behind it; infinite for the last."""
    return np.append(np.minimum.accumulate(values[::-1])[::-1], np.inf)[1:]


def lane_order(device: str) -> tuple[bool, list[tuple[int, str]]]:
    """Standalone above the rest, and ``hybrid-10`` after ``hybrid-9``."""
    pieces = re.split(r"(\d+)", device)
    return not device.startswith("standalone"), [(int(p), "") if p.isdigit() else (-1, p) for p in pieces]
