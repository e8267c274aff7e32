"""The steps at one replica: the order of their calls, a deadline for each, and what becomes of a failed abort."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from swingshift.core.types import ReplicaKind
from swingshift.errors import ReplicaDiedError, ReplicaError
from swingshift.runtime.replica_calls import NoAnswerError, ReplicaCalls
from swingshift.sim.device import SimDevice
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.loop import run_virtual
from swingshift.sim.replica import ReplicaCost, SimReplica
from swingshift.sim.trainer import SimTrainer, SimWeightSync, TrainerCost
from swingshift.sim.workload import constant_lengths

STANDALONE, HYBRID = ReplicaKind
TIMEOUT_S = 5.0
FREE = ReplicaCost(abort_s=0.0, sleep_s=0.0, wake_s=0.0, kv_cache_s=0.0)
Step = Callable[[ReplicaCalls, SimReplica], Awaitable[None]]

STEPS: dict[str, Step] = {
    "make_ready": lambda calls, replica: calls.make_ready(replica),
    "write_weights": lambda calls, replica: calls.write_weights(replica, 1),
    "wake": lambda calls, replica: calls.wake(replica, 1),
    "resume": lambda calls, replica: calls.resume(replica),
    "refuse": lambda calls, replica: calls.refuse(replica),
    "sleep": lambda calls, replica: calls.sleep(replica),
    "abort_and_resume": lambda calls, replica: calls.abort_and_resume(replica),
    "move_requests": lambda calls, replica: calls.move_requests(replica, ["q"]),
}


class Outcome:
    """One step at a paused replica that has weights: the calls it made, how it ended, and when."""

    def __init__(
        self, step: str, faults: PlannedFaults, kind: ReplicaKind = HYBRID, release_kv_cache: bool = True
    ) -> None:
        self.raised: Exception | None = None

        async def main() -> None:
            device = SimDevice("device")
            trainer = SimTrainer([device], TrainerCost(sync_standalone_s=0.0, sync_hybrid_s=0.0))
            trainer.published = 1
            self.replica = SimReplica("r", kind, [device], FREE, constant_lengths(5), faults)
            self.replica.has_kv_cache = True
            self.replica.write_weights(0)
            self.replica.is_kv_stale = False
            calls = ReplicaCalls(SimWeightSync(trainer, faults), TIMEOUT_S, release_kv_cache)
            try:
                await STEPS[step](calls, self.replica)
            except ReplicaError as error:
                self.raised = error
            self.ended_s = asyncio.get_running_loop().time()

        run_virtual(main())
        self.verbs = [verb for _, verb in faults.log]


@pytest.mark.parametrize(
    ("step", "kind", "release_kv_cache", "verbs"),
    [
        ("make_ready", STANDALONE, True, ["abort", "release_kv_cache"]),
        ("make_ready", STANDALONE, False, ["abort"]),
        ("write_weights", STANDALONE, True, ["sync_standalone", "resume_kv_cache"]),
        ("write_weights", STANDALONE, False, ["sync_standalone", "resume_kv_cache"]),
        ("write_weights", HYBRID, True, ["sync_hybrid", "resume_kv_cache"]),
        ("wake", HYBRID, True, ["wake_up", "sync_hybrid", "wake_up"]),
    ],
)
def test_a_step_makes_its_calls_in_order(
    step: str, kind: ReplicaKind, release_kv_cache: bool, verbs: list[str]
) -> None:
    outcome = Outcome(step, PlannedFaults(), kind, release_kv_cache)
    assert outcome.verbs == verbs and outcome.raised is None
    assert not outcome.replica.is_accepting and not outcome.replica.is_kv_stale


@pytest.mark.parametrize("step", STEPS)
def test_a_deadline_that_passes_is_an_error_of_its_kind(step: str) -> None:
    ports = {
        "r": ("abort", "abort_requests", "wake_up", "resume_generation", "sleep"),
        "weight_sync": ("sync_hybrid",),
    }
    hanging = PlannedFaults(delays_s={(name, verb): 1e9 for name, verbs in ports.items() for verb in verbs})
    outcome = Outcome(step, hanging)
    assert isinstance(outcome.raised, NoAnswerError) and isinstance(outcome.raised, ReplicaDiedError)
    assert str(outcome.raised) == "no answer within 5 s"
    assert outcome.ended_s == TIMEOUT_S * len(outcome.verbs)


def test_the_deadline_is_that_of_a_call_and_not_of_a_step() -> None:
    outcome = Outcome("wake", PlannedFaults(delays_s={("r", "wake_up"): 4.0, ("weight_sync", "sync_hybrid"): 4.0}))
    assert outcome.raised is None and outcome.replica.version == 1
    assert outcome.ended_s == 12.0


@pytest.mark.parametrize("failing", [1, 2])
def test_a_step_ends_at_the_call_that_fails(failing: int) -> None:
    error = ReplicaError("no memory")
    outcome = Outcome("wake", PlannedFaults(errors={("r", "wake_up", failing): error}))
    assert outcome.raised is error
    assert outcome.verbs == ["wake_up", "sync_hybrid", "wake_up"][: 2 * failing - 1]


FAILS, DIES, HANGS = ReplicaError("busy"), ReplicaDiedError("gone"), None


@pytest.mark.parametrize(
    ("step", "meets", "resumes", "raised"),
    [
        ("abort_and_resume", {}, True, ""),
        ("abort_and_resume", {"abort": FAILS}, True, ""),
        # Without an answer it may well live, and must not stay paused then.
        ("abort_and_resume", {"abort": HANGS}, True, "no answer within 5 s"),
        ("abort_and_resume", {"abort": DIES}, False, "r is dead"),
        ("abort_and_resume", {"resume_generation": FAILS}, False, "busy"),
        ("abort_and_resume", {"abort": HANGS, "resume_generation": FAILS}, False, "busy"),
        ("move_requests", {}, False, ""),
        ("move_requests", {"abort_requests": FAILS}, False, ""),
        ("move_requests", {"abort_requests": HANGS}, False, "no answer within 5 s"),
        ("move_requests", {"abort_requests": DIES}, False, "gone"),
    ],
)
def test_an_abort_that_fails_is_warned_about_and_only_a_dead_replica_raises(
    step: str,
    meets: dict[str, Exception | None],
    resumes: bool,
    raised: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = {("r", verb, 1): error for verb, error in meets.items() if error is not HANGS}
    delays_s = {("r", verb): 1e9 for verb, error in meets.items() if error is HANGS}
    with caplog.at_level(logging.WARNING):
        outcome = Outcome(step, PlannedFaults(errors, delays_s))
    assert outcome.replica.is_accepting is resumes
    assert str(outcome.raised or "") == raised
    kept = "replica r kept its requests, it could not abort them: busy"
    assert caplog.messages == ([kept] if meets and not raised else [])
