"""Standalone replicas that die are restarted, get weights, then serve; hung ones are found; nothing stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from runtime_builders import FREE, FREE_TRAINER, assert_all_trained_once, simulate_failing

from swingshift.errors import ReplicaDiedError, StalledError, TooManyFailuresError
from swingshift.runtime.restarts import RestartSettings
from swingshift.sim.faults import PlannedFaults
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
        r"standalone-0 died 4 times in a row.*max_replica_restarts=3",
    )
    assert world.session.restarts.num_restarts == 0


def test_deaths_far_apart_do_not_add_up() -> None:
    config = replace(CONFIG, num_prompts=160)
    world = simulate(config, kill(1.0, 5.0, 9.0, 13.0, 17.0))
    assert world.session.restarts.num_restarts == 5
    assert_all_trained_once(world, 160)


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
