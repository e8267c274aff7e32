"""Modes ``sync`` and ``colocate_async``: training and rollout take turns."""

from __future__ import annotations

import pytest
from step_builders import (
    Recorder,
    assert_conserved,
    row_sum,
    sync_world,
    trained_ages,
)

from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, simulate

MINI_BATCH = ["on_sample_begin", "on_sample_end", "train"]
LENT = ["activate", "rebalance"]


@pytest.mark.parametrize("num_hybrid", [1, 2])
def test_sync_is_on_policy(num_hybrid: int) -> None:
    recorder = Recorder()
    ages: list[list[int]] = []

    def script(world: World) -> None:
        recorder(world)
        ages.append(trained_ages(world))

    config = sync_world(num_prompts=43, num_hybrid=num_hybrid, lengths=lognormal_lengths(50, 0.7, 100))
    world = simulate(config, script)
    assert_conserved(world, 43)
    assert set(ages[0]) == {1}
    assert all(row["fully_async/staleness/max"] == 0.0 for row in world.rows)
    assert row_sum(world, "fully_async/partial/total_partial_num") == 0.0
    begin, end = ["on_step_begin", "prepare_step", "submit", "deactivate"], ["on_step_end", "sync_weights"]
    step = [*begin, *MINI_BATCH * 2, *end, *LENT]
    # The last 3 prompts are one mini-batch; there is no second one.
    assert recorder.steps() == [step] * 5 + [[*begin, *MINI_BATCH, *MINI_BATCH[:2], *end]]
    assert [row["timing_s/gen"] for row in world.rows] == [0.0] * 6, "the wait is over before training begins"


def test_colocate_async_is_a_step_ahead() -> None:
    config = sync_world(num_prompts=64, warmup=1, num_hybrid=2, lengths=lognormal_lengths(50, 0.7, 100))
    ages: list[list[int]] = []
    world = simulate(config, lambda world: ages.append(trained_ages(world)))
    assert_conserved(world, 64)
    assert set(ages[0]) == {1, 2, 3} or set(ages[0]) == {1, 2}
    assert max(row["fully_async/staleness/max"] for row in world.rows) >= 1.0
    assert world.session.controller.costs.num_activations == 8


def test_with_standalone_replicas_taking_turns_lends_all_the_same() -> None:
    world = simulate(sync_world(num_prompts=40, num_standalone=1))
    assert_conserved(world, 40)
    assert [row["dynamic_resource/num_activations"] for row in world.rows] == [2, 1, 1, 1, 0]
