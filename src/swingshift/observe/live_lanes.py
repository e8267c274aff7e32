"""Lanes for a terminal: what each device mostly did in each small piece of the last cycles.

Spans are counted into bins as they come and forgotten, so memory and the cost of a picture do not depend on how often
devices change their state. The bins grow with the cycles of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import ceil, floor

from rich.text import Text

from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState
from swingshift.observe.colors import LIGHT
from swingshift.observe.spans import lane_order

_FIRST_WINDOW_S = 15.0
_LAST_WINDOW_S = 960.0
_CYCLES_SHOWN = 10
_NUM_BINS = 240
_DEVICES_A_KIND = 64
"""Devices whose spans are kept, of those of one kind: in large runs some stand for all."""
_STATES = tuple(DeviceState)
GLYPHS = {
    DeviceState.ROLLOUT: "█",
    DeviceState.TRAIN: "▓",
    DeviceState.SWITCHING: "╳",
    DeviceState.SYNCING: "░",
    DeviceState.IDLE: "·",
}
"""Different ones, so that lanes can be read without colours as well."""
STYLES = {state: "dim" if state is DeviceState.IDLE else LIGHT.states[state] for state in DeviceState}

_Bins = dict[int, list[float]]


class LaneHistory:
    """Feed it closed spans, roughly in the order of time, and the length of cycles; ask for ``rows``."""

    def __init__(self, window_s: float = _FIRST_WINDOW_S) -> None:
        self.window_s = window_s
        self._bin_s = window_s / _NUM_BINS
        self._bins: dict[str, _Bins] = {}
        self._known_until: dict[str, float] = {}
        self._kinds: dict[str, int] = {}
        self._left_out: set[str] = set()

    @property
    def end_s(self) -> float:
        """Until when anything is known; 0 at first."""
        return max(self._known_until.values(), default=0.0)

    def fit_cycle(self, cycle_s: float) -> None:
        """Widen the window so that some cycles of this length are in it. What it had forgotten stays forgotten."""
        self.fit(_CYCLES_SHOWN * cycle_s)

    def fit(self, window_s: float) -> None:
        while self.window_s < min(window_s, _LAST_WINDOW_S):
            self.window_s, self._bin_s = 2 * self.window_s, 2 * self._bin_s
            self._bins = {device: _in_pairs(bins) for device, bins in self._bins.items()}

    def add(self, span: DeviceSpan) -> None:
        if not self._has(span.device):
            return
        bins = self._bins[span.device]
        self._count(bins, span.state, span.start_s, span.end_s)
        self._known_until[span.device] = span.end_s
        oldest = floor((span.end_s - self.window_s) / self._bin_s) - 1
        # Bins are in the order of time.
        while (first := next(iter(bins))) < oldest:
            del bins[first]

    def rows(self, width: int, now_s: float, current: Mapping[str, str], max_rows: int) -> list[tuple[str, Text]]:
        """Name and cells of every lane, the newest cell on the right.

        ``current`` says what devices have been doing since their last span. With more than ``max_rows`` devices
        there is one lane a kind, of what most of its devices did.
        """
        for device in current:
            self._has(device)
        devices = sorted(self._bins, key=lane_order)
        if len(devices) <= max_rows and not self._left_out:
            return [(device, self._cells([device], width, now_s, current)) for device in devices]
        kinds: dict[str, list[str]] = {}
        for device in devices:
            kinds.setdefault(_kind(device), []).append(device)
        return [
            (self._name(kind, members), self._cells(members, width, now_s, current))
            for kind, members in kinds.items()
        ]

    def _has(self, device: str) -> bool:
        """Whether the device's spans are kept; a device not seen before is taken up if there is room."""
        if device in self._bins:
            return True
        if device in self._left_out:
            return False
        kind = _kind(device)
        self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if self._kinds[kind] > _DEVICES_A_KIND:
            self._left_out.add(device)
            return False
        self._bins[device] = {}
        return True

    def _name(self, kind: str, kept: Sequence[str]) -> str:
        count = self._kinds[kind]
        if count == 1:
            return kept[0]
        return f"{kind} × {count}" if count == len(kept) else f"{kind} {len(kept)}/{count}"

    def _cells(self, devices: Sequence[str], width: int, now_s: float, current: Mapping[str, str]) -> Text:
        bins_a_cell = ceil(_NUM_BINS / max(1, width))
        num_cells = _NUM_BINS // bins_a_cell
        sums = [[0.0] * len(_STATES) for _ in range(num_cells)]
        last = floor(now_s / self._bin_s)
        first = last - num_cells * bins_a_cell + 1
        for bins in self._with_current(devices, now_s, current):
            for index, seconds in bins.items():
                if first <= index <= last:
                    cell = sums[(index - first) // bins_a_cell]
                    for i, value in enumerate(seconds):
                        cell[i] += value
        return _text(sums)

    def _with_current(self, devices: Iterable[str], now_s: float, current: Mapping[str, str]) -> Iterable[_Bins]:
        """The bins of each device, and what it has been doing since its last closed span."""
        for device in devices:
            yield self._bins[device]
            since_s = max(self._known_until.get(device, 0.0), now_s - self.window_s)
            if device in current and since_s < now_s:
                open_bins: _Bins = {}
                self._count(open_bins, DeviceState(current[device]), since_s, now_s)
                yield open_bins

    def _count(self, bins: _Bins, state: DeviceState, start_s: float, end_s: float) -> None:
        column = _STATES.index(state)
        start_s = max(start_s, end_s - self.window_s)
        index = floor(start_s / self._bin_s)
        while start_s < end_s:
            edge = min(end_s, (index + 1) * self._bin_s)
            bins.setdefault(index, [0.0] * len(_STATES))[column] += max(0.0, edge - start_s)
            start_s, index = edge, index + 1


def _kind(device: str) -> str:
    """``hybrid`` of ``hybrid-3``."""
    return device.rpartition("-")[0] or device


def _in_pairs(bins: _Bins) -> _Bins:
    wide: _Bins = {}
    for index, seconds in bins.items():
        sums = wide.setdefault(index // 2, [0.0] * len(_STATES))
        for i, value in enumerate(seconds):
            sums[i] += value
    return wide


def _text(sums: Sequence[Sequence[float]]) -> Text:
    text = Text(no_wrap=True)
    # Cells alike are one piece: pieces are what drawing takes its time for.
    for state, cells in groupby(map(_state_of, sums)):
        num_cells = sum(1 for _ in cells)
        if state is None:
            text.append(" " * num_cells)
        else:
            text.append(GLYPHS[state] * num_cells, STYLES[state])
    return text


def _state_of(seconds: Sequence[float]) -> DeviceState | None:
    """In which most of the time was spent."""
    most = max(seconds)
    return _STATES[seconds.index(most)] if most > 0.0 else None


def legend() -> Text:
    text = Text(no_wrap=True)
    for state in DeviceState:
        text.append("  " if text else "")
        text.append(GLYPHS[state] * 2, STYLES[state])
        text.append(f" {state.value}")
    return text
