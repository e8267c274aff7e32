"""Evicting and replacing groups while steps go on; the strategies ``drop`` and ``wait``."""

from __future__ import annotations

from typing import Any

import pytest
from step_builders import (
    FILTER,
    OFF,
    SLOW_ROLLOUT,
    SLOW_WAKE,
    Rewards,
    assert_conserved,
    rollouter_of,
    row_sum,
    step_world,
    sync_world,
    trained_ages,
)

from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.errors import DataError, TooManyFailuresError
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, simulate


def test_what_the_wait_evicts_is_refilled_and_reaches_the_row_of_the_step() -> None:
    """The first two mini-batches are useless: they fall into the first wait, with the devices lent."""
    submitted: list[int] = []

    def watch(world: World) -> None:
        submit = rollouter_of(world).submit

        def noted(num_prompts: int, step: int) -> int:
            submitted.append(num_prompts)
            return submit(num_prompts, step)

        rollouter_of(world).submit = noted  # type: ignore[method-assign]

    config = step_world(num_prompts=48, rules=FILTER, reward=Rewards(useless=lambda i: i < 8))
    world = simulate(config, watch)
    assert_conserved(world, 48)
    names = ("evicted_samples", "evicted_stale", "evicted_filtered", "evicted_failed", "refilled_samples")
    first = [world.rows[0][f"replay_buffer/{name}"] for name in names]
    assert first == [8, 0, 8, 0, 8] and row_sum(world, "replay_buffer/evicted_samples") == 8
    assert submitted[:3] == [8, 8, 8], "warm-up, the step's own, replacements"
    assert min(world.trainer.trained) == 8
    assert world.rows[-1]["fully_async/count/dropped_samples"] == 8


def test_failing_filtered_and_stale_groups_together() -> None:
    """Every group is trained, failed or evicted, and each row adds up; enough of each kind to mean something."""
    rules = StoreRules(max_off_policy_threshold=2, filter_metric="reward")
    rewards = Rewards(useless=lambda i: i % 5 == 1, failing=lambda i: i % 7 == 2)
    config = step_world(
        num_prompts=200,
        warmup=3,
        rules=rules,
        reward=rewards,
        max_failed_ratio=1.0,
        lengths=lognormal_lengths(40, 1.0, 100, seed=3),
        replica_cost=SLOW_ROLLOUT,
    )
    ages: list[list[int]] = []
    world = simulate(config, lambda world: ages.append(trained_ages(world)))
    assert_conserved(world, 200)
    ledger = world.session.rollouter.ledger
    assert ledger.num_failed == sum(i % 7 == 2 for i in range(200))
    assert not [i for i in world.trainer.trained if i % 5 == 1], "no useless group is trained"
    assert row_sum(world, "replay_buffer/evicted_stale") > 5
    assert row_sum(world, "replay_buffer/evicted_filtered") > 20
    for row in world.rows:
        evicted = [row[f"replay_buffer/evicted_{why}"] for why in ("stale", "filtered", "failed")]
        assert max(evicted) <= row["replay_buffer/evicted_samples"] <= sum(evicted)
    full = [row for row in world.rows if row["fully_async/trainer/step_consumed_samples"] == 8][:-1]
    assert all(r["replay_buffer/refilled_samples"] == r["replay_buffer/evicted_samples"] for r in full[:8])
    assert max(ages[0]) <= 2, "nothing older than the threshold is trained"


def test_a_threshold_never_met_because_groups_keep_failing_ends_with_an_error() -> None:
    failing = Rewards(failing=lambda i: i >= 8)
    with pytest.raises(TooManyFailuresError, match=r"max_failed_ratio=0\.1 allows"):
        simulate(step_world(num_prompts=10_000, reward=failing))
    with pytest.raises(DataError, match=r"84 groups in a row were of no use .* 84 failed"):
        simulate(step_world(num_prompts=10_000, reward=failing, max_failed_ratio=1.0))


def test_a_threshold_never_met_because_every_group_is_filtered_ends_with_an_error() -> None:
    config = step_world(
        num_prompts=10_000, rules=FILTER, reward=Rewards(useless=lambda i: True), max_refill_batches=3
    )
    with pytest.raises(DataError, match=r"32 filtered, 0 failed; algorithm\.filter_groups\.max_num_gen_batches"):
        simulate(config)


@pytest.mark.parametrize("mode", ["on", "off", "sync"])
def test_every_group_failing_ends_with_the_data(mode: str) -> None:
    config = sync_world if mode == "sync" else step_world
    options = {"switch": OFF} if mode == "off" else {}
    world = simulate(config(num_prompts=30, reward=Rewards(failing=lambda i: True), max_failed_ratio=1.0, **options))
    assert world.exit_reason == "finished" and world.rows == []
    assert_conserved(world, 30)
    assert world.session.controller.state == "STANDALONE_ONLY"


# --- strategies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["on", "off", "colocate_async"])
@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_wait_blocks_for_old_groups_and_goes_on(mode: str, threshold: int) -> None:
    """Group 5 takes as long as several steps: none of the groups behind it gets as old, nothing is dropped."""
    options: dict[str, Any] = {"switch": OFF} if mode == "off" else {}
    if mode == "colocate_async":
        options = {"turns": True, "num_standalone": 0, "needs_warmup": False}
    config = step_world(
        num_prompts=64,
        rules=StoreRules(threshold, OffPolicyStrategy.WAIT),
        lengths=lambda r, i: 900 if r == "5" else 30,
        max_tokens=1000,
        **options,
    )
    ages: list[list[int]] = []
    world = simulate(config, lambda world: ages.append(trained_ages(world)))
    assert_conserved(world, 64)
    assert row_sum(world, "replay_buffer/evicted_samples") == 0
    assert max(ages[0]) <= max(2, threshold), "2: the warm-up's groups wait for a step anyway"
    position = world.trainer.trained.index(5)
    assert position < 8 * threshold + 8, "it held the others up"


def test_drop_goes_on_without_the_old_group() -> None:
    config = step_world(
        num_prompts=64,
        rules=StoreRules(2),
        lengths=lambda r, i: 900 if r == "5" else 30,
        max_tokens=1000,
        replica_cost=SLOW_WAKE,
    )
    world = simulate(config)
    assert_conserved(world, 64)
    assert 5 not in world.trainer.trained and world.session.rollouter.ledger.num_evicted == 1
