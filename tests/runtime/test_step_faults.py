"""What can go wrong in global steps: switches that fail halfway, replicas that die, a trainer that does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from runtime_builders import MemorySaver, resume_from, simulate_failing
from step_builders import OFF, ScriptedSwitch, assert_conserved, rollouter_of, step_world, sync_world

from swingshift.core.lifecycle import LendingState
from swingshift.core.types import Prompt, SamplingParams
from swingshift.errors import (
    CheckpointError,
    NoReplicaError,
    ReplicaDiedError,
    ReplicaError,
    TrainerError,
    TransitionError,
)
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.world import World, WorldConfig, simulate

SLOW_ROLLOUT = ReplicaCost(step_base_s=0.05)
ERRORS = [ReplicaError("no memory"), ReplicaDiedError("gone")]


def at(*events: tuple[float, Callable[[World], None]]) -> Callable[[World], None]:
    def script(world: World) -> None:
        for when, event in events:
            asyncio.get_running_loop().call_at(when, event, world)

    return script


def die(replica_id: str) -> Callable[[World], None]:
    def event(world: World) -> None:
        next(r for r in (*world.standalone, *world.hybrid) if r.id == replica_id).die()

    return event


def failures(world: World) -> dict[str, str]:
    return dict(world.session.controller.failures)


def lending(**options: Any) -> WorldConfig:
    """Lends after every step, whatever it costs."""
    return step_world(**{"num_prompts": 48, "policy": ScriptedSwitch(wanted=6), **options})


# --- lending ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("verb", ["wake_up", "resume_generation"])
@pytest.mark.parametrize("error", ERRORS, ids=["error", "death"])
def test_a_replica_that_cannot_be_woken_is_taken_out_and_the_other_is_lent(
    verb: str, error: Exception, nth: int
) -> None:
    world = simulate(lending(num_hybrid=2, faults=PlannedFaults(errors={("hybrid-0", verb, nth): error})))
    assert_conserved(world, 48)
    assert list(failures(world)) == ["hybrid-0"]
    assert [row["dynamic_resource/num_activations"] for row in world.rows] == [2, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("nth", [1, 3])
def test_no_replica_can_be_woken_training_goes_on_without_lending(nth: int) -> None:
    """Each activation wakes twice: the third call is that of the first step's end."""
    policy = ScriptedSwitch(wanted=6)
    faults = PlannedFaults(errors={("hybrid-0", "wake_up", nth): ReplicaError("no memory")})
    world = simulate(lending(policy=policy, faults=faults))
    assert_conserved(world, 48)
    assert failures(world) == {"hybrid-0": "no memory"} and not world.session.controller.can_lend
    assert world.session.controller.state is LendingState.STANDALONE_ONLY
    assert all(device.training_loaded for device in world.trainer.sim_devices), "the trainer has its memory back"
    lent = [direction for direction, _ in policy.switches_s]
    assert lent == ([] if nth == 1 else ["to_trainer"]), "a switch that failed costs nothing"
    later = world.reports[2]
    assert later.row["separate_async/decision/should_switch_to_rollout"] == 0.0
    assert later.decision == "keep: no hybrid replica is left to lend"


def test_a_hung_wake_up_is_cut_off() -> None:
    world = simulate(lending(faults=PlannedFaults(delays_s={("hybrid-0", "wake_up"): 1e6}), call_timeout_s=5.0))
    assert_conserved(world, 48)
    assert failures(world) == {"hybrid-0": "no answer within 5 s"} and world.wall_s < 60


def test_a_failed_weight_sync_takes_the_replica_out_before_it_is_routable() -> None:
    faults = PlannedFaults(errors={("weight_sync", "sync_hybrid", 1): ReplicaError("bad weights")})
    world = simulate(lending(faults=faults))
    assert_conserved(world, 48)
    assert failures(world) == {"hybrid-0": "bad weights"} and ("hybrid-0", "generate") not in faults.log


@pytest.mark.parametrize("nth", [1, 3])
def test_a_replica_that_can_neither_wake_nor_sleep_ends_the_run_and_what_was_trained_is_saved(nth: int) -> None:
    saver = MemorySaver()
    errors: dict[tuple[str, str, int], Exception] = {("hybrid-0", "wake_up", nth): ReplicaError("half awake")}
    errors |= {("hybrid-0", "sleep", i): ReplicaError("stuck") for i in ((1,) if nth == 1 else (2,))}
    config = lending(faults=PlannedFaults(errors=errors), saver=saver)
    world = simulate_failing(config, TransitionError, r"hybrid-0 failed \(half awake\).*\(stuck\).*not safe")
    assert world.session.controller.state is LendingState.ACTIVATING, "the state says what is true"
    assert saver.last["num_consumed"] == len(world.trainer.trained) == (0 if nth == 1 else 8)
    resumed = simulate(lending(), resume_from(saver.last))
    assert sorted(world.trainer.trained + resumed.trainer.trained) == list(range(48))


# --- taking back --------------------------------------------------------------------------------------------


def test_a_failing_sleep_is_tried_once_more() -> None:
    world = simulate(lending(faults=PlannedFaults(errors={("hybrid-0", "sleep", 1): ReplicaError("busy")})))
    assert_conserved(world, 48)
    assert failures(world) == {"hybrid-0": "busy"}


@pytest.mark.parametrize("error", [ReplicaError("stuck"), TimeoutError()], ids=["error", "late"])
def test_a_replica_that_does_not_sleep_ends_the_run_before_the_trainer_uses_its_device(error: Exception) -> None:
    faults = PlannedFaults(errors={("hybrid-0", "sleep", i): error for i in (1, 2)})
    saver = MemorySaver()
    world = simulate_failing(lending(faults=faults, saver=saver), TransitionError, "hybrid-0.*not safe to use")
    assert world.session.controller.state is LendingState.DEACTIVATING
    assert world.trainer.trained == [] and ("trainer", "onload") not in faults.log
    assert saver.last["num_consumed"] == 0 and len(saver.last["queued"]) + len(saver.last["pending"]) == 16


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("verb", ["abort", "sleep"])
def test_a_replica_that_dies_while_it_is_taken_back_frees_its_device(verb: str, nth: int) -> None:
    world = simulate(lending(faults=PlannedFaults(errors={("hybrid-0", verb, nth): ReplicaDiedError("killed")})))
    assert_conserved(world, 48)
    assert list(failures(world)) == ["hybrid-0"]


def test_a_trainer_that_does_not_take_its_memory_back_in_time_ends_the_run() -> None:
    faults = PlannedFaults(delays_s={("trainer", "onload"): 1e6})
    simulate_failing(lending(faults=faults, call_timeout_s=5.0), TrainerError, "did not onload within 5 s")


# --- deaths -------------------------------------------------------------------------------------------------

MOMENTS = [0.0, 0.03, 0.3, 0.55, 0.8, 0.96, 0.99, 1.02, 1.07, 1.4, 2.0]
"""From the first sync to the third step: syncing, lent, taken back, training, deciding, lent again …"""


@pytest.mark.parametrize("when", MOMENTS)
def test_a_replica_dies_while_lent_or_not(when: float) -> None:
    world = simulate(lending(), at((when, die("hybrid-0"))))
    assert_conserved(world, 48)
    assert len(world.rows) == 6 and list(failures(world)) in (["hybrid-0"], [])


@pytest.mark.parametrize("when", MOMENTS)
def test_the_only_standalone_replica_dies_and_the_hybrid_one_generates_every_mini_batch(when: float) -> None:
    world = simulate(step_world(num_prompts=48), at((when, die("standalone-0"))))
    assert_conserved(world, 48)
    assert world.session.controller.only_hybrid and "standalone-0" in failures(world)
    assert world.session.controller.costs.num_activations > 5
    assert world.session.controller.state is LendingState.STANDALONE_ONLY


@pytest.mark.parametrize("when", MOMENTS)
def test_the_only_replica_dies_the_run_ends_with_an_error_and_loses_nothing(when: float) -> None:
    saver = MemorySaver()
    config = step_world(num_prompts=48, switch=OFF, lend=False, saver=saver)
    world = simulate_failing(config, NoReplicaError, "standalone-0", at((when, die("standalone-0"))))
    state = saver.last
    assert state["num_consumed"] == len(world.trainer.trained)
    known = [g["group_id"] for g in state["queued"]] + [p["group_id"] for p in state["pending"]]
    assert sorted([*world.trainer.trained, *known]) == list(range(state["next_group_id"]))


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("mode", ["on", "sync"])
def test_all_replicas_die_at_once(when: float, mode: str) -> None:
    config = sync_world(num_prompts=48, num_hybrid=2) if mode == "sync" else lending(num_hybrid=2)
    names = ["hybrid-0", "hybrid-1", *(["standalone-0"] if mode == "on" else [])]
    simulate_failing(config, NoReplicaError, "replica", at(*((when, die(name)) for name in names)))


@pytest.mark.parametrize("when", MOMENTS)
@pytest.mark.parametrize("warmup", [0, 1])
def test_one_of_two_replicas_dies_where_training_and_rollout_take_turns(when: float, warmup: int) -> None:
    world = simulate(sync_world(num_prompts=48, num_hybrid=2, warmup=warmup), at((when, die("hybrid-1"))))
    assert_conserved(world, 48)
    assert len(world.rows) == 6


def test_a_standalone_replica_dies_and_its_groups_continue_elsewhere() -> None:
    config = step_world(num_prompts=48, num_standalone=2, switch=OFF, replica_cost=SLOW_ROLLOUT)
    world = simulate(config, at((1.0, die("standalone-1"))))
    assert_conserved(world, 48)
    assert failures(world) == {"standalone-1": "standalone-1 died"}
    assert rollouter_of(world).max_concurrent_samples == 4


# --- the trainer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(1, 8))
@pytest.mark.parametrize("mode", ["on", "off", "sync"])
def test_an_error_in_any_mini_batch_loses_and_repeats_nothing(nth: int, mode: str) -> None:
    def config(**options: Any) -> WorldConfig:
        if mode == "sync":
            return sync_world(num_prompts=30, **options)
        return step_world(num_prompts=30, **options, **({"switch": OFF} if mode == "off" else {}))

    saver = MemorySaver()
    faults = PlannedFaults(errors={("trainer", "train", nth): TrainerError("broken")})
    first = simulate_failing(config(saver=saver, faults=faults), TrainerError, "broken")
    assert len(first.trainer.trained) == 4 * (nth - 1) == saver.last["num_consumed"]
    second = simulate(config(), resume_from(saver.last))
    assert sorted(first.trainer.trained + second.trainer.trained) == list(range(30))


def test_a_trainer_that_does_not_publish_in_time_ends_the_run() -> None:
    faults = PlannedFaults(delays_s={("weight_sync", "publish"): 1e6})
    simulate_failing(lending(faults=faults, call_timeout_s=7.0), TrainerError, "publish weights within 7 s")


def test_a_checkpoint_that_cannot_be_written_ends_the_run() -> None:
    saver = MemorySaver(error=CheckpointError("disk full"))
    simulate_failing(lending(saver=saver, save_freq=1), CheckpointError, "disk full")


# --- validation ---------------------------------------------------------------------------------------------


async def validate(client: Any, version: int) -> dict[str, float]:
    for i in range(3):
        await client.generate(f"val-{version}-{i}", Prompt("v", (0,)), 1, SamplingParams(max_tokens=80))
    return {"val/version": float(version)}


@pytest.mark.parametrize("name", ["standalone-0", "hybrid-0"])
@pytest.mark.parametrize("when", [0.97, 1.0, 1.2, 1.7, 2.4])
def test_a_replica_dies_during_validation(name: str, when: float) -> None:
    """The first step ends at 0.98; the validation after it takes one and a half seconds."""
    for policy in (ScriptedSwitch(wanted=6), None):
        world = simulate(lending(policy=policy, test_freq=1, validate=validate), at((when, die(name))))
        assert_conserved(world, 48)
        assert world.session.validations.take_row() == {"val/version": 6.0}


def test_a_borrowed_replica_that_cannot_be_woken_is_done_without() -> None:
    """It is the first time that anything is lent after the start: the third call."""
    faults = PlannedFaults(errors={("hybrid-0", "wake_up", 3): ReplicaError("no memory")})
    policy = ScriptedSwitch(wanted=4, gives_up=True)
    world = simulate(lending(policy=policy, test_freq=1, validate=validate, faults=faults))
    assert_conserved(world, 48)
    assert failures(world) == {"hybrid-0": "no memory"}
    assert [row.get("val/version") for row in world.rows] == [None, 1, 2, 3, 4, 5]


def test_all_replicas_die_during_validation() -> None:
    events = ((1.2, die("standalone-0")), (1.2, die("hybrid-0")))
    config = lending(test_freq=1, validate=validate, replica_wait_timeout_s=100.0)
    world = simulate_failing(config, NoReplicaError, "replica", at(*events))
    assert 8 <= len(world.trainer.trained) < 48 and len(failures(world)) == 2
