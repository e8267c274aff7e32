"""Replicas that fail are restarted, get weights, then serve; hung ones are found; nothing stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from runtime_builders import FREE, FREE_TRAINER, ScriptedPolicy, assert_all_trained_once, simulate_failing

from swingshift.errors import NoReplicaError, ReplicaDiedError, ReplicaError, StalledError, TooManyFailuresError
from swingshift.runtime.restarts import RestartSettings
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.replica import SimReplica
from swingshift.sim.world import World, WorldConfig, simulate

QUICK = RestartSettings(max_restarts=3, first_back_off_s=0.5)
CONFIG = WorldConfig(
    num_standalone=2, num_prompts=48, restart_s=1.0, restarts=QUICK, replica_cost=FREE, trainer_cost=FREE_TRAINER
)


def kill(*when: float, index: int = 0) -> Callable[[World], None]:
    """The process of a standalone replica ends at these moments."""

    def script(world: World) -> None:
        for moment in when:
            asyncio.get_running_loop().call_at(moment, lambda: world.standalone[index].die())

    return script


@pytest.mark.parametrize("lend", [True, False])
@pytest.mark.parametrize("num_standalone", [1, 2])
@pytest.mark.parametrize("moment", [0.05, 0.7, 1.3, 2.0, 3.1])
def test_a_replica_that_dies_comes_back_and_nothing_is_lost(lend: bool, num_standalone: int, moment: float) -> None:
    config = replace(CONFIG, lend=lend, num_standalone=num_standalone)
    world = simulate(config, kill(moment))
    assert_all_trained_once(world, 48)
    assert world.session.restarts.num_restarts == 1
    assert len(world.session.controller.standalone) == num_standalone
    assert not world.standalone[0].is_dead and world.standalone[0].num_calls > 3, "it serves again"


def test_it_serves_with_the_weights_of_now_without_waiting_for_the_next_sync() -> None:
    """One long cycle: the replica is back long before it ends."""
    config = replace(CONFIG, lend=False, num_standalone=2, trigger_parameter_sync_step=12)
    world = simulate(config, kill(0.3))
    assert len(world.rows) == 1
    lane = [s for s in world.spans if s.device == "standalone-0" and s.state.value == "rollout"]
    assert lane[-1].end_s > 3.0 > lane[0].start_s


def test_the_wait_for_the_only_replica_ends_with_its_return() -> None:
    """No lending, one replica: the trainer waits for the restart instead of giving up."""
    config = replace(CONFIG, lend=False, num_standalone=1)
    alone, killed = simulate(config), simulate(config, kill(1.0))
    assert killed.wall_s > alone.wall_s + 1.4
    assert_all_trained_once(killed, 48)


def test_deaths_in_a_row_end_the_run_and_say_so() -> None:
    """Every process that is started dies at once."""
    faults = PlannedFaults(errors={("standalone-0", "abort", n): ReplicaDiedError("killed") for n in range(1, 9)})
    world = simulate_failing(
        replace(CONFIG, faults=faults),
        TooManyFailuresError,
        r"standalone-0 failed 4 times in a row.*max_replica_restarts=3",
    )
    assert world.session.restarts.num_restarts == 0


def test_deaths_far_apart_do_not_add_up() -> None:
    config = replace(CONFIG, num_prompts=160)
    world = simulate(config, kill(1.0, 5.0, 9.0, 13.0, 17.0))
    assert world.session.restarts.num_restarts == 5
    assert_all_trained_once(world, 160)


# --- hybrid replicas: another engine in the trainer's process -----------------------------------------------


def kill_hybrid(*when: float) -> Callable[[World], None]:
    """The engine on the trainer's device ends at these moments, the trainer does not."""

    def script(world: World) -> None:
        for moment in when:
            asyncio.get_running_loop().call_at(moment, lambda: world.hybrid[0].die())

    return script


@pytest.mark.parametrize("num_standalone", [0, 1, 2])
@pytest.mark.parametrize("moment", [0.05, 0.3, 0.7, 1.3, 2.0, 3.1])
def test_a_hybrid_engine_that_dies_is_lent_again_and_nothing_is_lost(num_standalone: int, moment: float) -> None:
    config = replace(CONFIG, num_standalone=num_standalone, num_prompts=64)
    first: list[SimReplica] = []

    def script(world: World) -> None:
        first.append(world.hybrid[0])
        kill_hybrid(moment)(world)

    world = simulate(config, script)
    assert_all_trained_once(world, 64)
    assert world.session.restarts.num_restarts == 1
    assert world.session.controller.hybrid == [world.hybrid[0]] and world.hybrid[0] is not first[0]
    assert not world.hybrid[0].is_dead and world.hybrid[0].num_calls > 3, "it serves again"


def test_a_hybrid_engine_comes_back_within_the_same_lending() -> None:
    """A long wait for samples: the new engine is woken, gets weights and serves, without another activation."""
    policy = ScriptedPolicy(wait=24)
    config = replace(
        CONFIG, num_standalone=1, num_prompts=48, trigger_parameter_sync_step=4, staleness_threshold=0.5,
        policy_object=policy, restarts=RestartSettings(first_back_off_s=0.1), restart_s=0.1,
    )  # fmt: skip
    faults = PlannedFaults()
    world = simulate(replace(config, faults=faults), kill_hybrid(0.4))
    assert_all_trained_once(world, 48)
    assert world.session.restarts.num_restarts == 1
    calls = [verb for name, verb in faults.log if name == "hybrid-0"]
    woken = ["wake_up", "wake_up", "resume_generation"]
    again = calls.index("wake_up", 3)
    assert calls[:3] == calls[again : again + 3] == woken and calls[again + 3] == "generate"
    assert "sleep" not in calls[:again], "it was still lent"


@pytest.mark.parametrize("error", [ReplicaError("no memory"), ReplicaDiedError("gone")])
@pytest.mark.parametrize("verb", ["wake_up", "resume_generation", "abort", "sleep"])
def test_a_hybrid_replica_that_fails_a_transition_gets_another_chance(verb: str, error: Exception) -> None:
    faults = PlannedFaults(errors={("hybrid-0", verb, 2): error})
    world = simulate(replace(CONFIG, num_prompts=96, faults=faults, policy_object=ScriptedPolicy()))
    assert_all_trained_once(world, 96)
    assert world.session.restarts.num_restarts == 1 and world.session.controller.hybrid
    assert world.rows[-2]["dynamic_resource/num_activations"] == 1, "it is lent to the end"


def test_a_hybrid_replica_that_fails_again_and_again_stays_out_and_training_goes_on() -> None:
    faults = PlannedFaults(errors={("hybrid-0", "wake_up", n): ReplicaError("no memory") for n in range(1, 99)})
    world = simulate(replace(CONFIG, num_prompts=160, faults=faults, policy_object=ScriptedPolicy()))
    assert_all_trained_once(world, 160)
    assert world.session.restarts.num_restarts == 3 and not world.session.controller.hybrid
    assert len(world.session.controller.failures) == 4
    assert [name for name, verb in faults.log if verb == "wake_up"] == ["hybrid-0"] * 4


def test_the_only_replica_being_hybrid_the_run_ends_and_says_so() -> None:
    faults = PlannedFaults(errors={("hybrid-0", "wake_up", n): ReplicaError("no memory") for n in range(3, 99)})
    simulate_failing(replace(CONFIG, num_standalone=0, faults=faults), NoReplicaError, "hybrid-0: no memory")


def test_hybrid_failures_far_apart_do_not_add_up() -> None:
    config = replace(CONFIG, num_prompts=240, policy_object=ScriptedPolicy())
    world = simulate(config, kill_hybrid(*range(1, 36, 5)))
    assert_all_trained_once(world, 240)
    assert world.session.restarts.num_restarts >= 5 and world.session.controller.hybrid


def test_back_off_doubles_up_to_a_limit() -> None:
    settings = RestartSettings(first_back_off_s=1.0, longest_back_off_s=10.0)
    assert [settings.back_off_s(n) for n in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 8, 10, 10]


def test_without_restarts_the_run_goes_on_without_it() -> None:
    world = simulate(replace(CONFIG, restarts=RestartSettings(max_restarts=0)), kill(1.0))
    assert_all_trained_once(world, 48)
    assert [r.id for r in world.session.controller.standalone] == ["standalone-1"]


def test_stopping_does_not_wait_for_a_restart() -> None:
    def script(world: World) -> None:
        kill(1.0)(world)
        asyncio.get_running_loop().call_at(1.5, world.session.stop, "interrupted")

    config = replace(CONFIG, lend=False, num_standalone=1, restart_s=1000.0)
    world = simulate(config, script)
    assert world.exit_reason == "interrupted" and world.wall_s < 10


def test_a_prompt_under_which_replicas_die_fails_instead_of_killing_them_all() -> None:
    config = replace(
        CONFIG, lend=False, num_prompts=40, max_failed_ratio=0.2, restarts=RestartSettings(9, first_back_off_s=0.1)
    )

    def script(world: World) -> None:
        poison(world, "5")

    world = simulate(config, script)
    assert world.session.rollouter.ledger.num_failed == 1
    assert sorted(world.trainer.trained) == [i for i in range(40) if i != 5]
    assert world.session.restarts.num_restarts >= 2


def poison(world: World, request_id: str) -> None:
    """Whichever standalone replica is asked for this request dies."""
    client = world.session.client
    call = client._call

    async def call_or_die(replica, request):  # type: ignore[no-untyped-def]
        if request.request_id == request_id and replica.kind.value == "standalone":
            replica.die()
        return await call(replica, request)

    client._call = call_or_die  # type: ignore[method-assign]


def test_a_hung_replica_is_found_by_its_health_check() -> None:
    """Its requests never come back by themselves; the check gives it up and they continue elsewhere."""
    hung = PlannedFaults(delays_s={("standalone-0", "generate"): 1e6, ("standalone-0", "health"): 1e6})
    config = replace(
        CONFIG, lend=False, faults=hung, health_check_interval_s=2.0, call_timeout_s=1.0,
        restarts=RestartSettings(max_restarts=0),
    )  # fmt: skip
    world = simulate(config)
    assert_all_trained_once(world, 48)
    assert world.wall_s < 60
    assert world.session.controller.failures[0][0] == "standalone-0"


def test_the_watchdog_says_who_waits_for_what() -> None:
    hung = PlannedFaults(delays_s={("standalone-0", "generate"): 1e9, ("standalone-1", "generate"): 1e9})
    config = replace(CONFIG, lend=False, faults=hung, watchdog_timeout_s=100.0)
    world = simulate_failing(config, StalledError, r"nothing has moved for 1\d\d s .*train loop waits for 4 groups")
    assert world.session.now() < 300


def test_the_watchdog_lets_long_training_be() -> None:
    slow = replace(FREE_TRAINER, base_s=500.0)
    world = simulate(replace(CONFIG, trainer_cost=slow, num_prompts=16, watchdog_timeout_s=100.0))
    assert_all_trained_once(world, 16)
