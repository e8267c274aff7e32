"""Budgets, unreasonable policies and failing rewards: runs end, and say why."""

from __future__ import annotations

import pytest
from runtime_builders import (
    MemorySaver,
    ScriptedPolicy,
    assert_all_trained_once,
    fails_for,
    simulate_failing,
)

from swingshift.errors import (
    ConfigError,
    NoReplicaError,
    ReplicaError,
    TooManyFailuresError,
)
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import SimReward
from swingshift.sim.world import WorldConfig, simulate

# --- budgets and policies -----------------------------------------------------------------------------------


def test_a_wait_for_more_than_the_budget_allows_is_clamped() -> None:
    world = simulate(WorldConfig(policy_object=ScriptedPolicy(wait=10_000)))
    assert_all_trained_once(world, 64)


def test_a_wait_for_more_than_the_data_set_holds_ends() -> None:
    world = simulate(WorldConfig(policy_object=ScriptedPolicy(wait=12), num_prompts=5))
    assert_all_trained_once(world, 5)


def test_a_policy_that_never_deactivates_does_not_keep_the_trainer_from_its_devices() -> None:
    world = simulate(WorldConfig(policy_object=ScriptedPolicy(deactivate=False)))
    assert_all_trained_once(world, 64)
    assert world.session.controller.costs.num_deactivations > 3


@pytest.mark.parametrize("num_hybrid", [1, 2])
def test_a_policy_that_never_activates_with_only_hybrid_replicas_is_overruled(num_hybrid: int) -> None:
    world = simulate(
        WorldConfig(policy_object=ScriptedPolicy(activate=False), num_standalone=0, num_hybrid=num_hybrid)
    )
    assert_all_trained_once(world, 64)
    assert world.session.controller.costs.num_activations == 8, "once a cycle, for the whole cycle"


def test_without_any_replica_the_run_ends_with_a_clear_error() -> None:
    simulate_failing(WorldConfig(num_standalone=0, lend=False), NoReplicaError, "none was configured")


def test_a_negative_wait_is_no_wait() -> None:
    assert_all_trained_once(simulate(WorldConfig(policy_object=ScriptedPolicy(wait=-3))), 64)


def test_a_policy_that_raises_ends_the_run_and_is_saved() -> None:
    class Broken(ScriptedPolicy):
        def update_after_step(self, global_steps: int, ctx: object) -> None:
            raise ZeroDivisionError("in the policy")

    saver = MemorySaver()
    simulate_failing(WorldConfig(policy_object=Broken(), saver=saver), ConfigError, "ZeroDivisionError: in the pol")
    assert saver.last["num_consumed"] == 8


# --- rewards ------------------------------------------------------------------------------------------------


def test_failed_groups_are_counted_and_their_budget_is_given_back() -> None:
    bad = (3, 9, 10, 40)
    world = simulate(WorldConfig(reward=SimReward(score_fn=fails_for(*bad)), max_failed_ratio=0.3))
    assert sorted(world.trainer.trained) == [i for i in range(64) if i not in bad]
    assert world.rows[-1]["fully_async/count/failed_samples"] == 4
    assert world.session.rollouter.budget.staleness_samples == 0


def test_too_many_failures_end_the_run_with_the_reason_and_what_was_trained() -> None:
    saver = MemorySaver()
    bad = range(20, 64)
    config = WorldConfig(reward=SimReward(score_fn=fails_for(*bad)), saver=saver)
    world = simulate_failing(config, TooManyFailuresError, "max_failed_ratio=0.1 allows; .*failed for group")
    assert saver.last["num_failed"] == world.session.rollouter.ledger.num_failed
    assert saver.last["num_consumed"] == len(world.trainer.trained) > 0


def test_failures_up_to_the_ratio_are_tolerated() -> None:
    """At most 10% of the larger of one cycle and what was submitted."""
    at_limit = WorldConfig(num_prompts=60, reward=SimReward(score_fn=fails_for(50, 51, 52, 53, 54, 55)))
    assert len(simulate(at_limit).trainer.trained) == 54
    beyond = WorldConfig(num_prompts=60, reward=SimReward(score_fn=fails_for(*range(50, 57))))
    simulate_failing(beyond, TooManyFailuresError, "7 of 60")


def test_every_group_failing_ends_even_where_that_is_allowed() -> None:
    config = WorldConfig(reward=SimReward(score_fn=fails_for(*range(64))), max_failed_ratio=1.0)
    world = simulate(config)
    assert world.trainer.trained == [] and world.rows == []
    assert world.session.rollouter.ledger.num_failed == 64


def test_a_generation_that_fails_is_tried_again_and_then_given_up() -> None:
    errors: dict[tuple[str, str, int], Exception] = {("standalone-0", "generate", 1): ReplicaError("hiccup")}
    world = simulate(WorldConfig(lend=False, faults=PlannedFaults(errors=errors)))
    assert_all_trained_once(world, 64)
    # Every attempt of the first groups fails: two retries each, then they are given up.
    errors = {("standalone-0", "generate", i): ReplicaError("hiccup") for i in range(1, 13)}
    config = WorldConfig(lend=False, faults=PlannedFaults(errors=errors), max_failed_ratio=0.5)
    world = simulate(config)
    assert len(world.trainer.trained) == 60 and world.session.rollouter.ledger.num_failed == 4
    assert world.session.rollouter.budget.staleness_samples == 0


def test_slow_rewards_hold_up_nothing_but_their_own_groups() -> None:
    quick = simulate(WorldConfig(lend=False, trainer_cost=TrainerCost(per_group_s=0.5)))
    slow = simulate(WorldConfig(lend=False, trainer_cost=TrainerCost(per_group_s=0.5), reward=SimReward(seconds=0.7)))
    assert_all_trained_once(slow, 64)
    assert slow.wall_s < quick.wall_s + 2.5, "only the start and the end wait for them"


def test_scores_reach_the_trainer() -> None:
    world = simulate(WorldConfig(reward=SimReward(score_fn=lambda group_id: group_id / 100), num_prompts=8))
    assert world.rows[0]["critic/rewards/mean"] == pytest.approx(sum(range(8)) / 800)
    (first,) = [g for r in world.reports for g in r.groups if g.group_id == 7]
    assert first.rewards == (0.07, 0.07)
