"""What a session tells the outside at the end of a sync cycle or global step."""

from __future__ import annotations

from dataclasses import dataclass

from swingshift.core.cost import SwitchCosts
from swingshift.core.metrics import LendingCycle
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.observations import Decision


@dataclass(frozen=True, slots=True)
class CycleReport:
    row: dict[str, float]
    groups: tuple[SampleGroup, ...]
    """The groups of the cycle's last collection."""
    version: WeightVersion
    state: str
    decision: str
    decisions: tuple[Decision, ...] = ()
    """What the policy was asked since the last report, in order."""


class LendingCounter:
    """The switches since it was last asked."""

    def __init__(self, costs: SwitchCosts) -> None:
        self._costs = costs
        self._reported = (0, 0, 0.0)

    def cycle(self, deactivate_ratio: float) -> LendingCycle:
        costs = self._costs
        total_s = costs.total_activate_s + costs.total_deactivate_s
        before, self._reported = self._reported, (costs.num_activations, costs.num_deactivations, total_s)
        return LendingCycle(
            num_activations=costs.num_activations - before[0],
            num_deactivations=costs.num_deactivations - before[1],
            activate_s=costs.last_activate_s,
            deactivate_s=costs.last_deactivate_s,
            switch_cost_s=costs.round_trips_s[-1] if costs.round_trips_s else 0.0,
            switch_s=total_s - before[2],
            deactivate_ratio=deactivate_ratio,
        )
