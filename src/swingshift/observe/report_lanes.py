"""Device lanes for a page: every span where they fit, else shares of equal bins of time."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swingshift.observe.spans import STATES, Lane

MAX_BYTES = 5_000_000
"""Of all runs' lanes together, before they are written as text (four letters for three bytes)."""
_MAX_BINS = 2000
_BYTES_PER_SPAN = 5
_GAP = 255
"""The state of time in which nothing is known of a device."""
_SHORTEST_S = 1e-6


def lane_data(lanes: Sequence[Lane], length_s: float, max_bytes: int) -> dict[str, Any]:
    """JSON values; ``kind`` is ``spans`` or ``bins``.

    ``spans``: for each device its ``counts`` boundaries; at ``starts`` (uint32, in ticks of ``tick_s``) it enters
    ``states`` (uint8, index of a state, 255 for unknown). ``bins``: uint8 [device, bin, state] shares in 1/255.
    """
    devices = [lane.device for lane in lanes]
    num_spans = sum(len(lane.start_s) for lane in lanes)
    common = {"devices": devices, "num_spans": num_spans, "states": [state.value for state in STATES]}
    if num_spans * _BYTES_PER_SPAN <= max_bytes:
        return {**common, "kind": "spans", **_spans(lanes, length_s)}
    num_bins = max(1, min(_MAX_BINS, max_bytes // (len(lanes) * len(STATES))))
    edges = np.linspace(0.0, length_s, num_bins + 1)
    shares = np.stack([lane.shares(edges).T for lane in lanes])
    quantized = np.rint(shares.clip(0.0, 1.0) * 255).astype(np.uint8)
    return {**common, "kind": "bins", "num_bins": num_bins, "bin_s": length_s / num_bins, "shares": _text(quantized)}


def _spans(lanes: Sequence[Lane], length_s: float) -> dict[str, Any]:
    tick_s = max(_SHORTEST_S, length_s / (2**32 - 2))
    starts, states = zip(*(_boundaries(lane, tick_s) for lane in lanes), strict=True) if lanes else ((), ())
    return {
        "tick_s": tick_s,
        "counts": [len(part) for part in starts],
        "starts": _text(np.concatenate([*starts, np.empty(0, np.uint32)]).astype("<u4")),
        "states_at": _text(np.concatenate([*states, np.empty(0, np.uint8)])),
    }


def _boundaries(lane: Lane, tick_s: float) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """When a lane changes and to what; unknown time and the end are changes to ``_GAP``."""
    start, end = np.rint(lane.start_s / tick_s), np.rint(lane.end_s / tick_s)
    start, end, state = (column[end > start] for column in (start, end, lane.state.astype(np.uint8)))
    next_start = np.append(start[1:], np.inf)
    gap_after = np.flatnonzero(end < next_start) + 1
    at = np.insert(start, gap_after, end[gap_after - 1])
    return at.astype(np.uint32), np.insert(state, gap_after, _GAP).astype(np.uint8)


def _text(values: NDArray[Any]) -> str:
    return b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
