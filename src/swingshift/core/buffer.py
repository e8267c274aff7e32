"""The store behind the replay buffer (``separate_async``): which groups wait, run, have finished, may be trained on.

::

    admit ──▶ pending ──▶ running ──▶ finished ──▶ taken
                              └──▶ failed     └──▶ evicted (stale, filtered); failed ones always

A group's *age* at global step ``g`` is ``g − g0 + 1``, where ``g0`` is the step it was first submitted at. Counts are
kept as groups move, so that no question costs more than the number of different steps in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from swingshift.core.types import Sample, SampleGroup


class GroupPhase(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class OffPolicyStrategy(StrEnum):
    """What happens to groups that have become too old."""

    DROP = "drop"
    """Finished groups older than the threshold are evicted."""
    WAIT = "wait"
    """Nothing is sampleable while a group that is not finished has reached the threshold."""


GROUP_METRICS: dict[str, Callable[[Sample], float]] = {
    "reward": lambda sample: sample.reward if sample.reward is not None else 0.0,
    "response_length": lambda sample: float(len(sample.token_ids)),
}
"""What the groups can be filtered by; the names of ``algorithm.filter_groups.metric``."""


@dataclass(frozen=True, slots=True)
class StoreRules:
    """``max_off_policy_threshold`` in global steps (None: no limit); ``filter_metric`` None: nothing is filtered."""

    max_off_policy_threshold: int | None = 8
    max_off_policy_strategy: OffPolicyStrategy = OffPolicyStrategy.DROP
    filter_metric: str | None = None


@dataclass(slots=True)
class Evictions:
    """Groups evicted, and why. A group with several reasons counts under each, but once in ``num_groups``."""

    num_groups: int = 0
    num_stale: int = 0
    num_filtered: int = 0
    num_failed: int = 0
    num_refilled: int = 0
    finished_ids: list[int] = field(default_factory=list)
    """Those that had finished (all but the failed ones)."""

    def add(self, other: Evictions) -> None:
        self.num_groups += other.num_groups
        self.num_stale += other.num_stale
        self.num_filtered += other.num_filtered
        self.num_failed += other.num_failed
        self.num_refilled += other.num_refilled
        self.finished_ids += other.finished_ids


@dataclass(slots=True)
class _Step:
    """The groups that were first submitted at one step."""

    num_unfinished: int = 0
    trainable: dict[int, SampleGroup] = field(default_factory=dict)
    """Finished and of use, in the order they finished."""

    @property
    def is_empty(self) -> bool:
        return self.num_unfinished == 0 and not self.trainable


class GroupStore:
    """All groups of one partition, from their submission to when they are taken or evicted."""

    def __init__(self, rules: StoreRules | None = None) -> None:
        self.rules = rules or StoreRules()
        assert self.rules.filter_metric is None or self.rules.filter_metric in GROUP_METRICS
        self._steps: dict[int, _Step] = {}
        self._phases: dict[int, GroupPhase] = {}
        self._first_steps: dict[int, int] = {}
        self._useless: dict[int, SampleGroup | None] = {}
        """Finished with equal metrics, or failed (None): waiting to be evicted."""

    # --- a group's way ----------------------------------------------------------------------------------------

    def admit(self, group_id: int, first_step: int) -> None:
        assert group_id not in self._phases, f"group {group_id} admitted twice"
        self._phases[group_id] = GroupPhase.PENDING
        self._first_steps[group_id] = first_step
        self._at(first_step).num_unfinished += 1

    def start(self, group_id: int) -> None:
        self._move(group_id, GroupPhase.PENDING, GroupPhase.RUNNING)

    def finish(self, group: SampleGroup) -> None:
        """A whole group, scored. Pending ones finish too: a checkpoint's groups come back finished."""
        group_id = group.group_id
        self._end_of_running(group_id, GroupPhase.FINISHED)
        if self._is_filtered(group):
            self._useless[group_id] = group
        else:
            self._at(self._first_steps[group_id]).trainable[group_id] = group

    def fail(self, group_id: int) -> None:
        self._end_of_running(group_id, GroupPhase.FAILED)
        self._useless[group_id] = None

    def take(self, num_groups: int, step: int) -> list[SampleGroup]:
        """The oldest ``num_groups`` sampleable groups, by first step and then in the order they finished."""
        assert num_groups <= self.sampleable_count(step), "took more groups than are sampleable"
        taken: list[SampleGroup] = []
        for first_step in sorted(self._steps):
            if len(taken) == num_groups:
                break
            if self._is_stale(first_step, step):
                continue
            trainable = self._steps[first_step].trainable
            for group_id in list(trainable)[: num_groups - len(taken)]:
                taken.append(trainable[group_id])
                self._forget(group_id)
        return taken

    def evict(self, step: int) -> Evictions:
        """Remove every stale, filtered or failed group, each once."""
        evictions = Evictions()
        for group_id, group in list(self._useless.items()):
            evictions.num_groups += 1
            evictions.num_failed += group is None
            evictions.num_filtered += group is not None
            evictions.num_stale += group is not None and self._is_stale(self._first_steps[group_id], step)
            if group is not None:
                evictions.finished_ids.append(group_id)
            self._forget(group_id)
        for group_id in list(self._stale_ids(step)):
            evictions.num_groups += 1
            evictions.num_stale += 1
            evictions.finished_ids.append(group_id)
            self._forget(group_id)
        return evictions

    # --- questions without side effects -----------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._phases)

    def phase(self, group_id: int) -> GroupPhase | None:
        return self._phases.get(group_id)

    def first_step(self, group_id: int) -> int:
        return self._first_steps[group_id]

    def sampleable_count(self, step: int) -> int:
        """Groups that could be taken at ``step``."""
        return 0 if self.is_blocked(step) else self.trainable_count(step)

    def trainable_count(self, step: int) -> int:
        """Finished groups of use at ``step``, even if an old one in flight blocks them for now."""
        return sum(len(s.trainable) for first, s in self._steps.items() if not self._is_stale(first, step))

    def has_evictable(self, step: int) -> bool:
        return bool(self._useless) or any(True for _ in self._stale_ids(step))

    @property
    def num_unfinished(self) -> int:
        """Pending and running groups."""
        return sum(s.num_unfinished for s in self._steps.values())

    @property
    def num_finished(self) -> int:
        """Finished groups, those that only wait to be evicted included; failed ones not."""
        filtered = sum(group is not None for group in self._useless.values())
        return filtered + sum(len(s.trainable) for s in self._steps.values())

    def is_blocked(self, step: int) -> bool:
        """Strategy ``wait``: an unfinished group has reached the threshold."""
        threshold = self.rules.max_off_policy_threshold
        if threshold is None or self.rules.max_off_policy_strategy is OffPolicyStrategy.DROP:
            return False
        return any(s.num_unfinished > 0 and step - first + 1 >= threshold for first, s in self._steps.items())

    def finished(self) -> list[SampleGroup]:
        """Every finished group, for checkpoints: oldest first step first."""
        groups = [g for first in sorted(self._steps) for g in self._steps[first].trainable.values()]
        return [*groups, *(g for g in self._useless.values() if g is not None)]

    def check(self) -> None:
        """Every group is in one phase, and the counts agree."""
        phases = list(self._phases.values())
        unfinished = phases.count(GroupPhase.PENDING) + phases.count(GroupPhase.RUNNING)
        assert self.num_unfinished == unfinished
        assert self.num_finished == phases.count(GroupPhase.FINISHED)
        assert self._phases.keys() == self._first_steps.keys()

    # --- inside -----------------------------------------------------------------------------------------------

    def _at(self, first_step: int) -> _Step:
        return self._steps.setdefault(first_step, _Step())

    def _move(self, group_id: int, expected: GroupPhase, target: GroupPhase) -> None:
        found = self._phases.get(group_id)
        assert found is expected, f"group {group_id} is {found or 'unknown'}, expected {expected}"
        self._phases[group_id] = target

    def _end_of_running(self, group_id: int, target: GroupPhase) -> None:
        found = self._phases.get(group_id)
        assert found in (GroupPhase.PENDING, GroupPhase.RUNNING), f"group {group_id} is {found or 'unknown'}"
        self._phases[group_id] = target
        self._at(self._first_steps[group_id]).num_unfinished -= 1

    def _forget(self, group_id: int) -> None:
        first_step = self._first_steps.pop(group_id)
        del self._phases[group_id]
        self._useless.pop(group_id, None)
        # Useless groups do not keep their step: it may be gone already.
        at = self._at(first_step)
        at.trainable.pop(group_id, None)
        if at.is_empty:
            del self._steps[first_step]

    def _is_filtered(self, group: SampleGroup) -> bool:
        name = self.rules.filter_metric
        if name is None:
            return False
        values = [GROUP_METRICS[name](sample) for sample in group.samples]
        return all(value == values[0] for value in values)

    def _is_stale(self, first_step: int, step: int) -> bool:
        rules = self.rules
        if rules.max_off_policy_threshold is None or rules.max_off_policy_strategy is OffPolicyStrategy.WAIT:
            return False
        return step - first_step + 1 > rules.max_off_policy_threshold

    def _stale_ids(self, step: int) -> Iterator[int]:
        for first_step in sorted(self._steps):
            if not self._is_stale(first_step, step):
                return
            yield from self._steps[first_step].trainable
