"""What a step measures: its row by hand, what a policy is told, and the same again."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from step_builders import (
    OFF,
    SLOW_ROLLOUT,
    SLOW_WAKE,
    Rewards,
    ScriptedSwitch,
    assert_conserved,
    step_world,
)

from swingshift.core.buffer import StoreRules
from swingshift.runtime.observations import Question
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, simulate


async def _validate(client: object, version: int) -> dict[str, float]:
    await asyncio.sleep(1.0)
    return {"val/version": float(version)}


def test_metrics_by_hand() -> None:
    """Replicas decode 4 groups at once in 0.5 s; a mini-batch trains 0.2 s; a switch takes 20 ms and 11 ms."""
    world = simulate(step_world(num_prompts=24, replica_cost=SLOW_WAKE))
    first, second, third = (
        {name: round(value, 6) for name, value in row.items() if name.startswith(("separate_async", "timing_s"))}
        for row in world.rows
    )
    # Weight sync to 0.023, lent from 0.043; 8 groups are there at 0.543 and are trained until 0.954.
    switch, decision = "separate_async/switch", "separate_async/decision"
    assert first["timing_s/switch_wait"] == 0.5
    assert first["timing_s/switch_to_trainer"] == 0.011 and first["timing_s/update_weights"] == 0.023
    assert first["timing_s/switch_to_rollout"] == 0.021, "rebalancing (an abort) included"
    assert first["timing_s/gen"] == 0.0 and first["timing_s/step"] == 0.955
    assert [first[f"{switch}/{n}"] for n in ("threshold_ratio", "threshold")] == [0.5, 4]
    assert [first[f"{switch}/{n}"] for n in ("wait_samples", "sample_wait_seconds", "idle")] == [0, 0, 0]
    assert [first[f"{decision}/{n}"] for n in ("sampleable_count", "threshold", "remaining")] == [0, 4, 4]
    unknown = ("per_sample_time_seconds", "benefit_seconds", "effective_switch_cost_seconds")
    assert [first[f"{decision}/{n}"] for n in unknown] == [-1, -1, -1]
    assert first[f"{decision}/should_switch_to_rollout"] == 1
    # Groups begun at 0.543 lack 9 of 50 tokens after the sync: there at 1.067, 69 ms after the step began. The next
    # four on the standalone replica begin then and are there at 1.567, waited for since 1.278.
    assert second["timing_s/switch_wait"] == 0.069 and second["timing_s/gen"] == 0.289
    assert [second[f"{switch}/{n}"] for n in ("wait_samples", "sample_wait_seconds", "idle")] == [4, 0.289, 1]
    assert [second[f"{decision}/{n}"] for n in ("sampleable_count", "remaining")] == [0, 4]
    assert second[f"{decision}/per_sample_time_seconds"] == 0.07225
    assert second[f"{decision}/benefit_seconds"] == 0.1445, "half of it: one of two devices is standalone"
    assert second[f"{decision}/effective_switch_cost_seconds"] == 0.032, "0.021 and 0.011"
    # The last step: nothing is lent after it.
    assert third["timing_s/switch_to_rollout"] == 0.0 and third[f"{decision}/should_switch_to_rollout"] == 0


def test_at_the_end_of_the_data_no_more_is_waited_for_than_can_come() -> None:
    """The last step has two groups: its mini-batch of four waits for two, and the next one for none."""
    world = simulate(step_world(num_prompts=18, switch=OFF, replica_cost=SLOW_ROLLOUT))
    assert_conserved(world, 18)
    assert world.rows[-1]["fully_async/trainer/step_consumed_samples"] == 2
    assert world.rows[-1]["separate_async/switch/wait_samples"] == 2


def test_a_policy_is_told_what_a_step_was_like() -> None:
    """The run of above: 8 groups in 0.5 s lent, and so on; the start of the run is not a switch."""
    policy = ScriptedSwitch(wanted=4)
    simulate(step_world(num_prompts=24, policy=policy, replica_cost=SLOW_WAKE))
    first, second, _ = policy.outcomes
    assert (first.sample_wait_s, first.wait_samples) == (0.0, 0)
    assert first.duration_s == pytest.approx(0.911)
    assert first.lent_rate == pytest.approx(8 / 0.5) and first.alone_rate == pytest.approx(0.0)
    assert (second.sample_wait_s, second.wait_samples) == (pytest.approx(0.289), 4)
    assert second.lent_rate == pytest.approx(4 / 0.069) and second.alone_rate == pytest.approx(4 / 0.7)
    assert policy.switches_s == [
        ("to_trainer", pytest.approx(0.011)),
        ("to_rollout", pytest.approx(0.021)),
        ("to_trainer", pytest.approx(0.011)),
        ("to_rollout", pytest.approx(0.02)),
        ("to_trainer", pytest.approx(0.011)),
    ]


def test_the_threshold_of_a_step_and_of_its_decision_are_told_apart() -> None:
    """The ratio adapts at the end of a step: what it waited for and what the decision is about may differ."""
    world = simulate(step_world(num_prompts=160, k=4, switch={"switch_threshold_release_steps": 1}))
    switch, decision = "separate_async/switch", "separate_async/decision"
    for row, after in pairwise(world.rows):
        missing = row[f"{decision}/threshold"] - row[f"{decision}/sampleable_count"]
        assert row[f"{decision}/remaining"] == max(0.0, missing)
        assert after[f"{switch}/threshold"] == row[f"{decision}/threshold"]
        assert row[f"{decision}/threshold"] == min(max(round(row[f"{switch}/threshold_ratio"] * 16), 4), 16)
    assert len({row[f"{switch}/threshold"] for row in world.rows}) > 1
    taken_back = [d for r in world.reports for d in r.decisions if d.question is Question.TAKE_BACK]
    assert taken_back and all(d.numbers["threshold"] >= 4 for d in taken_back)


def test_validation_is_not_the_rollout_of_the_next_step() -> None:
    """The engines work for validation meanwhile: neither idle nor badly used."""

    async def long_validation(client: object, version: int) -> dict[str, float]:
        await asyncio.sleep(50.0)
        return {}

    plain, validated = (
        simulate(step_world(num_prompts=64, switch=OFF, test_freq=freq, validate=long_validation)) for freq in (-1, 2)
    )
    for world in (plain, validated):
        assert max(row["fully_async/rollouter/idle_ratio"] for row in world.rows) < 0.4
    for row in validated.rows:
        assert row["fully_async/rollouter/version_time_s"] == pytest.approx(row["timing_s/step"], abs=0.1)
    assert sum(row["separate_async/validate/seconds"] for row in validated.rows) > 100.0
    generated = sum(row["fully_async/rollouter/step_generated_samples"] for row in validated.rows)
    assert generated == validated.rows[-1]["fully_async/count/total_generated_samples"] == 64


def test_rollout_without_standalone_replicas_is_one_lending_a_step_and_counted_as_lent() -> None:
    """The only standalone replica dies; switching is off."""

    def script(world: World) -> None:
        asyncio.get_running_loop().call_at(1.0, world.standalone[0].die)

    world = simulate(step_world(num_prompts=96, k=4, switch=OFF), script)
    assert_conserved(world, 96)
    for row in world.rows[2:]:
        assert row["dynamic_resource/num_activations"] == row["dynamic_resource/num_deactivations"] <= 1
    lent = [row for row in world.rows[2:] if row["dynamic_resource/num_activations"]]
    assert len(lent) >= 3
    for row in lent:
        parts = ("activate", "wait_for_enough_samples", "deactivate")
        assert all(row[f"timing_s/{part}"] > 0.0 for part in parts)
        assert row["dynamic_resource/hybrid_rollout_fraction"] > 0.2
        assert row["timing_s/gen"] == row["separate_async/switch/sample_wait_seconds"] == 0.0
        assert row["separate_async/switch/wait_samples"] == 0.0
        assert row["dynamic_resource/switch_s"] == pytest.approx(
            row["timing_s/activate"] + row["timing_s/deactivate"]
        )
    asked = [(d.question, d.answer) for report in world.reports[2:] for d in report.decisions]
    assert asked.count((Question.LEND, "yes")) == asked.count((Question.TAKE_BACK, "yes")) == len(lent)


def test_the_start_of_a_run_is_a_decision_too() -> None:
    world = simulate(step_world(num_prompts=24))
    first = world.reports[0].decisions[0]
    assert (first.question, first.answer, first.version) == (Question.LEND, "yes", 0)
    lending = [d for r in world.reports for d in r.decisions if d.question is Question.LEND]
    assert [d.version for d in lending] == [0, 1, 2, 3], "that of a step carries the version it ends with"


def test_the_same_world_gives_the_same_rows() -> None:
    def once() -> tuple[list[dict[str, float]], list[int], list[Any]]:
        config = step_world(
            num_prompts=90,
            num_standalone=2,
            num_hybrid=2,
            rules=StoreRules(2, filter_metric="reward"),
            reward=Rewards(useless=lambda i: i % 6 == 0),
            lengths=lognormal_lengths(50, 0.9, 100),
            test_freq=3,
            validate=_validate,
        )
        world = simulate(config)
        return world.rows, world.trainer.trained, [(s.device, s.state, s.start_s, s.end_s) for s in world.spans]

    assert once() == once()
