"""Errors, cancellation and validation: what was trained is saved, and nothing stays behind."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from runtime_builders import CONFIGS, MemorySaver, fails_for, resume_from, simulate_failing, stop_at

from swingshift.core.types import Prompt, SamplingParams
from swingshift.errors import CheckpointError, DeadlockError, TooManyFailuresError, TrainerError
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import SimReward
from swingshift.sim.world import World, WorldConfig, build_world, simulate

# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(1, 9))
def test_an_error_in_any_collection_loses_and_repeats_nothing(nth: int) -> None:
    saver = MemorySaver()
    config = CONFIGS["dynamic"]
    faults = PlannedFaults(errors={("trainer", "train", nth): TrainerError("broken")})
    first = simulate_failing(replace(config, saver=saver, faults=faults), TrainerError, "broken")
    second = simulate(config, resume_from(saver.last))
    assert sorted(first.trainer.trained + second.trainer.trained) == list(range(41))


def test_an_error_elsewhere_lets_training_under_way_finish_before_it_saves() -> None:
    """An optimizer pass cannot be taken back: saved as not trained, its groups would be trained twice."""
    saver = MemorySaver()
    config = replace(CONFIGS["static"], trainer_cost=TrainerCost(per_group_s=1.0))
    failing = replace(config, saver=saver, reward=SimReward(score_fn=fails_for(*range(8, 41))))
    first = simulate_failing(failing, TooManyFailuresError, "failed for group")
    assert len(first.trainer.trained) == 4 == saver.last["num_consumed"]
    second = simulate(config, resume_from(saver.last))
    # What failed before the error is lost; the others were pending and are generated again.
    kept = {p["group_id"] for p in (*saver.last["pending"], *saver.last["queued"])}
    lost = set(range(saver.last["next_group_id"])) - kept - set(first.trainer.trained)
    assert len(lost) == saver.last["num_failed"] == 2
    assert set(first.trainer.trained) | set(second.trainer.trained) >= set(range(41)) - lost
    assert not set(first.trainer.trained) & set(second.trainer.trained)


def test_training_that_hangs_holds_up_the_end_only_for_its_deadline() -> None:
    saver = MemorySaver()
    config = WorldConfig(
        lend=False,
        saver=saver,
        call_timeout_s=20.0,
        reward=SimReward(score_fn=fails_for(*range(8, 64))),
        faults=PlannedFaults(delays_s={("trainer", "train"): 1e9}),
    )
    world = simulate_failing(config, TooManyFailuresError, "max_failed_ratio")
    assert world.trainer.trained == []
    assert saver.states == [], "whether its groups will have been trained on nobody knows"
    assert max(span.end_s for span in world.spans) < 60


def test_what_ended_the_run_is_not_hidden_by_a_failing_save() -> None:
    faults = PlannedFaults(errors={("trainer", "train", 3): TrainerError("broken")})
    config = replace(CONFIGS["static"], saver=MemorySaver(error=CheckpointError("disk full")), faults=faults)
    worlds: list[World] = []
    with pytest.raises(TrainerError, match="broken") as caught:
        simulate(config, worlds.append)
    assert any("disk full" in note for note in caught.value.__notes__)
    with pytest.raises(RuntimeError, match="actor is gone"):
        simulate(replace(CONFIGS["static"], saver=MemorySaver(error=RuntimeError("actor is gone"))))


def test_a_report_that_fails_ends_the_run() -> None:
    def script(world: World) -> None:
        async def on_cycle(report: object) -> None:
            raise OSError("no space left")

        world.session._on_cycle = on_cycle

    saver = MemorySaver()
    simulate_failing(replace(CONFIGS["static"], saver=saver), OSError, "no space left", script)
    assert saver.last["version"] == 1


def test_a_broken_promise_surfaces_as_a_deadlock_that_names_the_waits() -> None:
    async def never(name: str, verb: str) -> None:
        if verb == "generate":
            await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"train loop waits for 4 groups in the queue \(has 0, can have"):
        simulate(WorldConfig(lend=False, faults=never))


@pytest.mark.parametrize("when", [0.0, 0.01, 0.3, 0.55, 0.8, 1.0, 2.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_cancelling_ends_at_once_without_saving_and_leaves_no_task(name: str, when: float) -> None:
    saver = MemorySaver()
    config = replace(CONFIGS[name], saver=saver, trainer_cost=TrainerCost(per_group_s=0.2))
    loop = VirtualTimeLoop()

    async def main() -> None:
        world = build_world(config)
        run = asyncio.create_task(world.session.run())
        await asyncio.sleep(when)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert loop.time() == when
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main(), loop)
    assert saver.states == []


def test_a_finished_run_is_saved_once() -> None:
    saver = MemorySaver()
    world = simulate(replace(CONFIGS["static"], saver=saver, save_freq=1))
    assert [step for step, _ in saver.states] == list(range(1, len(world.rows) + 1))
    saver = MemorySaver()
    simulate(replace(CONFIGS["static"], saver=saver, save_freq=4))
    assert [step for step, _ in saver.states] == [4, 6], "every fourth version and the end"


# --- validation ---------------------------------------------------------------------------------------------


async def _validate(client: Any, version: int) -> dict[str, float]:
    await client.generate(f"val-{version}", Prompt("v", (0,)), 1, SamplingParams(max_tokens=80))
    return {"val/version": float(version)}


@pytest.mark.parametrize("name", CONFIGS)
def test_validation_runs_beside_training_and_the_last_one_is_not_lost(name: str) -> None:
    config = replace(CONFIGS[name], test_freq=2, validate=_validate, lengths=lambda r, i: 100, num_prompts=48)
    world = simulate(config)
    assert sorted(world.trainer.trained) == list(range(48))
    seen = [row["val/version"] for row in world.rows if "val/version" in row]
    closing = world.session.closing_row()
    assert seen == [2.0, 4.0] and closing == {"val/version": 6.0}
    assert world.session.closing_row() == {}, "it is told once"
    assert world.session.controller.state == "STANDALONE_ONLY"


def test_an_error_in_validation_ends_the_run() -> None:
    async def broken(client: object, version: int) -> dict[str, float]:
        await asyncio.sleep(0.1)
        raise ZeroDivisionError("in validation")

    saver = MemorySaver()
    config = replace(CONFIGS["static"], test_freq=1, validate=broken, saver=saver)
    world = simulate_failing(config, ZeroDivisionError, "in validation")
    assert len(world.rows) < 6 and saver.last["num_consumed"] == len(world.trainer.trained)


def test_an_interrupted_run_does_not_wait_for_validation() -> None:
    async def endless(client: object, version: int) -> dict[str, float]:
        await asyncio.sleep(1e6)
        return {}

    world = simulate(replace(CONFIGS["static"], test_freq=1, validate=endless), stop_at(3.0))
    assert world.exit_reason == "interrupted" and world.wall_s < 10


def test_validation_is_given_up_when_nobody_can_generate_any_more() -> None:
    config = replace(CONFIGS["static"], test_freq=6, validate=_validate, num_prompts=48)

    def script(world: World) -> None:
        end = world.session.train_loop.run

        async def run_then_die() -> None:
            await end()
            world.session.balancer.remove(world.standalone)

        world.session.train_loop.run = run_then_die  # type: ignore[method-assign]

    world = simulate(config, script)
    assert world.exit_reason == "finished" and world.session.closing_row() == {}
