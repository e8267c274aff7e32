"""The sample queue: in order, bounded, whole collections."""

from __future__ import annotations

import pytest

from swingshift.core.types import Prompt, SampleGroup
from swingshift.runtime.queue import SampleQueue


def group(group_id: int) -> SampleGroup:
    return SampleGroup(group_id, Prompt(str(group_id), ()), (), 0)


def test_first_in_first_out_whole_collections_at_once() -> None:
    queue = SampleQueue(5)
    for i in range(5):
        queue.put(group(i))
    assert [g.group_id for g in queue.take(3)] == [0, 1, 2]
    queue.put(group(5))
    assert [g.group_id for g in queue.peek_all()] == [3, 4, 5] and len(queue) == 3
    assert queue.take(0) == []


def test_a_full_queue_never_drops_and_an_empty_one_never_invents() -> None:
    queue = SampleQueue(1)
    queue.put(group(0))
    with pytest.raises(AssertionError, match="full"):
        queue.put(group(1))
    with pytest.raises(AssertionError, match="more than the queue holds"):
        queue.take(2)
    assert [g.group_id for g in queue.take(1)] == [0]
