"""When devices occupy all cores that they share with the control process (see ``cores``), from a run's lanes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swingshift.core.types import DeviceState
from swingshift.observe.spans import STATES, Lane
from swingshift.sim.calibration import Column

_PARTS = {
    "standalone": ("standalone", DeviceState.ROLLOUT),
    "hybrid": ("hybrid", DeviceState.ROLLOUT),
    "training": ("hybrid", DeviceState.TRAIN),
}


def crowded_s(lanes: Sequence[Lane], num_cores: int, cycle_ends_s: Column) -> dict[str, Column]:
    """Per cycle, device-seconds of rollout (by kind) and training while at least ``num_cores`` devices computed.

    A cycle begins where the one before ended, the first at 0.
    """
    edges = np.concatenate([[0.0], cycle_ends_s])
    result = {name: np.zeros(len(cycle_ends_s)) for name in _PARTS}
    if not lanes:
        return result
    times, crowded = _crowded_until(lanes, num_cores)
    for lane in lanes:
        for name, (kind, state) in _PARTS.items():
            if not lane.device.startswith(kind):
                continue
            mine = lane.state == STATES.index(state)
            knots = np.unique(np.concatenate([edges, times, lane.start_s[mine], lane.end_s[mine]]))
            inside = np.interp(knots, times, crowded)
            # Between two knots the device is either in the state or not.
            middles = (knots[:-1] + knots[1:]) / 2
            at = np.searchsorted(lane.start_s[mine], middles, side="right") - 1
            is_in = (
                (at >= 0) & (middles < lane.end_s[mine][np.maximum(at, 0)]) if mine.any() else np.zeros(len(at), bool)
            )
            spent = np.concatenate([[0.0], np.cumsum(np.diff(inside) * is_in)])
            result[name] += np.diff(np.interp(edges, knots, spent))
    return result


def _crowded_until(lanes: Sequence[Lane], num_cores: int) -> tuple[Column, Column]:
    """Moments, and seconds up to each in which so many devices computed; linear in between."""
    computing = [STATES.index(state) for state in (DeviceState.ROLLOUT, DeviceState.TRAIN)]
    starts = np.concatenate([lane.start_s[np.isin(lane.state, computing)] for lane in lanes])
    ends = np.concatenate([lane.end_s[np.isin(lane.state, computing)] for lane in lanes])
    times = np.concatenate([[0.0], starts, ends])
    changes = np.concatenate([[0], np.ones(len(starts), int), -np.ones(len(ends), int)])
    order = np.argsort(times, kind="stable")
    times, num_computing = times[order], np.cumsum(changes[order])
    spent = np.diff(times) * (num_computing[:-1] >= num_cores)
    return times, np.concatenate([[0.0], np.cumsum(spent)])
