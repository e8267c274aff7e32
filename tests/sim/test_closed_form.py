"""Whole runs whose times are known exactly: constant lengths, one replica."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from swingshift.core.types import DeviceState
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import constant_lengths
from swingshift.sim.world import World, WorldConfig, simulate

LENGTH, PROMPT, GROUPS, RESPONSES, PER_CYCLE = 100, 20, 24, 3, 4
FREE = ReplicaCost(
    step_base_s=0.01, abort_s=0.0, sleep_s=0.0, wake_s=0.0, kv_cache_s=0.0, max_num_seqs=PER_CYCLE * RESPONSES
)
TRAIN_S = 0.5
"""Of one cycle."""
BASE = WorldConfig(
    lend=False,
    ppo_mini_batch_size=PER_CYCLE,
    trigger_parameter_sync_step=1,
    staleness_threshold=0.0,
    concurrent_samples_per_replica=PER_CYCLE,
    num_responses=RESPONSES,
    prompt_length=PROMPT,
    max_tokens=LENGTH,
    num_prompts=GROUPS,
    lengths=constant_lengths(LENGTH),
    replica_cost=FREE,
    trainer_cost=TrainerCost(per_group_s=TRAIN_S / PER_CYCLE, sync_standalone_s=0.0),
)
CYCLES = GROUPS // PER_CYCLE


def rollout_s(cost: ReplicaCost) -> float:
    """A cycle's responses in one batch, which grows by its size a step."""
    batch = PER_CYCLE * RESPONSES
    step_s = cost.step_base_s + cost.step_per_sequence_s * batch + cost.step_per_kv_token_s * batch * PROMPT
    growth_s = cost.step_per_kv_token_s * batch * LENGTH**2 / 2
    return PER_CYCLE * PROMPT * cost.prefill_per_token_s + LENGTH * step_s + growth_s


COSTS = {
    "constant steps": FREE,
    "steps grow with the batch": replace(FREE, step_per_sequence_s=0.002),
    "steps grow with the cache": replace(FREE, step_per_sequence_s=0.002, step_per_kv_token_s=1e-5),
    "prefill": replace(FREE, prefill_per_token_s=0.003, step_per_kv_token_s=1e-5),
}


@pytest.mark.parametrize("name", COSTS)
def test_static_on_policy_takes_turns(name: str) -> None:
    """No staleness: generate, then train, cycle after cycle."""
    cost = COSTS[name]
    world = simulate(replace(BASE, replica_cost=cost))
    assert world.wall_s == pytest.approx(CYCLES * (rollout_s(cost) + TRAIN_S), rel=1e-9)


@pytest.mark.parametrize("name", COSTS)
def test_colocated_takes_turns_too(name: str) -> None:
    cost = COSTS[name]
    world = simulate(replace(BASE, num_standalone=0, lend=True, replica_cost=cost))
    assert world.wall_s == pytest.approx(CYCLES * (rollout_s(cost) + TRAIN_S), rel=1e-9)


def test_colocated_pays_for_every_switch() -> None:
    cost = replace(FREE, wake_s=0.7, kv_cache_s=0.05, sleep_s=0.3)
    trainer = replace(BASE.trainer_cost, offload_s=0.4, onload_s=0.2, sync_hybrid_s=0.1, publish_s=5.0)
    world = simulate(replace(BASE, num_standalone=0, lend=True, replica_cost=cost, trainer_cost=trainer))
    # Out, weights awake, weights in, cache awake; then sleep, in again. Published before each cycle and at the end.
    switch_s = 0.4 + 0.7 + 0.1 + 0.05 + 0.3 + 0.2
    expected = CYCLES * (switch_s + rollout_s(cost) + TRAIN_S) + (CYCLES + 1) * 5.0
    assert world.wall_s == pytest.approx(expected, rel=1e-9)


def test_with_room_for_stale_groups_the_slower_side_sets_the_pace() -> None:
    """Twice a cycle's groups may be outstanding. Syncs fall on whole steps, so interrupted responses lose nothing."""
    bound_by_rollout = simulate(replace(BASE, staleness_threshold=1.0))
    assert rollout_s(FREE) == 1.0 > TRAIN_S
    assert bound_by_rollout.wall_s == pytest.approx(CYCLES * 1.0 + TRAIN_S, rel=1e-9)
    slow = TrainerCost(per_group_s=2.0 / PER_CYCLE, sync_standalone_s=0.0)
    bound_by_training = simulate(replace(BASE, staleness_threshold=1.0, trainer_cost=slow))
    assert bound_by_training.wall_s == pytest.approx(1.0 + CYCLES * 2.0, rel=1e-9)


def test_interrupted_responses_prefill_what_they_had() -> None:
    """As above, but re-prefill costs: each sync finds 12 responses in the middle (4 prompts and 50 tokens each)."""
    cost = replace(FREE, prefill_per_token_s=1e-5)
    world = simulate(replace(BASE, staleness_threshold=1.0, replica_cost=cost))
    reprefilled = sum(row["perf/num_reprefilled_tokens"] for row in world.rows)
    prompts_s = PER_CYCLE * PROMPT * 1e-5
    lost = (CYCLES - 1) * PER_CYCLE * (PROMPT + RESPONSES * 50)
    assert reprefilled == pytest.approx(lost, rel=0.03), "a sync may find a token more or less"
    assert world.wall_s == pytest.approx(CYCLES * (1.0 + prompts_s) + TRAIN_S + lost * 1e-5, rel=0.01)


@pytest.mark.parametrize("num_at_once", [1, 2, 3])
def test_a_cache_for_few_makes_waves(num_at_once: int) -> None:
    """Long prompts: one response more would not even fit at the start, so nobody is ever preempted."""
    prompt = LENGTH * (num_at_once + 1)
    cost = replace(FREE, kv_capacity_tokens=num_at_once * (prompt + LENGTH) + 1)
    world = simulate(replace(BASE, replica_cost=cost, prompt_length=prompt))
    waves = -(-PER_CYCLE * RESPONSES // num_at_once)
    assert world.wall_s == pytest.approx(CYCLES * (waves * LENGTH * 0.01 + TRAIN_S), rel=1e-9)
    assert world.standalone[0].serving.num_preemptions == 0


def test_every_phase_of_training_is_reported_under_its_key() -> None:
    trainer = TrainerCost(
        base_s=0.1,
        per_token_s=6e-5,
        per_group_s=0.0,
        old_log_prob_per_token_s=2e-5,
        ref_per_token_s=1e-5,
        adv_per_token_s=5e-6,
        counts_prompts=True,
        sync_standalone_s=0.0,
    )
    world = simulate(replace(BASE, trainer_cost=trainer))
    tokens = PER_CYCLE * RESPONSES * (LENGTH + PROMPT)
    expected = {"old_log_prob": 2e-5, "ref": 1e-5, "adv": 5e-6, "update_actor": 6e-5}
    for row in world.rows:
        for key, per_token_s in expected.items():
            base_s = 0.1 if key == "update_actor" else 0.0
            assert row[f"timing_s/{key}"] == pytest.approx(base_s + per_token_s * tokens)
    train_s = 0.1 + 9.5e-5 * tokens
    assert world.rows[0]["dynamic_resource/train_compute_time_s"] == pytest.approx(train_s)
    assert world.wall_s == pytest.approx(CYCLES * (1.0 + train_s))
    without = simulate(replace(BASE, trainer_cost=replace(trainer, counts_prompts=False)))
    assert without.wall_s == pytest.approx(CYCLES * (1.0 + 0.1 + 9.5e-5 * PER_CYCLE * RESPONSES * LENGTH))


# --- replicas of several devices ----------------------------------------------------------------------------------


def lane(world: World, device: str) -> list[tuple[DeviceState, float, float]]:
    return [(s.state, s.start_s, s.end_s) for s in world.spans if s.device == device]


def test_replicas_of_several_devices_count_devices_in_lanes_and_metrics() -> None:
    """Three standalone replicas of two devices, a trainer of four devices that hosts two hybrid ones."""
    config = replace(BASE, num_standalone=3, num_hybrid=2, devices_per_replica=2, lend=True, policy="fixed_ratio")
    world = simulate(config)
    assert [r.devices for r in world.standalone][1] == ("standalone-2", "standalone-3")
    assert [r.devices for r in world.hybrid] == [("hybrid-0", "hybrid-1"), ("hybrid-2", "hybrid-3")]
    assert world.trainer.devices == tuple(f"hybrid-{i}" for i in range(4))
    assert set(world.session.timeline.devices) == {
        *(f"standalone-{i}" for i in range(6)),
        *(f"hybrid-{i}" for i in range(4)),
    }
    for row in world.rows:
        assert row["dynamic_resource/num_hybrid_devices"] == 4
        assert row["dynamic_resource/num_standalone_devices"] == 6
        seconds = row["timing_s/step"]
        assert row["perf/throughput"] == pytest.approx(row["perf/tokens"] / seconds / 10)
    for kind, num in (("standalone", 6), ("hybrid", 4)):
        for i in range(0, num, 2):
            assert lane(world, f"{kind}-{i}") == lane(world, f"{kind}-{i + 1}"), "devices of a replica act together"
    for device in world.session.timeline.devices:
        spans = lane(world, device)
        assert spans[0][1] == 0.0 and spans[-1][2] == pytest.approx(world.wall_s)
        assert all(a[2] == b[1] for a, b in pairwise(spans))


def test_the_size_of_replicas_alone_changes_no_time() -> None:
    one, four = (simulate(replace(BASE, lend=True, devices_per_replica=n)) for n in (1, 4))
    assert one.wall_s == four.wall_s and len(one.devices) == 2 and len(four.devices) == 8
    assert [r["training/time_s"] for r in one.rows] == [r["training/time_s"] for r in four.rows]


def test_hybrid_replicas_may_cost_something_else() -> None:
    slow = replace(FREE, step_base_s=0.03)
    world = simulate(replace(BASE, num_standalone=0, lend=True, hybrid_replica_cost=slow))
    assert world.wall_s == pytest.approx(CYCLES * (3.0 + TRAIN_S))
