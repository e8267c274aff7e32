"""Who did what when: the state of every device over time, with totals in bounded memory.

A device is in exactly one state from its first ``set_state`` on. Closed spans are handed to ``on_span`` and
forgotten; only seconds per device and state stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swingshift.core.types import DeviceState


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """One device in one state over ``[start_s, end_s)``, seconds on the control clock."""

    device: str
    state: DeviceState
    start_s: float
    end_s: float
    label: str = ""


@dataclass(slots=True)
class _Lane:
    state: DeviceState
    label: str
    start_s: float
    counted_until_s: float
    is_open: bool = True
    totals: dict[DeviceState, float] = field(default_factory=dict)

    def count_until(self, now: float) -> None:
        elapsed = now - self.counted_until_s
        assert elapsed >= 0.0, f"time went backwards: {now} after {self.counted_until_s}"
        if self.is_open:
            self.totals[self.state] = self.totals.get(self.state, 0.0) + elapsed
        self.counted_until_s = now


def _ignore(span: DeviceSpan) -> None:
    pass


class Timeline:
    """Device names are lanes of the figure: ``standalone-0``, ``hybrid-0``, …"""

    def __init__(self, on_span: Callable[[DeviceSpan], None] = _ignore) -> None:
        self._on_span = on_span
        self._lanes: dict[str, _Lane] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._lanes)

    def state_of(self, device: str) -> DeviceState | None:
        """The state a device is in, or None if it is unknown or closed."""
        lane = self._lanes.get(device)
        return lane.state if lane is not None and lane.is_open else None

    def set_state(self, device: str, state: DeviceState, now: float, label: str = "") -> None:
        """From ``now`` on the device is in ``state``.

        The same state again extends the span, unless it brings a new label. Spans without length are dropped.
        """
        lane = self._lanes.get(device)
        if lane is None:
            self._lanes[device] = _Lane(state, label, now, now)
            return
        lane.count_until(now)
        if lane.is_open and lane.state is state and label in ("", lane.label):
            return
        self._emit(device, lane)
        lane.state, lane.label, lane.start_s, lane.is_open = state, label, now, True

    def totals(self, now: float) -> dict[str, dict[DeviceState, float]]:
        """Seconds per device and state up to ``now``; every state is present."""
        result: dict[str, dict[DeviceState, float]] = {}
        for device, lane in self._lanes.items():
            lane.count_until(now)
            result[device] = {state: lane.totals.get(state, 0.0) for state in DeviceState}
        return result

    def shares(self, now: float) -> dict[str, dict[DeviceState, float]]:
        """Fractions per device and state; they sum to 1 for each device."""
        result: dict[str, dict[DeviceState, float]] = {}
        for device, seconds in self.totals(now).items():
            total = sum(seconds.values())
            if total > 0.0:
                result[device] = {state: s / total for state, s in seconds.items()}
            else:  # Seen for no time at all yet: what it is doing is all it did.
                current = self._lanes[device].state
                result[device] = {state: float(state is current) for state in DeviceState}
        return result

    def close(self, now: float) -> None:
        """End every open span. A later ``set_state`` opens a device again; the gap counts as nothing."""
        for device, lane in self._lanes.items():
            lane.count_until(now)
            self._emit(device, lane)
            lane.is_open = False

    def _emit(self, device: str, lane: _Lane) -> None:
        if lane.is_open and lane.counted_until_s > lane.start_s:
            self._on_span(DeviceSpan(device, lane.state, lane.start_s, lane.counted_until_s, lane.label))
