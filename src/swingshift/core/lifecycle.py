"""The lending state machine: which states follow which, and the ordered steps of each transition.

::

    STANDALONE_ONLY ──▶ ACTIVATING ──▶ HYBRID_ACTIVE ──▶ DEACTIVATING ──▶ STANDALONE_ONLY
                            └── rolled back ──▶ STANDALONE_ONLY

The order of the steps is what keeps requests and memory safe: weights before routing on the way in, routing
before anything else on the way out. The controller performs them; this module only says what they are.
"""

from __future__ import annotations

from enum import StrEnum


class LendingState(StrEnum):
    STANDALONE_ONLY = "STANDALONE_ONLY"
    ACTIVATING = "ACTIVATING"
    HYBRID_ACTIVE = "HYBRID_ACTIVE"
    DEACTIVATING = "DEACTIVATING"


class Step(StrEnum):
    OFFLOAD_TRAINER = "offload_trainer"
    WAKE_WEIGHTS = "wake_weights"
    SYNC_WEIGHTS = "sync_weights"
    WAKE_KV_CACHE = "wake_kv_cache"
    ADD_TO_ROUTING = "add_replicas"
    RESUME_GENERATION = "resume_generation_replicas"
    REMOVE_FROM_ROUTING = "remove_replicas"
    ABORT = "abort_replicas"
    SLEEP = "sleep_replicas"
    ONLOAD_TRAINER = "onload_trainer"


ACTIVATE_STEPS = (
    Step.OFFLOAD_TRAINER,
    Step.WAKE_WEIGHTS,
    Step.SYNC_WEIGHTS,
    Step.WAKE_KV_CACHE,
    Step.ADD_TO_ROUTING,
    Step.RESUME_GENERATION,
)
DEACTIVATE_STEPS = (Step.REMOVE_FROM_ROUTING, Step.ABORT, Step.SLEEP, Step.ONLOAD_TRAINER)

TRANSITIONS: dict[LendingState, frozenset[LendingState]] = {
    LendingState.STANDALONE_ONLY: frozenset({LendingState.ACTIVATING}),
    LendingState.ACTIVATING: frozenset({LendingState.HYBRID_ACTIVE, LendingState.STANDALONE_ONLY}),
    LendingState.HYBRID_ACTIVE: frozenset({LendingState.DEACTIVATING}),
    LendingState.DEACTIVATING: frozenset({LendingState.STANDALONE_ONLY}),
}


def advance(current: LendingState, target: LendingState) -> LendingState:
    """Return ``target`` if it may follow ``current``; an illegal transition is a bug."""
    assert target in TRANSITIONS[current], f"lending may not go from {current} to {target}"
    return target
