"""What every device is doing right now, told to the timeline.

A device is in an explicit phase (train, switching, syncing) while somebody says so, else in rollout while a
replica on it has requests in flight, else idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from swingshift.core.timeline import Timeline
from swingshift.core.types import DeviceState


class DeviceLanes:
    def __init__(self, timeline: Timeline, now: Callable[[], float], devices: Iterable[str]) -> None:
        self._timeline = timeline
        self._now = now
        self._phases: dict[str, list[DeviceState]] = {device: [] for device in devices}
        self._loads: dict[str, int] = dict.fromkeys(self._phases, 0)

    def start(self) -> None:
        """The run begins: the lanes do too."""
        for device in self._phases:
            self._show(device)

    def load_changed(self, devices: Iterable[str], num_inflight: int) -> None:
        for device in devices:
            was, self._loads[device] = self._loads[device], num_inflight
            if (was == 0) != (num_inflight == 0):
                self._show(device)

    @contextmanager
    def phase(self, devices: Iterable[str], state: DeviceState) -> Iterator[None]:
        """The devices are in ``state`` while the block runs; inner phases win."""
        chosen = tuple(devices)
        for device in chosen:
            self._phases[device].append(state)
            self._show(device)
        try:
            yield
        finally:
            for device in chosen:
                self._phases[device].remove(state)
                self._show(device)

    def _show(self, device: str) -> None:
        phases = self._phases[device]
        if phases:
            state = phases[-1]
        else:
            state = DeviceState.ROLLOUT if self._loads[device] else DeviceState.IDLE
        self._timeline.set_state(device, state, self._now())
