"""Metric rows of tiny runs, computed by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_builders import FREE, ScriptedPolicy, fails_for, simulate_failing, total

from swingshift.core.metrics import METRICS
from swingshift.errors import TooManyFailuresError
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import SimReward, lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate


def assert_row(row: dict[str, float], expected: dict[str, float]) -> None:
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_static_run_by_hand() -> None:
    """Collections of 2, a sync after each, no staleness; 50 tokens of 0.01 s.

    ========= ==================================================
    0.0–0.1   first sync
    0.1–0.6   two groups are generated, the trainer waits
    0.6–1.0   training, rollout has spent its budget
    1.0–1.1   sync: the first cycle ends at 1.1, the second at 2.1
    ========= ==================================================
    """
    world = simulate(
        WorldConfig(
            lend=False,
            ppo_mini_batch_size=2,
            trigger_parameter_sync_step=1,
            staleness_threshold=0.0,
            concurrent_samples_per_replica=2,
            num_responses=1,
            num_prompts=4,
            replica_cost=FREE,
            trainer_cost=TrainerCost(per_group_s=0.2, sync_standalone_s=0.1),
            reward=SimReward(score_fn=lambda group_id: [1.0, 0.0, 0.5, 0.5][group_id]),
        )
    )
    first, second = world.rows
    same = {
        "timing_s/step": 1.0,
        "timing_s/gen": 0.5,
        "timing_s/wait_for_enough_samples": 0.0,
        "timing_s/update_actor": 0.4,
        "timing_s/param_sync": 0.1,
        "timing_s/activate": 0.0,
        "dynamic_resource/train_compute_time_s": 0.4,
        "dynamic_resource/train_allocated_time_s": 1.0,
        "dynamic_resource/train_resource_utilization": 0.4,
        "dynamic_resource/rollout_busy_capacity_s": 1.0,  # 2 groups for 0.5 s
        "dynamic_resource/rollout_capacity_s": 2.0,  # 2 for 1 s: there was nobody before 0.1
        "dynamic_resource/rollout_resource_utilization": 0.5,
        "dynamic_resource/hybrid_rollout_fraction": 0.0,
        "dynamic_resource/resource_utilization": 0.45,  # (1·0.4 + 1·0.5) / 2
        "dynamic_resource/mq_size": 0.0,
        "dynamic_resource/num_activations": 0.0,
        "fully_async/trainer/idle_ratio": 0.5,
        "fully_async/trainer/step_consumed_samples": 2.0,
        "fully_async/rollouter/step_generated_samples": 2.0,
        "fully_async/total_wait_time_s": 0.5,
        "fully_async/total_wait_samples": 2.0,
        "fully_async/count/staleness_samples": 0.0,
        "fully_async/staleness/max": 0.0,
        "critic/rewards/mean": 0.5,
        "perf/tokens": 100.0,
        "perf/tokens_per_s": 100.0,
        "perf/throughput": 50.0,
        "response_length/mean": 50.0,
    }
    assert_row(first, same)
    assert_row(second, same)
    version_1 = {"training/time_s": 1.1, "fully_async/rollouter/version_time_s": 1.1}
    assert_row(first, version_1 | {"fully_async/rollouter/active_time_s": 0.6, "critic/rewards/max": 1.0})
    version_2 = {"training/time_s": 2.1, "fully_async/rollouter/version_time_s": 1.0}
    assert_row(second, version_2 | {"fully_async/rollouter/active_time_s": 0.5, "critic/rewards/max": 0.5})
    assert first["fully_async/rollouter/idle_ratio"] == pytest.approx(0.5 / 1.1)
    assert second["fully_async/count/total_generated_samples"] == 4.0
    totals = {d: {s.value: t for s, t in lane.items() if t} for d, lane in world_totals(world).items()}
    assert totals["standalone-0"] == pytest.approx({"syncing": 0.3, "rollout": 1.0, "idle": 0.8})
    assert totals["hybrid-0"] == pytest.approx({"syncing": 0.2, "train": 0.8, "idle": 1.1})


def world_totals(world: World) -> dict[str, dict[Any, float]]:
    result: dict[str, dict[Any, float]] = {}
    for span in world.spans:
        lane = result.setdefault(span.device, {})
        lane[span.state] = lane.get(span.state, 0.0) + span.end_s - span.start_s
    return result


def test_colocated_run_by_hand() -> None:
    """One device. Activation 0.1 + 0.05 + 0.02 + 0.05 = 0.22 s, deactivation 0.03 + 0.1 = 0.13 s.

    =========== =============================================
    0.00–0.22   lend
    0.22–0.72   two groups
    0.72–0.85   take back
    0.85–1.25   train; sync takes no time
    1.25–1.47   lend again: the first cycle ends at 1.47
    1.47–2.50   the same without lending
    =========== =============================================
    """
    world = simulate(
        WorldConfig(
            num_standalone=0,
            ppo_mini_batch_size=2,
            trigger_parameter_sync_step=1,
            staleness_threshold=0.0,
            num_responses=1,
            num_prompts=4,
            replica_cost=ReplicaCost(step_base_s=0.01, abort_s=0.0, sleep_s=0.03, wake_s=0.05, kv_cache_s=0.05),
            trainer_cost=TrainerCost(per_group_s=0.2, offload_s=0.1, onload_s=0.1, sync_hybrid_s=0.02),
        )
    )
    first, second = world.rows
    assert_row(
        first,
        {
            "training/time_s": 1.47,
            "timing_s/step": 0.5 + 0.13 + 0.4 + 0.22,
            "timing_s/wait_for_enough_samples": 0.5,
            "timing_s/gen": 0.0,
            "timing_s/deactivate": 0.13,
            "timing_s/activate": 0.22,
            "dynamic_resource/train_allocated_time_s": 0.4 + 0.22,
            "dynamic_resource/train_resource_utilization": 0.4 / 0.62,
            "dynamic_resource/rollout_busy_capacity_s": 1.0,
            "dynamic_resource/rollout_capacity_s": 1.0,  # nobody generates outside of 0.22–0.72
            "dynamic_resource/rollout_resource_utilization": 1.0,
            "dynamic_resource/hybrid_rollout_fraction": 0.5 / 1.25,
            "dynamic_resource/resource_utilization": 0.6 * 0.4 / 0.62 + 0.4 * 1.0,
            "dynamic_resource/num_activations": 2.0,  # the one before the first cycle, too
            "dynamic_resource/num_deactivations": 1.0,
            "dynamic_resource/activate_s": 0.22,
            "dynamic_resource/deactivate_s": 0.13,
            "dynamic_resource/switch_cost_s": 0.35,
            "fully_async/total_wait_samples": 0.0,
            "fully_async/rollouter/idle_ratio": 0.75 / 1.47,
            "fully_async/rollouter/version_time_s": 1.47,
        },
    )
    assert_row(
        second,
        {
            "training/time_s": 2.5,
            "timing_s/step": 0.5 + 0.13 + 0.4,
            "dynamic_resource/num_activations": 0.0,
            "dynamic_resource/num_deactivations": 1.0,
            "dynamic_resource/hybrid_rollout_fraction": 0.5 / 1.03,
            "fully_async/rollouter/version_time_s": 1.03,
        },
    )
    totals = {s.value: t for s, t in world_totals(world)["hybrid-0"].items()}
    assert totals == pytest.approx({"switching": 0.7, "rollout": 1.0, "train": 0.8})


def test_waits_are_counted_per_collection() -> None:
    """Three collections of 2 a cycle; at 1 group per 0.5 s the first finds nothing, later ones one each."""
    policy = ScriptedPolicy(activate=False)
    world = simulate(
        WorldConfig(
            policy_object=policy,
            ppo_mini_batch_size=2,
            trigger_parameter_sync_step=3,
            staleness_threshold=0.0,
            concurrent_samples_per_replica=1,
            num_responses=1,
            num_prompts=6,
            replica_cost=FREE,
            trainer_cost=TrainerCost(per_group_s=0.3, sync_standalone_s=0.0),
        )
    )
    # Groups finish at 0.5, 1.0, … 3.0. Collections: wait to 1.0, train to 1.6 (1.5 is queued), wait to 2.0,
    # train to 2.6 (2.5 is queued), wait to 3.0, train to 3.6.
    (ctx,) = policy.contexts
    assert ctx.step_wait_times == pytest.approx([1.0, 0.4, 0.4])
    assert ctx.step_wait_samples == [2, 1, 1]
    assert_row(
        world.rows[0],
        {
            "fully_async/total_wait_time_s": 1.8,
            "fully_async/total_wait_samples": 4.0,
            "timing_s/gen": 1.8,
            "fully_async/trainer/idle_ratio": 0.5,
            "training/time_s": 3.6,
        },
    )


def test_idle_time_adds_up_all_pauses_of_a_cycle() -> None:
    """A failed group gives its budget back, which ends a pause: several pauses fall into one cycle.

    Budget 2. Groups 0 and 1 end at 0.5, scoring takes 1 s, both fail at 1.5 and are replaced at once; 2 and 3 are
    scored at 3.0. Nothing was idle while scores were awaited; from 3.0 on the budget is spent.
    """
    world = simulate(
        WorldConfig(
            lend=False,
            ppo_mini_batch_size=2,
            trigger_parameter_sync_step=1,
            staleness_threshold=0.0,
            num_responses=1,
            num_prompts=6,
            replica_cost=FREE,
            trainer_cost=TrainerCost(per_group_s=1.0, sync_standalone_s=0.0),
            reward=SimReward(seconds=1.0, score_fn=fails_for(0, 1)),
            max_failed_ratio=1.0,
        )
    )
    first = world.rows[0]
    assert_row(
        first,
        {
            "training/time_s": 5.0,
            "fully_async/rollouter/active_time_s": 3.0,
            "fully_async/rollouter/idle_ratio": 0.4,
            "fully_async/count/failed_samples": 2.0,
        },
    )


def test_the_time_after_the_last_prompt_is_idle_too() -> None:
    """The data end: nothing is in flight and nothing is left to submit while the trainer works on."""
    world = simulate(
        WorldConfig(
            lend=False,
            ppo_mini_batch_size=2,
            trigger_parameter_sync_step=2,
            staleness_threshold=1.0,
            num_responses=1,
            num_prompts=4,
            replica_cost=FREE,
            trainer_cost=TrainerCost(per_group_s=1.0, sync_standalone_s=0.0),
        )
    )
    [row] = world.rows
    assert row["fully_async/rollouter/active_time_s"] == pytest.approx(0.5)
    assert row["fully_async/rollouter/version_time_s"] == pytest.approx(4.5)


def test_the_queue_is_looked_at_when_the_cycle_is_over() -> None:
    """While the last step's weights are synced groups go on arriving: they are what the next step finds."""
    world = simulate(
        WorldConfig(
            ppo_mini_batch_size=2,
            trigger_parameter_sync_step=1,
            staleness_threshold=2.0,
            num_standalone=2,
            num_prompts=48,
            lengths=lognormal_lengths(50, 0.9, 100),
            replica_cost=ReplicaCost(step_base_s=0.01, abort_s=0.0, wake_s=0.4),
            trainer_cost=TrainerCost(per_group_s=0.05, sync_standalone_s=0.0),
            policy_object=ScriptedPolicy(wait=2),
        ),
        record := QueueAtReports(),
    )
    assert [row["dynamic_resource/mq_size"] for row in world.rows] == record.sizes
    assert len(set(record.sizes)) > 1


class QueueAtReports:
    """A script: how many groups are queued whenever staleness is reset, which is when a cycle is over."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, world: World) -> None:
        rollouter = world.session.rollouter
        reset = rollouter.reset_staleness

        def noted(version: int) -> Any:
            self.sizes.append(len(rollouter.buffered()))
            return reset(version)

        rollouter.reset_staleness = noted  # type: ignore[method-assign]


@pytest.mark.parametrize("num_standalone", [0, 1])
def test_rollout_by_the_trainers_devices_alone_is_counted_as_lent(num_standalone: int) -> None:
    """In mid-cycle, with no standalone replica (any more): an idle rollout would be a lie, and so would training."""

    def script(world: World) -> None:
        for replica in world.standalone:
            asyncio.get_running_loop().call_at(0.3, replica.die)

    config = WorldConfig(
        num_standalone=num_standalone,
        trigger_parameter_sync_step=4,
        staleness_threshold=0.0,
        num_prompts=64,
        policy_object=ScriptedPolicy(activate=False, wait=4),
        enable_rebalance=False,
    )
    world = simulate(config, script)
    for row in world.rows[1:]:
        parts = [row[f"timing_s/{p}"] for p in ("activate", "wait_for_enough_samples", "deactivate")]
        assert row["dynamic_resource/num_activations"] == 1 and min(parts) > 0.0
        assert row["timing_s/gen"] == row["fully_async/total_wait_time_s"] == 0.0
        assert row["fully_async/total_wait_samples"] == 0.0
        assert row["timing_s/step"] == pytest.approx(
            sum(parts) + row["timing_s/update_actor"] + row["timing_s/param_sync"]
        )
        allocated_s = row["timing_s/step"] - parts[1] - parts[2]
        assert row["dynamic_resource/train_allocated_time_s"] == pytest.approx(allocated_s)
        assert row["dynamic_resource/hybrid_rollout_fraction"] == pytest.approx(parts[1] / row["timing_s/step"])
    costs = world.session.controller.costs
    assert total(world, "dynamic_resource/switch_s") == pytest.approx(
        costs.total_activate_s + costs.total_deactivate_s
    )
    asked = [(d.question.value, d.answer) for r in world.reports[1:] for d in r.decisions]
    assert asked[:2] == [("lend", "yes"), ("take_back", "yes")]


def test_the_end_of_the_data_is_a_decision_too() -> None:
    world = simulate(WorldConfig(num_prompts=61))
    last = world.reports[-1].decisions[-1]
    assert (last.question.value, last.answer) == ("lend", "no") and "nothing is left" in last.reason
    for report in world.reports:
        assert all(d.reason for d in report.decisions), "every decision says why"


def test_capacity_changes_count_from_the_moment_they_happen() -> None:
    """Two replicas for the first second, then one."""

    def script(world: World) -> None:
        asyncio.get_running_loop().call_at(1.0, world.standalone[1].die)

    world = simulate(
        WorldConfig(
            num_standalone=2,
            lend=False,
            ppo_mini_batch_size=4,
            trigger_parameter_sync_step=1,
            staleness_threshold=0.0,
            concurrent_samples_per_replica=2,
            num_responses=1,
            num_prompts=4,
            lengths=lambda request, index: 200,
            max_tokens=200,
            replica_cost=FREE,
            trainer_cost=TrainerCost(per_group_s=0.0, sync_standalone_s=0.0),
        ),
        script,
    )
    # Two of the four groups start over on the survivor at 1.0 and end at 3.0; the others end at 2.0.
    row = world.rows[0]
    assert row["dynamic_resource/rollout_capacity_s"] == pytest.approx(1.0 * 4 + 2.0 * 2)
    assert row["dynamic_resource/rollout_busy_capacity_s"] == pytest.approx(1.0 * 4 + 1.0 * 2 + 1.0 * 2)


def test_every_row_has_every_metric_and_the_counters_agree() -> None:
    world = simulate(WorldConfig(num_prompts=61, lengths=lognormal_lengths(50, 0.7, 100)))
    for row in world.rows:
        assert row.keys() == METRICS.keys()
        for name, value in row.items():
            if METRICS[name].unit == "fraction":
                assert 0.0 <= value <= 1.0, name
        assert row["timing_s/step"] >= row["timing_s/gen"] + row["timing_s/update_actor"]
    last = world.rows[-1]
    generated = total(world, "fully_async/rollouter/step_generated_samples")
    assert last["fully_async/count/total_generated_samples"] == generated == 61
    assert last["fully_async/count/total_consumed_samples"] == 61
    steps = total(world, "timing_s/step")
    assert world.wall_s - 0.1 < steps <= world.wall_s, "only the start lies outside of the cycles"
    assert total(world, "fully_async/rollouter/version_time_s") == pytest.approx(world.wall_s)


def test_nothing_is_reported_for_a_cycle_that_never_trained() -> None:
    config = WorldConfig(reward=SimReward(score_fn=fails_for(*range(64))))
    assert simulate_failing(config, TooManyFailuresError, "groups failed").rows == []
