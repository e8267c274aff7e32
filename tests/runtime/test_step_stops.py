"""Global steps that end: finished, stopped in every phase, cancelled."""

from __future__ import annotations

import asyncio

import pytest
from runtime_builders import MemorySaver, resume_from, stop_at
from step_builders import (
    Recorder,
    ScriptedSwitch,
    assert_conserved,
    rollouter_of,
)
from step_modes import MODES, NUM_PROMPTS, both, world_of

from swingshift.errors import ConfigError
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.world import WorldConfig, build_world, simulate


@pytest.mark.parametrize("options", [{}, {"total": 3}])
def test_a_finished_run_is_saved_once_and_has_nothing_to_go_on_with(options: dict[str, int]) -> None:
    saver = MemorySaver()
    world = simulate(world_of("switching", saver=saver, save_freq=1, **options))
    assert [step for step, _ in saver.states] == list(range(1, len(world.rows) + 1))
    recorder = Recorder()
    again = simulate(world_of("switching", **options), both(resume_from(saver.last), recorder))
    assert again.exit_reason == "finished" and again.rows == [] and again.trainer.trained == []
    assert recorder.of("activate", "train") == []
    assert rollouter_of(again).next_group_id == saver.last["next_group_id"], "no prompt is submitted"


def test_more_steps_can_be_trained_later() -> None:
    saver = MemorySaver()
    first = simulate(world_of("switching", saver=saver, total=2))
    second = simulate(world_of("switching", total=4), resume_from(saver.last))
    assert first.trainer.trained + second.trainer.trained == [*first.trainer.trained, *second.trainer.trained]
    assert sorted(first.trainer.trained + second.trainer.trained) == list(range(32))
    assert [row["training/global_step"] for row in (*first.rows, *second.rows)] == [1, 2, 3, 4]


# --- stops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_stop_before_the_start(mode: str) -> None:
    saver = MemorySaver()
    world = simulate(world_of(mode, saver=saver), lambda w: w.session.stop("never mind"))
    assert world.exit_reason == "never mind" and world.trainer.trained == []
    assert world.session.controller.costs.num_activations == 0
    assert saver.last["num_consumed"] == 0
    resumed = simulate(world_of(mode), resume_from(saver.last))
    assert_conserved(resumed, NUM_PROMPTS)


@pytest.mark.parametrize("mode", MODES)
def test_stop_wakes_every_wait_at_once(mode: str) -> None:
    """While groups are waited for, with the devices lent or not, nothing is under way that must be finished."""
    config = world_of(mode, lengths=lambda r, i: 100, replica_cost=ReplicaCost(step_base_s=1.0))
    world = simulate(config, stop_at(30.0))
    assert world.exit_reason == "interrupted" and world.trainer.trained == []
    assert world.wall_s < 31


def test_stop_in_every_phase_of_a_step() -> None:
    """At each of its calls, the hooks among them: it ends, the devices are back, and the rest is trained later."""

    def config(saver: MemorySaver | None = None) -> WorldConfig:
        policy = ScriptedSwitch(wanted=6)
        return world_of("switching", saver=saver, policy=policy, test_freq=2, validate=_second_of_validation)

    calls = Recorder()
    simulate(config(), calls)
    end = calls.calls.index("on_validate_end") + 1
    assert end > 30
    for number in range(end):
        saver, recorder = MemorySaver(), _StopAtCall(number)
        first = simulate(config(saver), recorder)
        assert first.exit_reason == f"at {calls.calls[number]}"
        assert first.session.controller.state == "STANDALONE_ONLY"
        second = simulate(world_of("switching"), resume_from(saver.last))
        assert sorted(first.trainer.trained + second.trainer.trained) == list(range(NUM_PROMPTS))


async def _second_of_validation(client: object, version: int) -> dict[str, float]:
    await asyncio.sleep(1.0)
    return {}


class _StopAtCall(Recorder):
    """Stops the session when the nth call is made."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def noted(self, call: str) -> None:
        super().noted(call)
        if len(self.calls) == self.number + 1:
            assert self.world is not None
            self.world.session.stop(f"at {call}")


def test_a_run_without_warm_up_that_is_stopped_at_once_is_not_refused() -> None:
    world = simulate(world_of("off", warmup=0), lambda w: w.session.stop("never mind"))
    assert world.exit_reason == "never mind"
    with pytest.raises(ConfigError):
        simulate(world_of("off", warmup=0))


@pytest.mark.parametrize("when", [0.0, 0.01, 0.08, 0.3, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("mode", ["switching", "off", "sync"])
def test_cancelling_ends_at_once_without_saving_and_leaves_no_task(mode: str, when: float) -> None:
    saver = MemorySaver()
    config = world_of(mode, saver=saver, test_freq=1, validate=_second_of_validation)
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
