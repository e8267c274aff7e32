"""Saves that are broken off by what happens elsewhere: one at a time, and a whole checkpoint at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from disk_trainer import DiskTrainer
from runtime_builders import CONFIGS, fails_for, resume_from, simulate_failing

from swingshift.errors import CheckpointError, TooManyFailuresError
from swingshift.runtime.checkpoint import CheckpointStore, list_checkpoints, read_state
from swingshift.runtime.save_call import SaveCall
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.workload import SimReward
from swingshift.sim.world import build_world, simulate

# --- on a real disk -----------------------------------------------------------------------------------------


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Flushing, renaming and deleting take a while. Its one item is called as each of them begins."""
    on_call: list[Callable[[], None]] = [lambda: None]

    def slow(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            on_call[0]()
            time.sleep(0.002)
            return call(*args, **kwargs)

        return run

    monkeypatch.setattr(os, "fsync", slow(lambda descriptor: None))
    for name in ("rename", "rmdir"):
        monkeypatch.setattr(os, name, slow(getattr(os, name)))
    return on_call


@pytest.mark.parametrize("next_step", [7, 8])
def test_a_save_cancelled_at_any_step_and_the_save_after_it_both_leave_whole_checkpoints(
    next_step: int, tmp_path: Path, slow_disk: list[Callable[[], None]]
) -> None:
    async def main(root: Path, nth: int) -> bool:
        """Was it cancelled before its end?"""
        loop, saving, trainer = asyncio.get_running_loop(), SaveCall(60.0), DiskTrainer()
        store = CheckpointStore(root, trainer, keep=2)
        await store.save(7, {"n": 0})
        first = asyncio.create_task(saving.run(lambda: store.save(7, {"n": 1}), "the first"))
        calls = count(1)
        slow_disk[0] = lambda: next(calls) == nth and loop.call_soon_threadsafe(first.cancel)  # type: ignore[assignment]
        await asyncio.wait([first])
        slow_disk[0] = lambda: None
        read_state(list_checkpoints(root)[-1])
        await saving.run(lambda: store.save(next_step, {"n": 2}), "the second")
        assert [read_state(path)["n"] for path in list_checkpoints(root)] == ([2] if next_step == 7 else [1, 2])
        trainer.weights = "lost"
        await store.load(list_checkpoints(root)[-1])
        assert trainer.weights == "w0"
        return first.cancelled()

    for nth in count(1):
        was_cancelled = asyncio.run(main(tmp_path / f"{nth}", nth))
        assert not list((tmp_path / f"{nth}").glob(".*")), "nothing temporary is left"
        if not was_cancelled:
            break
    assert nth > 8, "nothing was cancelled"


# --- in a session -------------------------------------------------------------------------------------------


@dataclass
class SlowSaver:
    """Takes its time, and says when it began and ended; ``hangs``: the nth never ends."""

    seconds: float = 3.0
    hangs: int | None = None
    log: list[str] = field(default_factory=list)
    num_open: int = 0
    states: list[dict[str, Any]] = field(default_factory=list)

    async def save(self, step: int, state: Mapping[str, Any]) -> None:
        assert self.num_open == 0, "two saves at once"
        copy, self.num_open = json.loads(json.dumps(state)), self.num_open + 1
        self.log.append("begins")
        try:
            await (asyncio.Event().wait() if len(self.log) == self.hangs else asyncio.sleep(self.seconds))
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        finally:
            self.num_open -= 1
        self.log.append("ends")
        self.states.append(copy)


@pytest.mark.parametrize("num_scored", range(6, 30, 3))
@pytest.mark.parametrize("name", CONFIGS)
def test_an_error_during_a_save_waits_for_it_and_then_saves_what_came_after(name: str, num_scored: int) -> None:
    saver, config = SlowSaver(), CONFIGS[name]
    failing = SimReward(score_fn=fails_for(*range(num_scored, 41)))
    first = simulate_failing(
        replace(config, saver=saver, save_freq=1, reward=failing), TooManyFailuresError, "failed for group"
    )
    assert saver.log == ["begins", "ends"] * len(saver.states) and saver.states
    last = saver.states[-1]
    assert last["num_consumed"] == len(first.trainer.trained)
    assert last["num_failed"] == first.session.rollouter.ledger.num_failed
    second = simulate(config, resume_from(last))
    assert not set(first.trainer.trained) & set(second.trainer.trained)


def test_an_error_during_a_save_that_hangs_ends_the_run_after_its_deadline_and_begins_no_other() -> None:
    saver = SlowSaver(hangs=1)
    config = replace(
        CONFIGS["static"],
        saver=saver,
        save_freq=1,
        call_timeout_s=20.0,
        reward=SimReward(score_fn=fails_for(*range(10, 41))),
    )
    with pytest.raises(TooManyFailuresError) as caught:
        simulate(config)
    assert any("a checkpoint was still being written" in note for note in caught.value.__notes__)
    assert saver.log == ["begins", "cancelled"]


def test_a_save_past_its_own_deadline_ends_the_run_and_begins_no_other() -> None:
    saver = SlowSaver(hangs=3)
    config = replace(CONFIGS["static"], saver=saver, save_freq=1, train_timeout_s=30.0, call_timeout_s=5.0)
    with pytest.raises(CheckpointError, match=r"version 2 was not written within 30 s .*train_timeout_s"):
        simulate(config)
    assert saver.log == ["begins", "ends", "begins", "cancelled"]


def test_cancelling_during_a_save_ends_at_once_and_leaves_no_task() -> None:
    loop, saver = VirtualTimeLoop(), SlowSaver(seconds=1000.0)

    async def main() -> None:
        world = build_world(replace(CONFIGS["static"], saver=saver, save_freq=1))
        run = asyncio.create_task(world.session.run())
        await asyncio.sleep(500.0)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert loop.time() == 500.0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main(), loop)
    assert saver.log == ["begins", "cancelled"]


def test_a_long_save_is_no_stall() -> None:
    """It has a deadline of its own."""
    saver = SlowSaver(seconds=500.0)
    world = simulate(replace(CONFIGS["static"], saver=saver, save_freq=2, watchdog_timeout_s=100.0))
    assert world.exit_reason == "finished" and len(saver.states) == 3
