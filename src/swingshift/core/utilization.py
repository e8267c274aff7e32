"""Utilization and idle time: the formulas, and the integrators that feed them. All seconds of one clock."""

from __future__ import annotations

from dataclasses import dataclass


def ratio(numerator: float, denominator: float) -> float:
    """``numerator / denominator``, and 0 where there was nothing to divide by."""
    return numerator / denominator if denominator > 0.0 else 0.0


def train_utilization(compute_s: float, allocated_s: float) -> float:
    """Share of the trainer's turns spent computing: summed compute seconds over summed allocated seconds."""
    return ratio(compute_s, allocated_s)


def hybrid_rollout_fraction(wait_s: float, step_s: float) -> float:
    """Share of a cycle the hybrid devices spent on rollout: ``clip(wait / step, 0, 1)``.

    ``wait_s`` is the time waited for enough samples with the devices lent, ``step_s`` the time of all steps.
    """
    return min(1.0, max(0.0, ratio(wait_s, step_s)))


def cluster_utilization(
    u_train: float, u_rollout: float, wait_s: float, step_s: float, num_hybrid: int, num_standalone: int
) -> float:
    """Utilization of all devices, each side weighted by the device-seconds it was measured over.

    ``((1 − x)·a·u_train + (x·a + b)·u_rollout) / (a + b)`` with a hybrid and b standalone devices and x from
    ``hybrid_rollout_fraction``.
    """
    x = hybrid_rollout_fraction(wait_s, step_s)
    used = (1.0 - x) * num_hybrid * u_train + (x * num_hybrid + num_standalone) * u_rollout
    return ratio(used, num_hybrid + num_standalone)


class RolloutUtilization:
    """Integrates used and available rollout concurrency between weight syncs.

    Call ``record`` whenever the number of running groups or the capacity changes. Each interval counts with
    its own capacity; running groups beyond it do not count; intervals without capacity weigh nothing.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._active = 0
        self._capacity = 0
        self._busy_s = 0.0
        self._capacity_s = 0.0

    def record(self, now: float, active: int, capacity: int) -> None:
        """From ``now`` on, ``active`` groups run and ``capacity`` could."""
        assert active >= 0 and capacity >= 0
        self._integrate(now)
        self._active, self._capacity = active, capacity

    def close(self, now: float) -> tuple[float, float]:
        """End the window and begin the next: ``(busy, capacity)`` in group-seconds since the last close."""
        self._integrate(now)
        result = (self._busy_s, self._capacity_s)
        self._busy_s = self._capacity_s = 0.0
        return result

    def _integrate(self, now: float) -> None:
        if self._since is not None:
            dt = now - self._since
            assert dt >= 0.0, f"time went backwards: {now} after {self._since}"
            self._busy_s += dt * min(self._capacity, self._active)
            self._capacity_s += dt * self._capacity
        self._since = now


@dataclass(frozen=True, slots=True)
class IdleWindow:
    """What ``IdleTimes.close`` returns, in seconds."""

    version_time_s: float
    idle_s: float

    @property
    def active_time_s(self) -> float:
        return self.version_time_s - self.idle_s

    @property
    def idle_ratio(self) -> float:
        return ratio(self.idle_s, self.version_time_s)


class IdleTimes:
    """Adds up *all* pauses between two weight syncs; one that is still open at a sync is split there."""

    def __init__(self, now: float) -> None:
        self._start_s = now
        self._paused_since: float | None = None
        self._idle_s = 0.0

    def pause(self, now: float) -> None:
        if self._paused_since is None:
            self._paused_since = now

    def resume(self, now: float) -> None:
        if self._paused_since is not None:
            assert now >= self._paused_since, f"time went backwards: {now} after {self._paused_since}"
            self._idle_s += now - self._paused_since
            self._paused_since = None

    def close(self, now: float) -> IdleWindow:
        """End the window at ``now``; the next begins there, still paused if this one is."""
        was_paused = self._paused_since is not None
        self.resume(now)
        window = IdleWindow(now - self._start_s, self._idle_s)
        assert window.version_time_s >= 0.0, f"time went backwards: {now} after {self._start_s}"
        self._start_s, self._idle_s = now, 0.0
        if was_paused:
            self.pause(now)
        return window
