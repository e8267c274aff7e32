"""Where the devices' time went, per cycle, and how near the run is to what no schedule could beat. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swingshift.core.types import DeviceState
from swingshift.core.utilization import ratio

DEVICE_METRICS = (
    *((f"device/{s.value}_s", "device·s", f"Σ over devices of seconds in state {s.value}") for s in DeviceState),
    *(
        (f"device/{s.value}_ratio", "fraction", f"{s.value}_s / Σ of all five states; the five shares sum to 1")
        for s in DeviceState
    ),
    (
        "schedule/bound_s",
        "s",
        "T* = max(W_t/a, (W_t + W_r)/(a + b)), W_t and W_r: device-seconds trained and rolled out since the session "
        "began",
    ),
    ("schedule/elapsed_s", "s", "T: since the session began"),
    ("schedule/efficiency", "fraction", "bound_s / elapsed_s: 1 is a schedule without switching, syncing or waiting"),
)
"""Name, unit and formula."""

DeviceSeconds = Mapping[str, Mapping[DeviceState, float]]


class DeviceTimes:
    """``read()`` gives seconds per device and state since the session began; ``close`` ends a cycle."""

    def __init__(self, num_hybrid: int, num_standalone: int) -> None:
        self.read: Callable[[], DeviceSeconds] = dict
        self._a = num_hybrid
        self._b = num_standalone
        self._before = dict.fromkeys(DeviceState, 0.0)

    def close(self) -> dict[str, float]:
        """The cycle's metrics, by their whole names."""
        totals = dict.fromkeys(DeviceState, 0.0)
        for seconds in self.read().values():
            for state, value in seconds.items():
                totals[state] += value
        cycle = {state: totals[state] - self._before[state] for state in DeviceState}
        self._before = totals
        whole_s, num_devices = sum(cycle.values()), self._a + self._b
        elapsed_s = ratio(sum(totals.values()), num_devices)
        work_s = totals[DeviceState.TRAIN] + totals[DeviceState.ROLLOUT]
        bound_s = max(ratio(totals[DeviceState.TRAIN], self._a), ratio(work_s, num_devices))
        return {
            **{f"device/{state.value}_s": seconds for state, seconds in cycle.items()},
            **{f"device/{state.value}_ratio": ratio(seconds, whole_s) for state, seconds in cycle.items()},
            "schedule/bound_s": bound_s,
            "schedule/elapsed_s": elapsed_s,
            "schedule/efficiency": ratio(bound_s, elapsed_s),
        }
