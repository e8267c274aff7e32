"""The sample queue: whole groups, first in first out, never beyond its capacity, never dropping one.

Submission pauses before the queue could overflow, so a put beyond capacity is a broken invariant. Consumers do
not wait here: whoever needs groups waits on the rollouter, which knows whether more can still come.
"""

from __future__ import annotations

from collections import deque

from swingshift.core.types import SampleGroup


class SampleQueue:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._groups: deque[SampleGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: SampleGroup) -> None:
        assert len(self._groups) < self.capacity, "put into a full sample queue"
        self._groups.append(group)

    def take(self, num_groups: int) -> list[SampleGroup]:
        """The oldest ``num_groups`` groups, all at once."""
        assert num_groups <= len(self._groups), "took more than the queue holds"
        return [self._groups.popleft() for _ in range(num_groups)]

    def peek_all(self) -> tuple[SampleGroup, ...]:
        """Everything queued, oldest first (for checkpoints)."""
        return tuple(self._groups)
