"""Training in global steps: the order of a step, lending at its end, warm-up, and how a run ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_builders import stop_at
from step_builders import (
    OFF,
    SLOW_ROLLOUT,
    SLOW_TRAINER,
    Recorder,
    Rewards,
    ScriptedSwitch,
    assert_conserved,
    loop_of,
    rollouter_of,
    row_sum,
    step_world,
    sync_world,
)

from swingshift.errors import ConfigError
from swingshift.runtime.replay_buffer import ReplayBuffer, Sampleable
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.world import World, simulate

MINI_BATCH = ["on_sample_begin", "on_sample_end", "train"]
LENT = ["activate", "rebalance"]


async def _validate(client: object, version: int) -> dict[str, float]:
    await asyncio.sleep(1.0)
    return {"val/version": float(version)}


# --- order --------------------------------------------------------------------------------------------------


def test_hooks_come_in_their_order() -> None:
    recorder = Recorder()
    world = simulate(step_world(num_prompts=24, test_freq=2, validate=_validate), recorder)
    assert_conserved(world, 24)
    begin = ["on_init_end", "sync_weights", "activate", "on_train_begin", "submit"]
    step = ["on_step_begin", "prepare_step", "submit", "deactivate", *MINI_BATCH * 2, "on_step_end", "sync_weights"]
    assert recorder.calls == [
        *begin,
        *step,
        *LENT,
        *step,
        *LENT,
        "on_validate_begin",
        "on_validate_end",
        # Enough was generated while validation went on.
        "on_step_begin",
        "deactivate",
        "prepare_step",
        "submit",
        *step[4:],
    ]


def test_lent_and_taken_back_exactly_once_a_step_in_that_order() -> None:
    recorder = Recorder()
    always_short = {"switch_threshold_ratio": 1.0, "adaptive_switch_threshold": False}
    world = simulate(step_world(num_prompts=80, switch=always_short), recorder)
    assert_conserved(world, 80)
    switches = recorder.steps("activate", "deactivate")
    assert switches == [["deactivate", "activate"]] * 9 + [["deactivate"]]
    assert [row["dynamic_resource/num_activations"] for row in world.rows] == [2, *[1] * 8, 0]
    assert [row["dynamic_resource/num_deactivations"] for row in world.rows] == [1] * 10
    assert [report.state for report in world.reports] == ["HYBRID_ACTIVE"] * 9 + ["STANDALONE_ONLY"]


def test_the_inventory_is_ready_when_the_step_begins_the_devices_come_back_before_prompts_are_submitted() -> None:
    """A slow trainer: when it has trained, more is there than is asked for. The policy lends all the same."""
    recorder, policy = Recorder(), ScriptedSwitch(wanted=4)
    world = simulate(step_world(num_prompts=40, policy=policy, trainer_cost=SLOW_TRAINER), recorder)
    assert_conserved(world, 40)
    first, *others = recorder.steps("on_step_begin", "prepare_step", "submit", "deactivate", "activate")
    assert first[:4] == ["on_step_begin", "prepare_step", "submit", "deactivate"]
    assert all(calls[:4] == ["on_step_begin", "deactivate", "prepare_step", "submit"] for calls in others)
    assert all(row["timing_s/switch_wait"] == 0.0 for row in world.rows[1:])
    assert min(policy.counts[:-1]) >= 4


@pytest.mark.parametrize(("wanted", "at_once"), [(7, True), (8, True), (9, False)])
def test_the_threshold_is_met_exactly_when_the_step_begins(wanted: int, at_once: bool) -> None:
    """Training takes so long that the whole batch in flight is there: 8 groups, and no more prompts to come."""
    policy = ScriptedSwitch(wanted=wanted)
    config = step_world(num_prompts=24, k=2, policy=policy, trainer_cost=SLOW_TRAINER)
    recorder = Recorder()
    world = simulate(config, recorder)
    assert_conserved(world, 24)
    second = recorder.steps("prepare_step", "deactivate")[1]
    assert policy.counts[0] == 8
    assert second == (["deactivate", "prepare_step"] if at_once else ["prepare_step", "deactivate"])


def test_the_devices_come_back_at_the_moment_the_threshold_is_met() -> None:
    """Groups finish one by one; five are wanted."""
    seen: list[int] = []

    def watch(world: World) -> None:
        deactivate, loop = world.session.controller.deactivate, loop_of(world)

        async def noted() -> None:
            seen.append(rollouter_of(world).store.sampleable_count(loop.version + 1))
            await deactivate()

        world.session.controller.deactivate = noted  # type: ignore[method-assign]

    policy = ScriptedSwitch(wanted=5)
    config = step_world(
        num_prompts=40, policy=policy, lengths=lambda r, i: 60 + int(r) % 17, replica_cost=SLOW_ROLLOUT
    )
    assert_conserved(simulate(config, watch), 40)
    assert seen == [5] * 5


def test_a_wait_without_lent_devices_is_none() -> None:
    """Prepare_step submits and returns: whatever is waited for is a mini-batch."""
    targets: list[int] = []

    class Noted(ReplayBuffer):
        async def wait_for_sampleable(self, global_steps: int, target_count: int) -> Sampleable:
            targets.append(target_count)
            return await super().wait_for_sampleable(global_steps, target_count)

    recorder = Recorder()
    config = step_world(
        num_prompts=40, switch=OFF, wrap=lambda b: Noted(b._rollouter, 100), replica_cost=SLOW_ROLLOUT
    )
    world = simulate(config, recorder)
    assert_conserved(world, 40)
    assert set(targets) == {4}
    assert recorder.steps("prepare_step", "submit", "on_sample_begin")[0][:3] == [
        "prepare_step",
        "submit",
        "on_sample_begin",
    ]
    assert all(row["timing_s/switch_wait"] == 0.0 for row in world.rows)


def test_switched_off_nothing_is_ever_lent() -> None:
    recorder = Recorder()
    world = simulate(step_world(num_prompts=40, switch=OFF), recorder)
    assert_conserved(world, 40)
    assert recorder.of("activate", "deactivate", "rebalance") == []
    assert all(replica.num_calls == 0 for replica in world.hybrid)
    assert all(row["separate_async/decision/should_switch_to_rollout"] == 0.0 for row in world.rows)
    assert {report.decision for report in world.reports} == {"switching is off"}
    without = simulate(step_world(num_prompts=40, switch=OFF, lend=False))
    assert without.rows == world.rows, "the same as without lendable replicas"


def test_lending_shortens_a_run_that_waits_for_rollout() -> None:
    options: dict[str, Any] = {"num_prompts": 80, "replica_cost": SLOW_ROLLOUT}
    lent, alone = simulate(step_world(**options)), simulate(step_world(switch=OFF, **options))
    assert lent.wall_s < 0.85 * alone.wall_s


def test_the_cost_gate_keeps_the_devices() -> None:
    """Switching takes 4 s, which no wait here is worth: it is done until that is known."""
    lent = {}
    for name, seconds in (("dear", 2.0), ("cheap", 0.1)):
        cost = TrainerCost(per_group_s=0.05, offload_s=seconds, onload_s=seconds)
        world = simulate(step_world(num_prompts=120, trainer_cost=cost, replica_cost=SLOW_ROLLOUT))
        assert_conserved(world, 120)
        lent[name] = [row["separate_async/decision/should_switch_to_rollout"] for row in world.rows]
    assert lent["dear"] == [1.0, 1.0] + [0.0] * 13
    assert lent["cheap"] == [1.0] * 14 + [0.0]


# --- the end of a run ---------------------------------------------------------------------------------------


def test_data_that_end_within_a_step_are_trained_to_the_last_prompt() -> None:
    recorder = Recorder()
    world = simulate(step_world(num_prompts=22), recorder)
    assert_conserved(world, 22)
    assert [row["fully_async/trainer/step_consumed_samples"] for row in world.rows] == [8, 8, 6]
    assert [calls.count("train") for calls in recorder.steps("train")] == [2, 2, 2]
    assert world.session.controller.version == 3 == world.hybrid[0].version + 1, "synced, and not lent any more"


@pytest.mark.parametrize("num_prompts", [0, 1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("mode", ["on", "off", "sync"])
def test_few_prompts(num_prompts: int, mode: str) -> None:
    config = sync_world if mode == "sync" else step_world
    world = simulate(config(num_prompts=num_prompts, **({"switch": OFF} if mode == "off" else {})))
    assert world.exit_reason == "finished"
    assert_conserved(world, num_prompts)
    assert len(world.rows) == -(-num_prompts // 8)
    assert world.session.controller.state == "STANDALONE_ONLY"


@pytest.mark.parametrize("total", [1, 2, 5])
@pytest.mark.parametrize("warmup", [1, 3])
def test_total_training_steps_submit_what_they_train_and_no_more(total: int, warmup: int) -> None:
    recorder = Recorder()
    world = simulate(step_world(num_prompts=1000, total=total, warmup=warmup), recorder)
    assert world.exit_reason == "finished" and len(world.rows) == total
    assert sorted(world.trainer.trained) == list(range(8 * total))
    assert rollouter_of(world).next_group_id == 8 * total and not world.session.rollouter.ledger.live
    assert recorder.steps("activate")[-1] == [], "the last step does not lend"


def test_total_training_steps_replace_groups_that_fail_one_for_one() -> None:
    """However many of them wait to be replaced when the next prompts are submitted."""
    rewards = Rewards(failing=lambda group_id: group_id % 3 == 0)
    config = step_world(
        num_prompts=1000, total=6, reward=rewards, max_failed_ratio=1.0, trainer_cost=SLOW_TRAINER, switch=OFF
    )
    world = simulate(config)
    ledger = world.session.rollouter.ledger
    assert len(world.trainer.trained) == 48 and ledger.num_failed >= 20
    assert ledger.num_submitted == 48 + ledger.num_failed and not ledger.live
    assert row_sum(world, "replay_buffer/refilled_samples") == ledger.num_failed


def test_more_steps_than_the_data_hold_end_with_the_data() -> None:
    world = simulate(step_world(num_prompts=20, total=100))
    assert_conserved(world, 20)
    assert len(world.rows) == 3


@pytest.mark.parametrize("options", [{"num_prompts": 40}, {"num_prompts": 999, "total": 5}])
def test_the_last_step_does_not_lend(options: dict[str, int]) -> None:
    recorder = Recorder()
    world = simulate(step_world(**options), recorder)
    assert len(world.rows) == 5
    assert recorder.steps("activate")[-2:] == [["activate"], []]
    assert world.reports[-1].decision == "the last step: nothing is left to lend for"


def test_steps_end_with_a_stop_and_the_mini_batch_under_way_is_finished() -> None:
    recorder = Recorder()
    config = step_world(num_prompts=80, trainer_cost=SLOW_TRAINER)

    def script(world: World) -> None:
        recorder(world)
        stop_at(2.0)(world)

    world = simulate(config, script)
    assert world.exit_reason == "interrupted"
    assert world.trainer.trained == [0, 2, 4, 6] and len(world.rows) == 1
    assert recorder.steps("train", "sync_weights", "activate") == [["train", "sync_weights"]]
    assert world.rows[0]["fully_async/trainer/step_consumed_samples"] == 4
    assert world.session.controller.version == 1


# --- warm-up ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [1, 2, 3])
def test_warm_up_keeps_so_many_batches_in_flight_ahead_of_the_step(warmup: int) -> None:
    outstanding: list[int] = []

    def watch(world: World) -> None:
        prepare_step = loop_of(world).prepare_step

        async def noted(step: int) -> None:
            outstanding.append(rollouter_of(world).num_outstanding)
            await prepare_step(step)

        loop_of(world).prepare_step = noted  # type: ignore[method-assign]

    assert_conserved(simulate(step_world(num_prompts=80, warmup=warmup), watch), 80)
    assert outstanding[:5] == [8 * warmup] * 5


def test_no_warm_up_is_refused_where_rollout_has_devices_of_its_own() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.v1\.num_warmup_batches=0: nothing is in flight .* at least 1"):
        simulate(step_world(num_prompts=40, warmup=0))


def test_no_warm_up_and_no_prompts_is_an_empty_run() -> None:
    assert simulate(step_world(num_prompts=0, warmup=0)).exit_reason == "finished"


# --- a buffer of the user's own -----------------------------------------------------------------------------


def test_a_buffer_around_ours_is_what_the_loop_asks() -> None:
    """It counts half of what is there, and hands out what ours does."""

    class Half:
        def __init__(self, buffer: ReplayBuffer) -> None:
            self.inner = buffer
            self.sizes: list[int] = []

        def get_sampleable_count(self, global_steps: int) -> int:
            return self.inner.get_sampleable_count(global_steps) // 2

        async def wait_for_sampleable(self, global_steps: int, target_count: int) -> Sampleable:
            return await self.inner.wait_for_sampleable(global_steps, target_count)

        async def sample(self, global_steps: int, batch_size: int) -> Any:
            self.sizes.append(batch_size)
            return await self.inner.sample(global_steps, batch_size)

    built: list[Half] = []

    def wrap(buffer: ReplayBuffer) -> Half:
        built.append(Half(buffer))
        return built[0]

    policy = ScriptedSwitch(wanted=4)
    world = simulate(step_world(num_prompts=24, wrap=wrap, policy=policy, trainer_cost=SLOW_TRAINER))
    assert_conserved(world, 24)
    assert built[0].sizes == [4] * 6
    assert policy.counts[0] == 4, "8 are there"
