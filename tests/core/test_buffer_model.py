"""The store against a plain dictionary, in which everything is looked for whenever it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from buffer_builders import DROP, WAIT, counts, group, ids
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swingshift.core.buffer import GroupPhase, GroupStore, OffPolicyStrategy, StoreRules
from swingshift.core.types import SampleGroup


@dataclass
class Known:
    """What the model knows of one group."""

    first_step: int
    phase: GroupPhase = GroupPhase.PENDING
    group: SampleGroup | None = None
    finished_as: int = 0


class StoreMachine(RuleBasedStateMachine):
    """The store against a plain dictionary, in which everything is looked for whenever it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Known] = {}
        self.step = 1
        self.next_id = 0
        self.num_finished = 0
        self.seen: set[int] = set()

    @initialize(
        threshold=st.sampled_from([None, 1, 2, 3]),
        strategy=st.sampled_from([DROP, WAIT]),
        metric=st.sampled_from([None, "reward"]),
    )
    def begin(self, threshold: int | None, strategy: OffPolicyStrategy, metric: str | None) -> None:
        self.rules = StoreRules(threshold, strategy, metric)
        self.store = GroupStore(self.rules)

    # what the model thinks

    def age(self, known: Known) -> int:
        return self.step - known.first_step + 1

    def is_stale(self, known: Known) -> bool:
        threshold = self.rules.max_off_policy_threshold
        return self.rules.max_off_policy_strategy is DROP and threshold is not None and self.age(known) > threshold

    def is_filtered(self, known: Known) -> bool:
        return known.group is not None and self.rules.filter_metric is not None and len(set(known.group.rewards)) == 1

    def unfinished(self) -> list[int]:
        return [i for i, k in self.known.items() if k.phase in (GroupPhase.PENDING, GroupPhase.RUNNING)]

    def finished(self) -> list[int]:
        return [i for i, k in self.known.items() if k.phase is GroupPhase.FINISHED]

    def is_blocked(self) -> bool:
        threshold = self.rules.max_off_policy_threshold
        if self.rules.max_off_policy_strategy is DROP or threshold is None:
            return False
        return any(self.age(self.known[i]) >= threshold for i in self.unfinished())

    def trainable(self) -> list[int]:
        found = [
            i for i in self.finished() if not self.is_stale(self.known[i]) and not self.is_filtered(self.known[i])
        ]
        return sorted(found, key=lambda i: (self.known[i].first_step, self.known[i].finished_as))

    def sampleable(self) -> list[int]:
        return [] if self.is_blocked() else self.trainable()

    # what may happen

    @rule(older=st.integers(0, 2), count=st.integers(1, 3))
    def admit(self, older: int, count: int) -> None:
        for _ in range(count):
            self.known[self.next_id] = Known(max(1, self.step - older))
            self.store.admit(self.next_id, max(1, self.step - older))
            self.next_id += 1

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(self.unfinished()))
        if self.known[group_id].phase is GroupPhase.PENDING:
            self.known[group_id].phase = GroupPhase.RUNNING
            self.store.start(group_id)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data(), rewards=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3))
    def finish(self, data: st.DataObject, rewards: list[float]) -> None:
        group_id = data.draw(st.sampled_from(self.unfinished()))
        known = self.known[group_id]
        self.num_finished += 1
        known.phase, known.group, known.finished_as = (
            GroupPhase.FINISHED,
            group(group_id, *rewards),
            self.num_finished,
        )
        self.store.finish(known.group)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(self.unfinished()))
        self.known[group_id].phase = GroupPhase.FAILED
        self.store.fail(group_id)

    @rule()
    def next_step(self) -> None:
        self.step += 1

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        wanted = data.draw(st.integers(0, len(self.sampleable())))
        expected = self.sampleable()[:wanted]
        taken = self.store.take(wanted, self.step)
        assert ids(taken) == expected
        assert [g is self.known[g.group_id].group for g in taken] == [True] * wanted
        assert not self.seen & set(expected), "taken twice"
        self.seen |= set(expected)
        for group_id in expected:
            del self.known[group_id]

    @rule()
    def evict(self) -> None:
        failed = {i for i, k in self.known.items() if k.phase is GroupPhase.FAILED}
        filtered = {i for i in self.finished() if self.is_filtered(self.known[i])}
        stale = {i for i in self.finished() if self.is_stale(self.known[i])}
        evictions = self.store.evict(self.step)
        assert counts(evictions) == (len(failed | filtered | stale), len(stale), len(filtered), len(failed))
        assert sorted(evictions.finished_ids) == sorted(filtered | stale)
        for group_id in failed | filtered | stale:
            del self.known[group_id]

    # what must hold always

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        store, step = self.store, self.step
        store.check()
        assert len(store) == len(self.known)
        assert {i: store.phase(i) for i in self.known} == {i: k.phase for i, k in self.known.items()}
        assert store.num_unfinished == len(self.unfinished()) and store.num_finished == len(self.finished())
        assert sorted(ids(store.finished())) == sorted(self.finished())
        assert store.is_blocked(step) == self.is_blocked()
        assert store.sampleable_count(step) == len(self.sampleable())
        assert store.trainable_count(step) == len(self.trainable())
        evictable = any(
            k.phase is GroupPhase.FAILED or (k.group is not None and (self.is_filtered(k) or self.is_stale(k)))
            for k in self.known.values()
        )
        assert store.has_evictable(step) == evictable


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
TestAgainstAModel = StoreMachine.TestCase
