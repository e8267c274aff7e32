"""The real session in virtual time, ended in any way and gone on with: what its files say was trained, was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swingshift.cluster.run_files import RunFiles
from swingshift.config.loading import load_config
from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.errors import TrainerError
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

NUM_PROMPTS = 61
WORLD = WorldConfig(
    num_prompts=NUM_PROMPTS,
    lengths=lognormal_lengths(50, 0.7, 100),
    trainer_cost=TrainerCost(per_group_s=0.1),
    trigger_parameter_sync_step=2,
    save_freq=2,
)


def in_steps() -> WorldConfig:
    """Anew each time: policies learn."""
    policy = StepSwitchPolicy(HybridRolloutSwitchConfig(enable_switch=True), 8, 2, standalone_share=0.5)
    return replace(WORLD, staleness_threshold=1.0, step_mode=StepMode(StepSettings(8, 2, needs_warmup=True), policy))


class Disk:
    """A run directory, and the checkpoints beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: list[str] = []

    async def save(self, step: int, state: dict[str, Any]) -> None:
        self.states.append(json.dumps(state))

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self.states[-1]) if self.states else {"num_consumed": 0, "version": 0}

    def lines(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def session(self, config: WorldConfig, disturb: Callable[[World], object] = lambda world: None) -> World:
        """As ``launch`` composes it, from the newest checkpoint."""
        config_of_files = load_config([], ["trainer.logger=[jsonl]", "trainer.log_samples_per_cycle=3"])

        def script(world: World) -> None:
            session, files = world.session, RunFiles(self.folder, config_of_files, str, None)
            self.files = files
            session._on_cycle, session._training._on_trained = files.on_cycle, files.on_trained
            if self.states:
                session.load_state_dict(self.state)
            files.go_on(session.rollouter.ledger.num_consumed, session.train_loop.version)
            self.check(is_cut=True)
            disturb(world)

        return simulate(replace(config, saver=self), script)

    def check(self, *, is_cut: bool) -> None:
        consumed, samples = self.lines("consumed.jsonl"), self.lines("samples.jsonl")
        cycles = [row["step"] for row in self.lines("metrics.jsonl")]
        assert cycles == list(range(1, len(cycles) + 1)), "a row for each cycle, once"
        ids = [i for line in consumed for i in line["group_ids"]]
        assert len(set(ids)) == len(ids), "trained twice"
        sizes = [len(line["group_ids"]) for line in consumed]
        assert [line["num_consumed"] for line in consumed] == [sum(sizes[: i + 1]) for i in range(len(sizes))]
        assert [line["cycle"] for line in consumed] == sorted(line["cycle"] for line in consumed)
        logged = [(sample["cycle"], sample["group_id"]) for sample in samples]
        trained = {(line["cycle"], i) for line in consumed for i in line["group_ids"]}
        assert len(set(logged)) == len(logged) and set(logged) <= trained
        if is_cut:
            assert len(cycles) == self.state["version"]
            assert sum(sizes) == self.state["num_consumed"]
            known = [g["group_id"] for g in (*self.state.get("queued", ()), *self.state.get("pending", ()))]
            assert not set(known) & set(ids), "trained, and to be trained"


def killed(when: float) -> Callable[[World], object]:
    """Cancelled: it ends at once and saves nothing, like a process that is killed."""

    def script(world: World) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_at(when, task.cancel)

    return script


@pytest.mark.parametrize("config", [lambda: WORLD, in_steps], ids=["fully_async", "separate_async"])
@pytest.mark.parametrize("seed", range(6))
def test_after_any_kills_the_files_say_what_was_trained(
    tmp_path: Path, config: Callable[[], WorldConfig], seed: int
) -> None:
    disk, rng = Disk(tmp_path), random.Random(seed)
    for _ in range(8):
        with contextlib.suppress(asyncio.CancelledError):
            disk.session(config(), killed(rng.uniform(0.1, 4.0)))
        disk.check(is_cut=False)
    assert disk.session(config()).exit_reason == "finished"
    disk.check(is_cut=True)
    ids = [i for line in disk.lines("consumed.jsonl") for i in line["group_ids"]]
    assert sorted(ids) == list(range(NUM_PROMPTS)) and disk.state["num_consumed"] == NUM_PROMPTS
    summary = disk.files.close({}, 1.0, "finished")
    assert summary["num_consumed_groups"] == NUM_PROMPTS and summary["num_cycles"] == disk.state["version"]


def test_a_run_that_ends_in_mid_cycle_goes_on_in_mid_cycle(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    faults = PlannedFaults(errors={("trainer", "train", 4): TrainerError("broken")})
    with pytest.raises(TrainerError, match="broken"):
        disk.session(replace(WORLD, faults=faults, save_freq=-1))
    disk.check(is_cut=True)
    assert [line["cycle"] for line in disk.lines("consumed.jsonl")] == [1, 1, 2]
    disk.session(WORLD)
    disk.check(is_cut=True)
    assert [line["cycle"] for line in disk.lines("consumed.jsonl")][:6] == [1, 1, 2, 2, 2, 3]


def test_groups_that_are_trained_after_all_are_in_the_file(tmp_path: Path) -> None:
    """The run ends because training passed its deadline; it succeeds while the run waits for it before it saves."""
    disk = Disk(tmp_path)
    config = replace(
        WORLD,
        faults=PlannedFaults(delays_s={("trainer", "train"): 31.0}),
        train_timeout_s=30.0,
        call_timeout_s=5.0,
    )
    with pytest.raises(TrainerError, match="did not end within 30 s"):
        disk.session(config)
    assert disk.state["num_consumed"] == 4
    disk.check(is_cut=True)


def test_groups_whose_training_failed_are_not(tmp_path: Path) -> None:
    told: list[tuple[int, WeightVersion]] = []

    def listen(world: World) -> None:
        def on_trained(groups: list[SampleGroup], version: WeightVersion) -> None:
            told.append((len(groups), version))

        world.session._training._on_trained = on_trained

    faults = PlannedFaults(errors={("trainer", "train", 2): TrainerError("broken")})
    with pytest.raises(TrainerError, match="broken"):
        Disk(tmp_path).session(replace(WORLD, faults=faults), listen)
    assert told == [(4, 0)]
