"""Whole runs in virtual time, in every mode; the invariants are checked after every event."""

from __future__ import annotations

from itertools import pairwise

import pytest
from runtime_builders import ScriptedPolicy, assert_all_trained_once, total

from swingshift.core.types import DeviceState
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import WorldConfig, simulate

SLOW_ROLLOUT = {
    "lengths": lognormal_lengths(60, 0.8, 300),
    "max_tokens": 300,
    "replica_cost": ReplicaCost(step_base_s=0.01, step_per_sequence_s=0.002, max_num_seqs=4),
}
MODES = {
    "dynamic": {},
    "fixed_ratio": {"policy": "fixed_ratio"},
    "static policy": {"policy": "static_fully_async"},
    "plain static": {"lend": False},
    "colocated": {"num_standalone": 0},
    "colocated, static policy": {"num_standalone": 0, "policy": "static_fully_async"},
    "colocated, two devices": {"num_standalone": 0, "num_hybrid": 2, "policy": "fixed_ratio"},
    "several replicas": {"num_standalone": 3, "num_hybrid": 2},
    "one collection a cycle": {"trigger_parameter_sync_step": 1, "staleness_threshold": 0.0},
    "no rebalance": {"enable_rebalance": False},
    "start over": {"partial_rollout": False},
    "kv cache kept": {"release_kv_cache": False},
    "least tokens": {"routing": "least_tokens", "num_standalone": 2},
    "power of two": {"routing": "power_of_two", "num_standalone": 3},
    "deterministic": {"routing": "deterministic", "num_standalone": 3},
}


@pytest.mark.parametrize("num_prompts", [64, 61, 3])
@pytest.mark.parametrize("mode", MODES)
def test_every_group_is_trained_once(mode: str, num_prompts: int) -> None:
    """61 ends in the middle of a cycle and of a collection."""
    config = WorldConfig(num_prompts=num_prompts, **{**SLOW_ROLLOUT, **MODES[mode]})  # type: ignore[arg-type]
    world = simulate(config)
    assert world.exit_reason == "finished"
    assert_all_trained_once(world, num_prompts)
    # The last, partial cycle is synced and reported too.
    cycles = -(-num_prompts // config.numbers.step_required_samples)
    assert [row["training/global_step"] for row in world.rows] == [float(v) for v in range(1, cycles + 1)]
    assert total(world, "fully_async/trainer/step_consumed_samples") == num_prompts
    assert world.session.controller.version == cycles
    assert all(replica.version == cycles for replica in world.standalone), "synced at the end"


@pytest.mark.parametrize("mode", MODES)
def test_the_run_ends_with_the_devices_given_back_and_nothing_lent_for_nothing(mode: str) -> None:
    world = simulate(WorldConfig(num_prompts=61, **{**SLOW_ROLLOUT, **MODES[mode]}))  # type: ignore[arg-type]
    controller = world.session.controller
    assert controller.state == "STANDALONE_ONLY"
    assert controller.costs.num_activations == controller.costs.num_deactivations
    assert not any(replica.is_awake for replica in world.hybrid)
    assert world.reports[-1].state == "STANDALONE_ONLY", "the final sync lends nothing"
    assert total(world, "dynamic_resource/num_activations") == controller.costs.num_activations
    assert total(world, "dynamic_resource/num_deactivations") == controller.costs.num_deactivations


def test_an_empty_data_set_ends_at_once() -> None:
    world = simulate(WorldConfig(num_prompts=0))
    assert world.exit_reason == "finished" and world.rows == [] and world.trainer.trained == []
    assert world.session.controller.costs.num_activations == 0


def test_lending_beats_static_where_rollout_is_slow_and_stays_out_where_it_is_not() -> None:
    slow = dict(num_prompts=200, **SLOW_ROLLOUT)
    dynamic, static = simulate(WorldConfig(**slow)), simulate(WorldConfig(lend=False, **slow))  # type: ignore[arg-type]
    assert dynamic.wall_s < 0.8 * static.wall_s
    fast = {"num_prompts": 400, "trainer_cost": TrainerCost(per_group_s=2.0)}
    dynamic = simulate(WorldConfig(**fast))  # type: ignore[arg-type]
    static = simulate(WorldConfig(lend=False, **fast))  # type: ignore[arg-type]
    assert dynamic.wall_s < 1.02 * static.wall_s
    switches = [row["dynamic_resource/num_activations"] for row in dynamic.rows]
    assert sum(switches[len(switches) // 2 :]) == 0, "the policy has learnt to leave the devices alone"


def test_static_policy_lends_never_and_costs_nothing() -> None:
    static = simulate(WorldConfig(policy="static_fully_async"))
    plain = simulate(WorldConfig(lend=False))
    assert static.session.controller.costs.num_activations == 0
    assert static.wall_s == plain.wall_s and static.rows == plain.rows


def test_groups_are_trained_in_the_order_they_finished_and_versions_only_grow() -> None:
    world = simulate(WorldConfig(num_prompts=120, num_standalone=2, **SLOW_ROLLOUT))  # type: ignore[arg-type]
    times = [row["training/time_s"] for row in world.rows]
    assert times == sorted(times)
    for report in world.reports:
        finished = [group.finish_time for group in report.groups]
        assert finished == sorted(finished)
        for group in report.groups:
            for index, sample in enumerate(group.samples):
                versions = [version for version, _ in sample.version_spans]
                assert versions == sorted(versions)
                assert versions[-1] < report.version, "sampled before the sync that ended the cycle"
                assert tuple(sample.token_ids) == tuple(range(len(sample.token_ids)))
                wanted = SLOW_ROLLOUT["lengths"](str(group.group_id), index)  # type: ignore[operator]
                assert len(sample.token_ids) == min(wanted, 300)


def test_token_budget_holds_across_many_aborts() -> None:
    """Tiny cycles: a long response is interrupted by nearly every sync."""
    config = WorldConfig(
        num_prompts=40,
        ppo_mini_batch_size=1,
        trigger_parameter_sync_step=1,
        staleness_threshold=8.0,
        concurrent_samples_per_replica=16,
        lengths=lambda request, index: 30 if int(request) % 2 else 500,
        max_tokens=400,
        num_responses=1,
        trainer_cost=TrainerCost(per_group_s=0.02),
    )
    world = simulate(config)
    assert_all_trained_once(world, 40)
    samples = [s for report in world.reports for group in report.groups for s in group.samples]
    longest = [s for s in samples if len(s.token_ids) == 400]
    assert len(longest) == 20 and all(s.finish_reason == "length" for s in longest)
    assert max(s.num_aborts for s in longest) >= 5
    assert all(s.num_reprefilled_tokens > 0 for s in longest if s.num_aborts)
    assert any(s.is_partial for s in longest)


def test_without_partial_rollout_nothing_half_finished_is_trained_on() -> None:
    config = WorldConfig(num_prompts=61, partial_rollout=False, num_standalone=2, **SLOW_ROLLOUT)  # type: ignore[arg-type]
    world = simulate(config)
    samples = [s for report in world.reports for group in report.groups for s in group.samples]
    assert any(s.num_aborts for s in samples), "some were started over"
    assert not any(s.is_partial for s in samples), "each from one version"
    groups = [group for report in world.reports for group in report.groups]
    for group in groups:
        for index, sample in enumerate(group.samples):
            assert tuple(sample.token_ids) == tuple(range(len(sample.token_ids)))
            # A response that starts over comes to the same length: short ones must not take the place of long ones.
            wanted = SLOW_ROLLOUT["lengths"](str(group.group_id), index)  # type: ignore[operator]
            assert len(sample.token_ids) == min(wanted, 300)


def test_concurrency_counts_each_replica_once() -> None:
    """Two standalone and one hybrid replica at 4 each: 12 while lent, 8 otherwise, and the groups in flight obey."""
    seen: set[tuple[bool, int]] = set()
    config = WorldConfig(num_standalone=2, num_hybrid=1, num_prompts=200, ppo_mini_batch_size=16, **SLOW_ROLLOUT)  # type: ignore[arg-type]
    highest = 0

    def watch(world) -> None:  # type: ignore[no-untyped-def]
        rollouter, controller = world.session.rollouter, world.session.controller
        notify = rollouter.changed.notify

        def observe() -> None:
            nonlocal highest
            notify()
            if controller.state in ("STANDALONE_ONLY", "HYBRID_ACTIVE"):
                seen.add((controller.is_hybrid_active, rollouter.max_concurrent_samples))
            highest = max(highest, rollouter.ledger.num_in_flight)

        rollouter.changed.notify = observe

    simulate(config, watch)
    assert seen <= {(False, 0), (False, 8), (True, 12)} and {(False, 8), (True, 12)} <= seen
    assert highest == 12


def test_submission_never_exceeds_the_staleness_budget() -> None:
    policy = ScriptedPolicy(activate=False)
    config = WorldConfig(
        num_prompts=100,
        concurrent_samples_per_replica=50,
        trainer_cost=TrainerCost(per_group_s=1.0),
        policy_object=policy,
    )
    world = simulate(config)
    # Rollout is fast: each cycle it produces the whole budget of 12 and then waits.
    assert max(row["dynamic_resource/mq_size"] for row in world.rows) <= 12
    assert all(ctx.total_generated_samples - ctx.expected_samples <= 12 for ctx in policy.contexts)
    assert world.rows[3]["fully_async/rollouter/idle_ratio"] > 0.5


def test_every_device_is_in_one_state_at_any_time() -> None:
    world = simulate(WorldConfig(num_prompts=64, num_standalone=2, num_hybrid=2, **SLOW_ROLLOUT))  # type: ignore[arg-type]
    for device in world.session.timeline.devices:
        spans = [s for s in world.spans if s.device == device]
        assert spans[0].start_s == 0.0 and spans[-1].end_s == pytest.approx(world.wall_s)
        assert all(a.end_s == b.start_s for a, b in pairwise(spans)), device
    states = {(s.device.split("-")[0], s.state) for s in world.spans}
    assert ("hybrid", DeviceState.TRAIN) in states and ("hybrid", DeviceState.ROLLOUT) in states
    assert ("hybrid", DeviceState.SWITCHING) in states and ("standalone", DeviceState.SYNCING) in states
    assert ("standalone", DeviceState.TRAIN) not in states
