"""Killed at any step of a save, or of the save after that, a run finds a whole checkpoint to go on from."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from disk_trainer import DiskTrainer

from swingshift.errors import CheckpointError
from swingshift.runtime.checkpoint import CheckpointStore, list_checkpoints

CALLS = ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir")
"""What changes a disk, as far as it must be in order."""


class Killed(BaseException):
    """``kill -9``: nothing catches it."""


DISK_FULL = OSError("disk full")


class _StateLast:
    """A folder's entries in the order that hides best what is missing: a listing looks for ``state.json``."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self._entries = sorted(entries, key=lambda entry: entry.name == "state.json")

    def __enter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __exit__(self, *_: object) -> None: ...


BreakAt = Callable[[int | None, BaseException], None]


@pytest.fixture
def break_at(monkeypatch: pytest.MonkeyPatch) -> BreakAt:
    """The nth call from now on that changes the disk fails without an effect; after a kill so do all others.

    None: all succeed.
    """
    left: int | None = None
    error: BaseException = Killed()

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left is not None:
                left -= 1
                if left == 0 or (left < 0 and error is not DISK_FULL):
                    raise error
            return call(*args, **kwargs)

        return run

    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # only its place matters, and it takes long
    for name in CALLS:
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda *args: _StateLast(scandir(*args)))

    def set_nth(nth: int | None, what: BaseException) -> None:
        nonlocal left, error
        left, error = nth, what

    return set_nth


class Run:
    """Saves checkpoint after checkpoint, each with a number that its state and the trainer's files agree on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.num_saved = 0

    def save(self, step: int, keep: int | None = None) -> bool:
        """False: it was killed, or failed."""
        self.num_saved += 1
        trainer = DiskTrainer()
        trainer.weights = f"w{self.num_saved}"
        store = CheckpointStore(self.root, trainer, keep)
        try:
            asyncio.run(store.save(step, {"n": self.num_saved, "queued": [[1, 2]]}))
        except (Killed, CheckpointError):
            return False
        return True

    def found(self) -> list[int]:
        """The numbers of all checkpoints there are, each of which must be whole."""
        numbers = []
        for folder in list_checkpoints(self.root):
            trainer = DiskTrainer()
            state = asyncio.run(CheckpointStore(self.root, trainer).load(folder))
            assert trainer.weights == f"w{state['n']}", f"{folder.name} mixes two checkpoints"
            assert state["queued"] == [[1, 2]]
            numbers.append(state["n"])
        return numbers


@pytest.mark.parametrize("error", [Killed(), DISK_FULL], ids=["killed", "disk full"])
@pytest.mark.parametrize(
    ("before", "keep", "step"),
    [
        ((), None, 1),
        ((1,), None, 2),
        ((5,), None, 5),
        ((5,), 1, 5),
        ((4, 5), 1, 5),
        ((1, 2, 3), 2, 4),
        ((8, 10), 1, 6),
    ],
)
def test_a_save_broken_off_at_any_step_leaves_whole_checkpoints_only_and_the_next_goes_through(
    before: Sequence[int], keep: int | None, step: int, error: BaseException, tmp_path: Path, break_at: BreakAt
) -> None:
    for nth in count(1):
        run = Run(tmp_path / f"{nth}")
        for earlier in before:
            assert run.save(earlier)
        break_at(nth, error)
        has_ended = run.save(step, keep)
        break_at(None, error)
        assert run.found() or not before, f"broken off at step {nth}, nothing is left to go on from"
        if has_ended:
            break
        assert run.save(step, keep)
        assert run.num_saved in run.found()
        assert not list(run.root.glob(".*")), "what was left behind is cleared"
    assert nth > 5, "nothing was broken off"


@pytest.mark.parametrize("second", [5, 6])
def test_two_kills_one_after_the_other_leave_a_whole_checkpoint(
    second: int, tmp_path: Path, break_at: BreakAt
) -> None:
    """The second save begins with what the first left behind."""
    for first_nth in count(1):
        for second_nth in count(1):
            run = Run(tmp_path / f"{first_nth}-{second_nth}")
            assert run.save(5)
            break_at(first_nth, Killed())
            first_ended = run.save(5, keep=1)
            break_at(second_nth, Killed())
            second_ended = run.save(second, keep=1)
            break_at(None, Killed())
            assert run.found(), f"killed at steps {first_nth} and {second_nth}, nothing is left to go on from"
            if second_ended:
                break
        if first_ended:
            break


def test_a_checkpoint_that_was_moved_aside_is_one_and_a_copy_of_the_users_is_none(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.save(5)
    (tmp_path / "global_step_5").rename(tmp_path / ".global_step_5.old")
    assert [path.name for path in list_checkpoints(tmp_path)] == [".global_step_5.old"] and run.found() == [1]
    for name in ("global_step_6.old", "global_step_6.bak", ".global_step_6.partial", ".global_step_6.removed"):
        shutil.copytree(tmp_path / ".global_step_5.old", tmp_path / name)
    assert run.found() == [1]
    shutil.copytree(tmp_path / ".global_step_5.old", tmp_path / "global_step_5")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["global_step_5"]
