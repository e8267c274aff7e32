"""Conservation of sample groups: each is in flight, queued, consumed, evicted or failed; never lost, never twice.

Live groups are remembered one by one, ended ones only counted, so memory stays bounded by the staleness budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class GroupState(StrEnum):
    IN_FLIGHT = "in_flight"
    QUEUED = "queued"


@dataclass(slots=True)
class GroupLedger:
    num_submitted: int = 0
    num_consumed: int = 0
    num_failed: int = 0
    num_evicted: int = 0
    """Finished groups that were dropped untrained (only where a replay buffer evicts)."""
    num_generated: int = 0
    """Groups whose generation and scoring finished, ever (queued, consumed and evicted ones)."""
    num_in_flight: int = 0
    num_queued: int = 0
    live: dict[int, GroupState] = field(default_factory=dict)

    def resume(self, num_consumed: int, num_failed: int, num_evicted: int = 0) -> None:
        """Go on from a checkpoint's counts."""
        assert self.num_submitted == 0, "resumed a ledger in use"
        self.num_submitted = num_consumed + num_failed + num_evicted
        self.num_generated = num_consumed + num_evicted
        self.num_consumed, self.num_failed, self.num_evicted = num_consumed, num_failed, num_evicted

    def submit(self, group_id: int) -> None:
        assert group_id not in self.live, f"group {group_id} submitted twice"
        self.live[group_id] = GroupState.IN_FLIGHT
        self.num_submitted += 1
        self.num_in_flight += 1

    def queue(self, group_id: int) -> None:
        self._expect(group_id, GroupState.IN_FLIGHT)
        self.live[group_id] = GroupState.QUEUED
        self.num_in_flight -= 1
        self.num_queued += 1
        self.num_generated += 1

    def consume(self, group_id: int) -> None:
        self._expect(group_id, GroupState.QUEUED)
        del self.live[group_id]
        self.num_queued -= 1
        self.num_consumed += 1

    def evict(self, group_id: int) -> None:
        self._expect(group_id, GroupState.QUEUED)
        del self.live[group_id]
        self.num_queued -= 1
        self.num_evicted += 1

    def fail(self, group_id: int) -> None:
        self._expect(group_id, GroupState.IN_FLIGHT)
        del self.live[group_id]
        self.num_in_flight -= 1
        self.num_failed += 1

    def counts(self) -> tuple[int, ...]:
        """As long as they are the same no group moved."""
        ended = (self.num_consumed, self.num_evicted, self.num_failed)
        return (self.num_submitted, self.num_generated, *ended, len(self.live))

    def check(self) -> None:
        """Invariant 1 of the design; cheap enough to run after every event."""
        assert self.num_in_flight + self.num_queued == len(self.live)
        ended = self.num_consumed + self.num_failed + self.num_evicted
        assert self.num_submitted == len(self.live) + ended, "a group was lost or counted twice"
        assert self.num_generated == self.num_queued + self.num_consumed + self.num_evicted

    def _expect(self, group_id: int, state: GroupState) -> None:
        found = self.live.get(group_id)
        assert found is state, f"group {group_id} is {found or 'not live'}, expected {state}"
