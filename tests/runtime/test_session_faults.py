"""Everything that can go wrong with replicas and calls to them, and what must happen then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from runtime_builders import (
    MemorySaver,
    ScriptedPolicy,
    assert_all_trained_once,
    simulate_failing,
    total,
)

from swingshift.core.lifecycle import LendingState
from swingshift.errors import (
    NoReplicaError,
    ReplicaDiedError,
    ReplicaError,
    TrainerError,
    TransitionError,
)
from swingshift.schedule import Rebalance
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.world import World, WorldConfig, simulate


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


# --- activation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["wake_up", "resume_generation"])
@pytest.mark.parametrize("error", [ReplicaError("no memory"), ReplicaDiedError("gone")])
def test_a_replica_that_cannot_be_woken_is_taken_out_and_the_other_is_lent(verb: str, error: Exception) -> None:
    faults = PlannedFaults(errors={("hybrid-0", verb, 2): error})
    world = simulate(WorldConfig(num_hybrid=2, faults=faults))
    assert_all_trained_once(world, 64)
    assert list(failures(world)) == ["hybrid-0"]
    assert [r.id for r in world.session.controller.hybrid] == ["hybrid-1"]
    assert total(world, "dynamic_resource/num_activations") > 2, "lending goes on with the other one"
    last_of_it = max(i for i, (name, _) in enumerate(faults.log) if name == "hybrid-0")
    assert ("hybrid-1", "generate") in faults.log[last_of_it:]


def test_a_failed_weight_sync_takes_the_replica_out_before_it_is_routable() -> None:
    faults = PlannedFaults(errors={("weight_sync", "sync_hybrid", 1): ReplicaError("bad weights")})
    world = simulate(WorldConfig(faults=faults))
    assert_all_trained_once(world, 64)
    assert failures(world) == {"hybrid-0": "bad weights"}
    assert ("hybrid-0", "generate") not in faults.log


def test_no_hybrid_replica_can_be_woken_training_goes_on_without_lending() -> None:
    faults = PlannedFaults(errors={(f"hybrid-{i}", "wake_up", 3): ReplicaError("no memory") for i in range(2)})
    states: list[LendingState] = []
    world = simulate(
        WorldConfig(num_hybrid=2, faults=faults), at((5.0, lambda w: states.append(w.session.controller.state)))
    )
    assert_all_trained_once(world, 64)
    assert states == [LendingState.STANDALONE_ONLY] and not world.session.controller.can_lend
    assert world.session.controller.costs.num_activations == 1, "the failed activation is none"
    assert all(device.training_loaded for device in world.trainer.sim_devices), "the trainer has its memory back"


def test_a_hung_wake_up_is_cut_off_and_the_replica_put_back_to_sleep() -> None:
    faults = PlannedFaults(delays_s={("hybrid-0", "wake_up"): 1e6})
    world = simulate(WorldConfig(faults=faults, call_timeout_s=5.0))
    assert_all_trained_once(world, 64)
    assert failures(world) == {"hybrid-0": "no answer within 5 s"}
    assert world.wall_s < 60


def test_a_replica_that_can_neither_wake_nor_sleep_ends_the_run() -> None:
    faults = PlannedFaults(
        errors={
            ("hybrid-0", "wake_up", 2): ReplicaError("half awake"),
            ("hybrid-0", "sleep", 1): ReplicaError("stuck"),
        }
    )
    saver = MemorySaver()
    world = simulate_failing(
        WorldConfig(faults=faults, saver=saver),
        TransitionError,
        r"hybrid-0 failed \(half awake\).*\(stuck\).*not safe",
    )
    assert world.session.controller.state is LendingState.ACTIVATING, "the state says what is true"
    assert saver.states


# --- deactivation -------------------------------------------------------------------------------------------


def test_a_failing_sleep_is_tried_once_more() -> None:
    faults = PlannedFaults(errors={("hybrid-0", "sleep", 1): ReplicaError("busy")})
    world = simulate(WorldConfig(faults=faults))
    assert_all_trained_once(world, 64)
    assert failures(world) == {"hybrid-0": "busy"}


@pytest.mark.parametrize("error", [ReplicaError("stuck"), TimeoutError()])
def test_a_replica_that_does_not_sleep_ends_the_run_before_the_trainer_uses_its_device(error: Exception) -> None:
    faults = PlannedFaults(errors={("hybrid-0", "sleep", i): error for i in (1, 2)})
    world = simulate_failing(WorldConfig(faults=faults), TransitionError, "hybrid-0.*not safe to use")
    assert world.session.controller.state is LendingState.DEACTIVATING
    assert world.trainer.trained == [] and ("trainer", "onload") not in faults.log


@pytest.mark.parametrize("verb", ["abort", "sleep"])
def test_a_replica_that_dies_while_it_is_taken_back_frees_its_device(verb: str) -> None:
    faults = PlannedFaults(errors={("hybrid-0", verb, 1): ReplicaDiedError("killed")})
    world = simulate(WorldConfig(faults=faults))
    assert_all_trained_once(world, 64)
    assert list(failures(world)) == ["hybrid-0"]


def test_a_hybrid_replica_taken_out_while_lent_sleeps_before_the_trainer_returns() -> None:
    """It fails to resume after a rebalance: it is alive, awake and out of routing."""
    faults = PlannedFaults(errors={("hybrid-0", "resume_generation", 2): ReplicaError("cannot resume")})
    world = simulate(WorldConfig(faults=faults, num_hybrid=2))
    assert_all_trained_once(world, 64)
    assert failures(world) == {"hybrid-0": "cannot resume"}
    calls = [verb for name, verb in faults.log if name == "hybrid-0"]
    assert calls[-2:] == ["abort", "sleep"]


def test_a_trainer_that_does_not_take_its_memory_back_in_time_ends_the_run() -> None:
    faults = PlannedFaults(delays_s={("trainer", "onload"): 1e6})
    simulate_failing(WorldConfig(faults=faults, call_timeout_s=5.0), TrainerError, "did not onload within 5 s")


# --- requests and replicas ----------------------------------------------------------------------------------


def test_a_late_request_to_a_sleeping_replica_goes_elsewhere() -> None:
    """Routed while lent, it arrives after the replica was told to refuse."""
    faults = PlannedFaults(delays_s={("hybrid-0", "generate"): 0.3})
    policy = ScriptedPolicy(wait=0, rebalance=None)
    world = simulate(WorldConfig(faults=faults, policy_object=policy, num_prompts=40))
    assert_all_trained_once(world, 40)
    assert world.session.rollouter.ledger.num_failed == 0
    assert ("hybrid-0", "generate") in faults.log


def test_a_standalone_replica_dies_and_its_requests_continue_elsewhere_with_their_tokens() -> None:
    cost = ReplicaCost(step_base_s=0.01, abort_s=0.0)
    world = simulate(WorldConfig(num_standalone=2, lend=False, replica_cost=cost), at((2.0, die("standalone-1"))))
    assert_all_trained_once(world, 64)
    assert failures(world) == {"standalone-1": "standalone-1 died"}
    assert world.session.rollouter.max_concurrent_samples == 4
    lane = [s for s in world.spans if s.device == "standalone-1" and s.start_s >= 2.0]
    assert [s.state for s in lane] == ["idle"]


def test_the_last_standalone_replica_dies_and_the_hybrid_ones_take_over() -> None:
    world = simulate(WorldConfig(policy="static_fully_async"), at((2.0, die("standalone-0"))))
    assert_all_trained_once(world, 64)
    assert world.session.controller.only_hybrid
    assert world.session.controller.costs.num_activations >= 3


@pytest.mark.parametrize("policy", ["default", "fixed_ratio"])
def test_the_last_standalone_replica_dies_under_a_lending_policy(policy: str) -> None:
    assert_all_trained_once(simulate(WorldConfig(policy=policy), at((2.0, die("standalone-0")))), 64)


@pytest.mark.parametrize("when", [0.01, 0.3, 2.0, 2.4])
def test_the_only_replica_dies_the_run_ends_with_an_error_and_is_saved(when: float) -> None:
    saver = MemorySaver()
    world = simulate_failing(
        WorldConfig(lend=False, saver=saver), NoReplicaError, "standalone-0", at((when, die("standalone-0")))
    )
    state = saver.last
    assert state["num_consumed"] == len(world.trainer.trained)
    known = [g["group_id"] for g in state["queued"]] + [p["group_id"] for p in state["pending"]]
    assert sorted([*world.trainer.trained, *known]) == list(range(state["next_group_id"])), "nothing is lost"


@pytest.mark.parametrize("when", [0.0, 0.05, 0.5, 1.0, 2.0, 3.0])
def test_all_replicas_die_at_once(when: float) -> None:
    events = [(when, die(r)) for r in ("standalone-0", "standalone-1", "hybrid-0", "hybrid-1")]
    world = simulate_failing(WorldConfig(num_standalone=2, num_hybrid=2), NoReplicaError, "replica", at(*events))
    assert len(failures(world)) >= 2


@pytest.mark.parametrize("when", [0.05 + 0.15 * i for i in range(20)])
def test_a_hybrid_replica_dies_while_it_generates_alone(when: float) -> None:
    """Nobody else is there to take over: an error, not an early, silent end."""
    world = simulate_failing(
        WorldConfig(policy_object=ScriptedPolicy(activate=False), num_standalone=0),
        NoReplicaError,
        "hybrid",
        at((when, die("hybrid-0"))),
    )
    assert len(world.trainer.trained) < 64


def test_a_hung_weight_sync_takes_the_replica_out_after_its_deadline() -> None:
    faults = PlannedFaults(delays_s={("standalone-1", "resume_kv_cache"): 1e6})
    world = simulate(WorldConfig(num_standalone=2, lend=False, faults=faults, call_timeout_s=7.0))
    assert_all_trained_once(world, 64)
    assert failures(world) == {"standalone-1": "no answer within 7 s"}


def test_requests_held_by_a_replica_that_is_taken_out_are_not_waited_for() -> None:
    """Paused by a rebalance it hangs, still routable: whoever asked it since must get an answer from another."""
    num_resumes = 0

    async def hang(name: str, verb: str) -> None:
        nonlocal num_resumes
        if (name, verb) == ("standalone-1", "resume_generation"):
            num_resumes += 1
            if num_resumes == 4:
                await asyncio.sleep(1e6)

    policy = ScriptedPolicy(wait=2, rebalance=Rebalance.FULL)
    config = WorldConfig(
        num_standalone=2,
        staleness_threshold=2.0,
        lengths=lambda request, index: 100 + 10 * int(request),
        max_tokens=1000,
        faults=hang,
        policy_object=policy,
        call_timeout_s=5.0,
    )
    world = simulate(config)
    assert num_resumes == 4
    assert_all_trained_once(world, 64)
    assert failures(world) == {"standalone-1": "no answer within 5 s"}


def test_a_trainer_that_does_not_publish_in_time_ends_the_run() -> None:
    faults = PlannedFaults(delays_s={("weight_sync", "publish"): 1e6})
    simulate_failing(WorldConfig(faults=faults, call_timeout_s=7.0), TrainerError, "publish weights within 7 s")


def test_a_failing_trainer_ends_the_run_and_its_groups_are_not_lost() -> None:
    faults = PlannedFaults(errors={("trainer", "train", 4): TrainerError("loss is not finite")})
    saver = MemorySaver()
    world = simulate_failing(WorldConfig(faults=faults, saver=saver), TrainerError, "not finite")
    state = saver.last
    assert len(world.trainer.trained) == 12 == state["num_consumed"]
    assert len(state["queued"]) >= 4, "the groups of the failed collection are queued again"


# --- rebalance ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(Rebalance))
def test_rebalance_restores_every_replica_it_paused_even_when_one_abort_fails(kind: Rebalance) -> None:
    verb = "abort" if kind is Rebalance.FULL else "abort_requests"
    # Aborts are also part of each sync; the second of a replica is the rebalance after the first activation.
    errors: dict[tuple[str, str, int], Exception] = {
        ("standalone-0", verb, 2 if kind is Rebalance.FULL else 1): ReplicaError("no")
    }
    faults = PlannedFaults(errors=errors)
    policy = ScriptedPolicy(wait=4, rebalance=kind)
    accepting: list[list[bool]] = []

    def watch(world: World) -> None:
        rebalance = world.session.controller.rebalance

        async def observed(kind: Rebalance) -> None:
            await rebalance(kind)
            accepting.append([r.is_accepting for r in (*world.standalone, *world.hybrid)])

        world.session.controller.rebalance = observed  # type: ignore[method-assign]

    world = simulate(WorldConfig(num_standalone=2, num_hybrid=2, faults=faults, policy_object=policy), watch)
    assert_all_trained_once(world, 64)
    assert failures(world) == {}
    assert len(accepting) >= 3 and all(all(states) for states in accepting)


def test_full_rebalance_spreads_requests_over_the_newcomers() -> None:
    loads: list[dict[str, int]] = []

    def watch(world: World) -> None:
        rebalance = world.session.controller.rebalance

        async def observed(kind: Rebalance) -> None:
            await rebalance(kind)
            await asyncio.sleep(0.005)
            loads.append(world.session.balancer.table.loads())

        world.session.controller.rebalance = observed  # type: ignore[method-assign]

    for kind in Rebalance:
        loads.clear()
        config = WorldConfig(
            num_standalone=1,
            num_hybrid=1,
            concurrent_samples_per_replica=12,
            staleness_threshold=2.0,
            lengths=lambda request, index: 1000,
            max_tokens=1000,
            num_prompts=48,
            policy_object=ScriptedPolicy(wait=2, rebalance=kind),
        )
        simulate(config, watch)
        assert loads and all(max(x.values()) - min(x.values()) <= 1 for x in loads), (kind, loads)
