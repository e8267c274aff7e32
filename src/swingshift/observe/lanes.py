"""Resource-time lanes: one a device, coloured by what it did; single spans, or shares of time bins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from swingshift.observe.colors import LIGHT
from swingshift.observe.spans import STATES, Lane

COLORS = LIGHT.states

MAX_LANES = 16
_MAX_EXACT_SPANS = 240
_HEIGHT = 0.78


def can_draw_spans(lanes: Sequence[Lane], left_s: float, right_s: float) -> bool:
    """True if every device has a lane and its spans in the window are few enough to be told apart."""
    few = all(len(lane.window(left_s, right_s).start_s) <= _MAX_EXACT_SPANS for lane in lanes)
    return few and len(lanes) <= MAX_LANES


def draw_spans(axes: Axes, lanes: Sequence[Lane], left_s: float, right_s: float) -> None:
    """Every span of every lane over a window in seconds."""
    for y, lane in zip(_positions(len(lanes)), lanes, strict=True):
        _background(axes, y, left_s, right_s)
        _draw_spans(axes, y, lane.window(left_s, right_s))
    _label_lanes(axes, [lane.device for lane in lanes])


def draw_shares(axes: Axes, lanes: Sequence[Lane], edges_s: NDArray[np.float64]) -> None:
    """Stacked shares of time bins; with too many devices one lane a kind, the mean of its devices."""
    pools: dict[str, list[Lane]] = {}
    for lane in lanes:
        name = lane.device if len(lanes) <= MAX_LANES else kind_of(lane)
        pools.setdefault(name, []).append(lane)
    for y, members in zip(_positions(len(pools)), pools.values(), strict=True):
        _background(axes, y, edges_s[0], edges_s[-1])
        mean = np.mean([lane.shares(edges_s) for lane in members], axis=0)
        _draw_shares(axes, y, mean, edges_s)
    _label_lanes(axes, [k if len(m) == 1 else f"{k} × {len(m)}" for k, m in pools.items()])


def kind_of(lane: Lane) -> str:
    """``hybrid`` of ``hybrid-3``."""
    return lane.device.rsplit("-", 1)[0]


def some_of_each_kind(lanes: Sequence[Lane], most: int) -> list[Lane]:
    """At most ``most`` lanes, the first of each kind."""
    if len(lanes) <= most:
        return list(lanes)
    standalone = [lane for lane in lanes if lane.device.startswith("standalone")]
    others = [lane for lane in lanes if not lane.device.startswith("standalone")]
    num_standalone = min(len(standalone), max(most // 2, most - len(others)))
    return standalone[:num_standalone] + others[: most - num_standalone]


def legend_patches() -> list[Patch]:
    return [Patch(facecolor=COLORS[s], edgecolor="#BBBBBB", linewidth=0.5, label=s.value) for s in STATES]


def _positions(num_lanes: int) -> range:
    """The first lane on top."""
    return range(num_lanes - 1, -1, -1)


def _background(axes: Axes, y: int, left_s: float, right_s: float) -> None:
    axes.broken_barh(
        [(left_s, right_s - left_s)],
        (y - _HEIGHT / 2, _HEIGHT),
        facecolor="white",
        edgecolor="#DDDDDD",
        lw=0.5,
    )


def _draw_spans(axes: Axes, y: int, lane: Lane) -> None:
    for i, state in enumerate(STATES):
        mine = lane.state == i
        if mine.any():
            ranges = np.stack([lane.start_s[mine], (lane.end_s - lane.start_s)[mine]], axis=1)
            pairs = [(float(start), float(length)) for start, length in ranges]
            axes.broken_barh(pairs, (y - _HEIGHT / 2, _HEIGHT), facecolor=COLORS[state], lw=0)


def _draw_shares(axes: Axes, y: int, shares: NDArray[np.float64], edges: NDArray[np.float64]) -> None:
    """``shares``: [num_states, num_bins], stacked from the bottom of the lane in the order of ``STATES``."""
    lower = np.full(shares.shape[1], y - _HEIGHT / 2)
    for state, share in zip(STATES, shares, strict=True):
        upper = lower + share * _HEIGHT
        axes.fill_between(
            edges,
            np.append(lower, lower[-1]),
            np.append(upper, upper[-1]),
            step="post",
            color=COLORS[state],
            lw=0,
        )
        lower = upper


def _label_lanes(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(list(_positions(len(names))), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.tick_params(axis="y", length=0)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
