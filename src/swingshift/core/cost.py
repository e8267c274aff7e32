"""What lending costs and what it may save: switch durations, generation rate, break-even."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

DEFAULT_SWITCH_COST_S = 10.0
"""Assumed round trip (activate + deactivate) before one was measured."""
INITIAL_PER_SAMPLE_TIME_S = 1000.0
"""Pessimistic time per group before the first real wait: biases towards lending until measured."""
SWITCH_COST_WINDOW = 3
"""Round trips averaged."""


@dataclass(slots=True)
class SwitchCosts:
    """Durations of lending transitions, paired into round trips.

    A round trip is one activation and the deactivation that follows it, whichever cycles they fall into;
    pairing them cycle by cycle would count halves.
    """

    window: int = SWITCH_COST_WINDOW
    last_activate_s: float = 0.0
    last_deactivate_s: float = 0.0
    round_trips_s: list[float] = field(default_factory=list)
    num_activations: int = 0
    num_deactivations: int = 0
    total_activate_s: float = 0.0
    total_deactivate_s: float = 0.0
    _open_activate_s: float | None = None

    def activated(self, duration_s: float) -> None:
        self.last_activate_s = duration_s
        self.num_activations += 1
        self.total_activate_s += duration_s
        self._open_activate_s = duration_s

    def deactivated(self, duration_s: float) -> None:
        self.last_deactivate_s = duration_s
        self.num_deactivations += 1
        self.total_deactivate_s += duration_s
        if self._open_activate_s is not None:
            self.round_trips_s.append(self._open_activate_s + duration_s)
            del self.round_trips_s[: -self.window]
            self._open_activate_s = None

    def mean_s(self) -> float | None:
        """Mean of the last round trips, or None before the first."""
        return mean_switch_cost_s(self.round_trips_s)


def mean_switch_cost_s(round_trips_s: Sequence[float], window: int = SWITCH_COST_WINDOW) -> float | None:
    recent = round_trips_s[-window:]
    return sum(recent) / len(recent) if recent else None


def per_sample_time_s(wait_times_s: Sequence[float], wait_samples: Sequence[int]) -> float | None:
    """Seconds of waiting per group that was really waited for; None when nothing was."""
    num_waited = sum(wait_samples)
    return sum(wait_times_s) / num_waited if num_waited > 0 else None


def backlog_gap(ratio: float, step_required: int, total_generated: int, expected: int) -> float:
    """Groups missing from the wanted backlog ``ratio × step_required`` (negative: more than wanted)."""
    return ratio * step_required - (total_generated - expected)
