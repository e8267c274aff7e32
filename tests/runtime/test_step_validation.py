"""Validation between two steps: borrowed devices, and training's own groups meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from runtime_builders import stop_at
from step_builders import (
    OFF,
    Recorder,
    ScriptedSwitch,
    assert_conserved,
    loop_of,
    step_world,
)

from swingshift.sim.world import World, WorldConfig, simulate


async def _validate(client: object, version: int) -> dict[str, float]:
    await asyncio.sleep(1.0)
    return {"val/version": float(version)}


def lent_during_validation(config: WorldConfig) -> tuple[World, list[bool], Recorder]:
    """The world, whether the devices were in rollout during each validation, and all calls."""
    lent: list[bool] = []
    recorder = Recorder()
    worlds: list[World] = []

    async def validate(client: object, version: int) -> dict[str, float]:
        lent.append(worlds[0].session.controller.is_hybrid_active)
        return await _validate(client, version)

    def script(world: World) -> None:
        worlds.append(world)
        recorder(world)

    return simulate(replace(config, validate=validate), script), lent, recorder


def test_validation_borrows_the_devices_and_gives_them_back() -> None:
    policy = ScriptedSwitch(wanted=4, gives_up=True)
    config = step_world(num_prompts=32, test_freq=2, policy=policy)
    world, lent, recorder = lent_during_validation(config)
    assert_conserved(world, 32)
    assert lent == [True, True]
    end = ["on_step_end", "sync_weights"]
    borrowed = ["on_validate_begin", "activate", "on_validate_end", "deactivate"]
    names = ("on_step_end", "sync_weights", "on_validate_begin", "activate", "on_validate_end", "deactivate")
    assert recorder.steps(*names)[1:] == [[*end, *borrowed], end, [*end, *borrowed]]
    assert [row.get("val/version") for row in world.rows] == [None, None, 2.0, None]
    closing = world.session.closing_row()
    cost = {name: value for name, value in closing.items() if name.startswith("separate_async/validate/")}
    assert closing == {"val/version": 4.0, **cost}, "that of the last step comes after its row"
    assert cost.keys() == {name for name in world.rows[0] if name.startswith("separate_async/validate/")}
    assert cost["separate_async/validate/seconds"] >= 1.0
    assert world.session.closing_row() == {}, "it is told once"


def test_validation_leaves_lent_devices_lent() -> None:
    world, lent, recorder = lent_during_validation(step_world(num_prompts=32, test_freq=1, policy=ScriptedSwitch()))
    assert_conserved(world, 32)
    assert lent == [True] * 4
    switches = recorder.steps("on_validate_begin", "activate", "on_validate_end", "deactivate")
    lent_anyway = ["deactivate", "activate", "on_validate_begin", "on_validate_end"]
    assert switches == [lent_anyway] * 3 + [
        ["deactivate", "on_validate_begin", "activate", "on_validate_end", "deactivate"]
    ]


def test_validation_borrows_nothing_where_switching_is_off() -> None:
    world, lent, _ = lent_during_validation(step_world(num_prompts=32, test_freq=1, switch=OFF))
    assert_conserved(world, 32)
    assert lent == [False] * 4 and world.hybrid[0].num_calls == 0


def test_training_goes_on_generating_during_validation_and_its_cost_is_in_the_next_row() -> None:
    """A second of validation, in which nothing of training waits for it."""
    config = step_world(num_prompts=40, test_freq=2, validate=_validate, policy=ScriptedSwitch(wanted=8))
    world = simulate(config)
    assert_conserved(world, 40)
    seconds = [row["separate_async/validate/seconds"] for row in world.rows]
    assert seconds == pytest.approx([0.0, 0.0, 1.0, 0.0, 1.0])
    groups = [row["separate_async/validate/generated_samples"] for row in world.rows]
    assert groups[0] == groups[1] == groups[3] == 0 and groups[2] >= 4 and groups[4] >= 4


def test_an_error_in_validation_ends_the_run_and_leaves_no_task() -> None:
    async def broken(client: object, version: int) -> dict[str, float]:
        await asyncio.sleep(0.1)
        raise ZeroDivisionError("in validation")

    with pytest.raises(ZeroDivisionError, match="in validation"):
        simulate(step_world(num_prompts=40, test_freq=1, validate=broken))


def test_an_interrupted_run_does_not_wait_for_validation() -> None:
    async def endless(client: object, version: int) -> dict[str, float]:
        await asyncio.sleep(1e6)
        return {}

    for options in ({}, {"switch": OFF}):
        config = step_world(num_prompts=40, test_freq=1, validate=endless, **options)
        world = simulate(config, stop_at(10.0))
        assert world.exit_reason == "interrupted" and world.wall_s < 11 and len(world.rows) == 1
        closing = world.session.closing_row()
        assert "val/version" not in closing and closing["separate_async/validate/seconds"] > 1.0, "given up, not free"
        assert world.session.controller.state == "STANDALONE_ONLY"


def test_a_stop_while_the_devices_are_borrowed_starts_no_validation() -> None:
    validated: list[int] = []

    async def validate(client: object, version: int) -> dict[str, float]:
        validated.append(version)
        return {}

    def script(world: World) -> None:
        begin = loop_of(world).on_validate_begin

        async def then_stop() -> None:
            world.session.stop("interrupted")
            await begin()

        loop_of(world).on_validate_begin = then_stop  # type: ignore[method-assign]

    world = simulate(step_world(num_prompts=40, test_freq=1, validate=validate), script)
    assert world.exit_reason == "interrupted" and validated == []
