"""What a session of a soak case may end with, given the faults it met, and what must be true of what it trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swingshift.errors import (
    CheckpointError,
    DataError,
    NoReplicaError,
    StalledError,
    SwingshiftError,
    TooManyFailuresError,
    TrainerError,
    TransitionError,
)
from swingshift.sim.fault_plan import Fault, FaultKind
from swingshift.sim.soak_world import CALL_TIMEOUT_S, SoakWorld
from swingshift.sim.world import World

HARMLESS_S = CALL_TIMEOUT_S / 2
"""Delays that add up to less break no deadline."""


@dataclass(slots=True)
class Ended:
    """A session that ended by itself. ``fired``: every fault so far and the call or process it met."""

    outcome: str
    error: SwingshiftError | None
    world: World
    sizes: SoakWorld
    fired: Sequence[tuple[str, Fault]]

    def met(self, *names: str) -> bool:
        """Did calls or processes with one of these beginnings meet harmful faults?"""
        return any(where.startswith(names) and is_harmful(fault) for where, fault in self.fired)


def is_harmful(fault: Fault) -> bool:
    """Can it make a call fail or break its deadline?"""
    if fault.kind in (FaultKind.DELAY, FaultKind.LATE):
        return fault.seconds > HARMLESS_S
    return fault.kind not in (FaultKind.CRASH, FaultKind.STOP, FaultKind.CANCEL)


def _has_no_deadline(call: str) -> bool:
    """An engine may take as long as it likes for a request, and a reward's deadline is kept behind its port."""
    return call == "reward.score" or call.endswith(".generate")


REPLICAS = ("standalone", "hybrid")
"""What the names of their calls begin with."""


def may_end_with(ended: Ended) -> None:
    """AssertionError if nothing that happened explains this end."""
    error, world = ended.error, ended.world
    if error is None:
        stopped = any(fault.kind is FaultKind.STOP for _, fault in ended.fired)
        assert ended.outcome == "finished" or stopped, f"ended with {ended.outcome} though nobody stopped it"
        return
    controller, name = world.session.controller, type(error).__name__
    by_replicas = ended.met(*REPLICAS, "starter")
    explained = False
    match error:
        case NoReplicaError():
            explained = by_replicas and not controller.standalone and not controller.hybrid
        case TransitionError():
            explained = ended.met("hybrid")
        case TrainerError():
            explained = ended.met("trainer")
        case CheckpointError():
            explained = ended.met("store", "trainer")
        case TooManyFailuresError():
            explained = by_replicas or ended.met("reward")
        case StalledError():
            explained = any(fault.kind is FaultKind.HANG and _has_no_deadline(call) for call, fault in ended.fired)
        case DataError():
            explained = ended.met("prompts", "reward") or by_replicas or ended.sizes.filters
    if not explained:
        raise AssertionError(f"ended with {name} though nothing explains it: {error}") from error


def check_end(ended: Ended, leftovers: Sequence[str]) -> None:
    """Nothing is left of a session that ended; if it finished, every prompt was trained once or accounted for."""
    session, world = ended.world.session, ended.world
    assert not leftovers, f"tasks are left behind: {', '.join(sorted(leftovers)[:5])}"
    waits = session.board.describe(0.0)
    assert waits == "nobody waits", f"waits are left behind: {waits}"
    assert session.balancer.table.total_inflight == 0, "requests are still counted as in flight"
    ledger, trained = session.rollouter.ledger, world.trainer.trained
    assert len(set(trained)) == len(trained), "a group was trained twice"
    failed = ledger.num_failed
    if not ended.met(*REPLICAS, "reward", "starter"):
        assert failed == 0, f"{failed} groups failed though nothing went wrong with them"
    if ended.outcome != "finished":
        return
    assert not ledger.live and session.rollouter.num_remaining == 0, "finished with prompts left over"
    num_ended = len(trained) + failed + ledger.num_evicted
    assert num_ended == ended.sizes.num_prompts, (
        f"{ended.sizes.num_prompts} prompts: {len(trained)} trained, {failed} failed, {ledger.num_evicted} evicted"
    )
    for device in world.trainer.sim_devices:
        assert device.training_loaded and not device.rollout_awake, f"{device.name} was not given back"


def check_checkpoint(state: Mapping[str, Any], trained: Sequence[int], before: Mapping[str, Any] | None) -> None:
    """Every group up to its cursor is in it once, and agrees with what the trainer wrote beside it."""
    queued = [group["group_id"] for group in state["queued"]]
    pending = [prompt["group_id"] for prompt in state["pending"]]
    known = [*trained, *queued, *pending]
    assert len(set(known)) == len(known), f"a checkpoint has a group twice: {sorted(known)}"
    assert state["num_consumed"] == len(trained), (
        f"a checkpoint says that {state['num_consumed']} groups were trained, its model was trained on {len(trained)}"
    )
    num_ended = len(trained) + state["num_failed"] + state["num_evicted"]
    assert num_ended + len(queued) + len(pending) == state["next_group_id"], "a checkpoint has lost groups"
    assert before is None or state["version"] >= before["version"], "a checkpoint's version fell"
