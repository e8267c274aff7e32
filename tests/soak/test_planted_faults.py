"""Known faults, planted one at a time: the soak must catch each within a few hundred seeds, and say what is wrong."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pytest

from swingshift.core import routing
from swingshift.core.buffer import GroupStore
from swingshift.core.lifecycle import LendingState
from swingshift.core.routing import Lease, RoutingTable
from swingshift.core.staleness import StalenessBudget
from swingshift.core.types import FinishReason, ReplicaKind, SampleGroup, SamplingParams, TokenOutput, WeightVersion
from swingshift.runtime.client import PartialResponse
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.ports import Replica
from swingshift.runtime.queue import SampleQueue
from swingshift.runtime.replica_calls import ReplicaCalls
from swingshift.runtime.rollouter import Buffered, Rollouter
from swingshift.runtime.save_call import SaveCall
from swingshift.runtime.session import Session
from swingshift.runtime.training_call import TrainingCall
from swingshift.runtime.validator import Validator
from swingshift.schedule.default import RATIO_DECREASE, DefaultDynamicSchedulePolicy
from swingshift.sim.fault_draw import draw_case
from swingshift.sim.soak_run import run_case

MOST_SEEDS = 400

Patch = pytest.MonkeyPatch


# --- routing ------------------------------------------------------------------------------------------------


def first_in_dict_routing(patch: Patch) -> None:
    """Ties go to whoever was registered first."""
    patch.setitem(
        routing.STRATEGIES, "least_inflight", lambda table, request: min(table._lives, key=lambda r: table.load(r))
    )


def most_loaded_routing(patch: Patch) -> None:
    patch.setitem(
        routing.STRATEGIES, "least_inflight", lambda table, request: max(table._lives, key=lambda r: table.load(r))
    )


def late_release(patch: Patch) -> None:
    """A release from a replica's earlier life lowers the count of its new one."""
    release = RoutingTable.release

    def late(self: RoutingTable, lease: Lease) -> bool:
        life = self._lives.get(lease.replica_id)
        if life is None or life.number == lease.life or not life.leases:
            return release(self, lease)
        return release(self, next(iter(life.leases.values())))

    patch.setattr(RoutingTable, "release", late)


def leaked_lease(patch: Patch) -> None:
    """A request that was aborted stays counted."""
    release = RoutingTable.release
    patch.setattr(RoutingTable, "release", lambda self, lease: lease.num_tokens % 7 != 0 and release(self, lease))


# --- policy, queue and budget -------------------------------------------------------------------------------


def wind_up(patch: Patch) -> None:
    """The adaptive ratio has no floor."""
    update = DefaultDynamicSchedulePolicy.update_after_step

    def unclamped(self: DefaultDynamicSchedulePolicy, global_steps: int, ctx: Any) -> None:
        before = self.deactivate_ratio
        update(self, global_steps, ctx)
        if self.deactivate_ratio == 0.0:
            self.deactivate_ratio = before - RATIO_DECREASE

    patch.setattr(DefaultDynamicSchedulePolicy, "update_after_step", unclamped)


def drop_oldest_queue(patch: Patch) -> None:
    def put(self: SampleQueue, group: SampleGroup) -> None:
        if len(self._groups) >= max(1, self.capacity // 2):
            self._groups.popleft()
        self._groups.append(group)

    patch.setattr(SampleQueue, "put", put)


def budget_off_by_one(patch: Patch) -> None:
    def one_more(self: StalenessBudget) -> int:
        return max(0, self.max_required_samples + 1 - self.staleness_samples)

    patch.setattr(StalenessBudget, "num_submittable", property(one_more))


def budget_not_given_back(patch: Patch) -> None:
    """What failed still counts, so that the trainer gets smaller collections than it should."""
    patch.setattr(StalenessBudget, "refund", lambda self: None)


def unbounded_wait(patch: Patch) -> None:
    """Nobody notices that no more groups can come."""

    def buffered(self: Rollouter, num_groups: int) -> Buffered | None:
        if len(self.queue) >= num_groups:
            return Buffered.ENOUGH
        return Buffered.STOPPED if self._stopped else None

    patch.setattr(Rollouter, "_buffered", buffered)


def stale_by_one(patch: Patch) -> None:
    """Groups may be a step older than the rule says."""
    is_stale = GroupStore._is_stale
    patch.setattr(GroupStore, "_is_stale", lambda self, first, step: is_stale(self, first, step - 1))


# --- controller ---------------------------------------------------------------------------------------------


async def _activate(self: DynamicResourceController, *, state_first: bool, routed_first: bool) -> bool:
    async with self._busy:
        self.state = LendingState.HYBRID_ACTIVE if state_first else LendingState.ACTIVATING
        await self._trainer_call("offload", self._trainer.offload())
        if routed_first:
            self._balancer.add(self.hybrid)
        failed = await self._try_each(self.hybrid, partial(self._calls.wake, version=self.version))
        await self._put_back(failed)
        if not routed_first:
            self._balancer.add(self.hybrid)
        await self._put_back(await self._try_each(self.hybrid, self._calls.resume))
        self.state = LendingState.HYBRID_ACTIVE
        self.costs.activated(0.1)
        return True


def flip_before_effect(patch: Patch) -> None:
    async def activate(self: DynamicResourceController) -> bool:
        return await _activate(self, state_first=True, routed_first=False)

    patch.setattr(DynamicResourceController, "activate", activate)


def routable_before_weights(patch: Patch) -> None:
    async def activate(self: DynamicResourceController) -> bool:
        return await _activate(self, state_first=False, routed_first=True)

    patch.setattr(DynamicResourceController, "activate", activate)


def failures_swallowed(patch: Patch) -> None:
    """A replica that could not be woken counts as lent."""
    try_each = DynamicResourceController._try_each

    async def swallow(
        self: DynamicResourceController, replicas: Iterable[Replica], step: Callable[[Replica], Awaitable[object]]
    ) -> dict[Replica, Exception]:
        failed = await try_each(self, replicas, step)
        return {} if getattr(step, "func", step) == self._calls.wake else failed

    patch.setattr(DynamicResourceController, "_try_each", swallow)


def rejoined_without_weights(patch: Patch) -> None:
    """A hybrid engine that was made anew while lent gets requests, but no weights."""

    init = DynamicResourceController.__init__

    def begin(self: DynamicResourceController, **parts: Any) -> None:
        init(self, **parts)
        calls = self._calls

        async def wake(replica: Replica, version: WeightVersion) -> None:
            await calls.bounded(replica.wake_up(("weights", "kv_cache")))
            if replica in self.hybrid:
                await calls.bounded(parts["weight_sync"].sync_hybrid(replica, version))

        calls.wake = wake

    patch.setattr(DynamicResourceController, "__init__", begin)


def rejoined_asleep(patch: Patch) -> None:
    """It counts as lent, and nobody has woken it."""

    async def rejoin(self: DynamicResourceController, replica: Replica, restart: Any) -> None:
        async with self._busy:
            self.hybrid.append(await self._calls.bounded(restart(replica)))
            if self.is_hybrid_active:
                self._balancer.add(self.hybrid[-1:])

    patch.setattr(DynamicResourceController, "rejoin", rejoin)


def trainer_memory_kept(patch: Patch) -> None:
    """The engine wakes with the optimizer still on the device."""
    call = DynamicResourceController._trainer_call

    async def skip_offload(self: DynamicResourceController, what: str, awaitable: Any) -> None:
        if what == "offload":
            awaitable.close()
            return
        await call(self, what, awaitable)

    patch.setattr(DynamicResourceController, "_trainer_call", skip_offload)


def stale_kv(patch: Patch) -> None:
    """Where the cache is kept over a weight sync, its prefixes are kept too."""

    async def write(self: ReplicaCalls, replica: Replica, version: WeightVersion) -> None:
        sync = self._weight_sync
        if replica.kind is ReplicaKind.HYBRID:
            await self.bounded(sync.sync_hybrid(replica, version))
        else:
            await self.bounded(sync.sync_standalone(replica, version))
        if self._release_kv_cache:
            await self.bounded(replica.resume_kv_cache())

    patch.setattr(ReplicaCalls, "write_weights", write)


def abort_not_acknowledged(patch: Patch) -> None:
    """Weights are written while requests may still be running."""

    async def make_ready(self: ReplicaCalls, replica: Replica) -> None:
        self.__dict__.setdefault("unawaited", []).append(asyncio.ensure_future(replica.abort()))

    patch.setattr(ReplicaCalls, "make_ready", make_ready)


def call_without_deadline(patch: Patch) -> None:
    async def unbounded(self: ReplicaCalls, call: Awaitable[object]) -> object:
        return await call

    patch.setattr(ReplicaCalls, "bounded", unbounded)


def dead_replica_ends_the_run(patch: Patch) -> None:
    """The first replica that fails takes the run down with it, whoever else could serve."""

    async def each(
        self: DynamicResourceController, replicas: Iterable[Replica], step: Callable[[Replica], Awaitable[object]]
    ) -> None:
        for error in (await self._try_each(replicas, step)).values():
            raise error

    patch.setattr(DynamicResourceController, "_each", each)


# --- tokens and checkpoints ---------------------------------------------------------------------------------


def lost_tokens(patch: Patch) -> None:
    """What an aborted request returned is thrown away, although it is resumed."""
    append = PartialResponse.append

    def forget(self: PartialResponse, output: TokenOutput, sampling: SamplingParams, keep_partial: bool) -> None:
        before = self.token_ids, self.log_probs, self.version_spans
        append(self, output, sampling, keep_partial)
        if self.finish_reason is None and keep_partial and len(before[0]):
            self.token_ids, self.log_probs, self.version_spans = before

    patch.setattr(PartialResponse, "append", forget)


def half_responses(patch: Patch) -> None:
    """Aborted output is trained on as if it were finished."""
    append = PartialResponse.append

    def finish(self: PartialResponse, output: TokenOutput, sampling: SamplingParams, keep_partial: bool) -> None:
        append(self, output, sampling, True)
        if self.finish_reason is None and len(self.token_ids):
            self.finish_reason = FinishReason.LENGTH

    patch.setattr(PartialResponse, "append", finish)


def double_resubmission(patch: Patch) -> None:
    """What was in flight when a checkpoint was made is submitted twice after it."""
    load = Session.load_state_dict

    def twice(self: Session, state: Mapping[str, Any]) -> None:
        first = state["next_group_id"]
        again = [{**p, "group_id": first + i} for i, p in enumerate(state["pending"])]
        load(self, {**state, "pending": [*state["pending"], *again], "next_group_id": first + len(again)})

    patch.setattr(Session, "load_state_dict", twice)


def queue_not_saved(patch: Patch) -> None:
    """A resumed run knows nothing of what was queued."""
    state_dict = Session.state_dict
    patch.setattr(Session, "state_dict", lambda self: {**state_dict(self), "queued": []})


def saved_in_doubt(patch: Patch) -> None:
    """A checkpoint is made while nobody knows what the trainer does with the groups it has."""

    async def settle(self: TrainingCall, timeout_s: float) -> None:
        pass

    patch.setattr(TrainingCall, "settle", settle)
    patch.setattr(TrainingCall, "is_in_doubt", False)


def saves_cut_short(patch: Patch) -> None:
    """What ends a run breaks off the checkpoint under way, and the next is begun while its thread still writes."""

    async def run(self: SaveCall, begin: Callable[[], Awaitable[object]], what: str) -> None:
        await begin()

    patch.setattr(SaveCall, "run", run)


def validation_ends_the_run(patch: Patch) -> None:
    """An engine's error under a prompt that nobody trains on is everybody's."""

    async def one(self: Validator, client: Any, version: WeightVersion, index: int) -> tuple[float, ...] | None:
        name = f"val-{version}-{index}"
        samples = await client.generate(name, self._prompts[index], self._num_responses, self._sampling)
        return await self._reward.score(SampleGroup(index, self._prompts[index], samples, version))

    patch.setattr(Validator, "_one", one)


PLANTED = {
    first_in_dict_routing: r"got request .* it was .*'s turn",
    most_loaded_routing: r"got request .* it was .*'s turn",
    late_release: "requests nobody routed to it|counted as busy",
    leaked_lease: "counted as busy|is on standalone-. already|is on hybrid-. already|still counted",
    wind_up: r"ratio left \[0, 1\]",
    drop_oldest_queue: "AssertionError",
    budget_off_by_one: "AssertionError",
    budget_not_given_back: r"groups instead of \d|trained on|prompts left over",
    unbounded_wait: "StalledError though nothing explains it|DeadlockError",
    stale_by_one: "trained on groups of age",
    flip_before_effect: "counts as lent without weights|while nothing is lent|lending may not go",
    routable_before_weights: "is routable without weights",
    failures_swallowed: "without weights|without a KV cache|counts as lent",
    rejoined_without_weights: "without weights",
    rejoined_asleep: "is routable without|counts as lent without weights",
    trainer_memory_kept: "holds rollout and training memory",
    stale_kv: "made with older weights",
    abort_not_acknowledged: "under a running request|tasks are left behind|without weights or KV cache",
    call_without_deadline: "StalledError though nothing explains it|DeadlockError",
    dead_replica_ends_the_run: "nothing explains it|ExceptionGroup",
    lost_tokens: "goes on with .* tokens, its replicas returned",
    half_responses: r"has \d+ tokens instead of|goes on with .* tokens",
    double_resubmission: "prompts: .* trained|has a group twice",
    queue_not_saved: "a checkpoint has lost groups",
    saved_in_doubt: "a checkpoint has a group twice|was trained on",
    saves_cut_short: "clears away what another one is writing",
    validation_ends_the_run: "nothing explains it",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught(plant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    failure = first_failure()
    assert failure, f"{MOST_SEEDS} seeds did not notice"
    assert re.search(PLANTED[plant], failure), failure


def first_failure() -> str:
    for seed in range(MOST_SEEDS):
        failure = run_case(draw_case(seed)).failure
        if failure:
            return f"seed {seed}, {failure}"
    return ""


def test_without_a_planted_fault_nothing_is_caught() -> None:
    assert first_failure() == ""
