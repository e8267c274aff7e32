"""Groups and stores of them, for the tests of the store."""

from __future__ import annotations

from swingshift.core.buffer import Evictions, GroupStore, OffPolicyStrategy, StoreRules
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup

DROP, WAIT = OffPolicyStrategy.DROP, OffPolicyStrategy.WAIT
FILTER = StoreRules(filter_metric="reward")


def sample(reward: float | None = 0.0, length: int = 1) -> Sample:
    return Sample((7,) * length, (-0.5,) * length, ((0, length),), FinishReason.STOP, reward=reward)


def group(group_id: int, *rewards: float) -> SampleGroup:
    """Without rewards: of two different ones, so that no filter minds it."""
    samples = tuple(sample(reward) for reward in rewards or (0.0, 1.0))
    return SampleGroup(group_id, Prompt(str(group_id), (1,)), samples, submit_version=0)


def store_of(rules: StoreRules | None = None, **groups: str) -> GroupStore:
    """``g0=\"finished@3\"``: group 0, first submitted at step 3, finished. In the order given."""
    store = GroupStore(rules)
    for name, text in groups.items():
        phase, _, first_step = text.partition("@")
        group_id = int(name.removeprefix("g"))
        store.admit(group_id, int(first_step))
        if phase != "pending":
            store.start(group_id)
        if phase == "finished":
            store.finish(group(group_id))
        if phase == "filtered":
            store.finish(group(group_id, 1.0, 1.0))
        if phase == "failed":
            store.fail(group_id)
    store.check()
    return store


def ids(groups: list[SampleGroup]) -> list[int]:
    return [g.group_id for g in groups]


def counts(evictions: Evictions) -> tuple[int, int, int, int]:
    return (evictions.num_groups, evictions.num_stale, evictions.num_filtered, evictions.num_failed)
