"""Checkpoints on a real disk: complete or absent, the newest kept, damage reported."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from disk_trainer import DiskTrainer

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.errors import CheckpointError, TrainerError
from swingshift.runtime.checkpoint import (
    CheckpointStore,
    group_from_json,
    group_to_json,
    list_checkpoints,
    prompt_from_json,
    prompt_to_json,
    read_state,
)


def names(root: Path) -> list[str]:
    return [path.name for path in list_checkpoints(root)]


def test_saved_and_loaded(tmp_path: Path) -> None:
    trainer = DiskTrainer()
    store = CheckpointStore(tmp_path / "ckpt", trainer)
    folder = asyncio.run(store.save(3, {"version": 3, "queued": [1, 2]}))
    assert folder == tmp_path / "ckpt" / "global_step_3"
    trainer.weights = "other"
    state = asyncio.run(store.load(folder))
    assert state == {"format": 2, "step": 3, "version": 3, "queued": [1, 2]}
    assert trainer.weights == "w0" and trainer.loaded == folder
    assert [p.name for p in (tmp_path / "ckpt").iterdir()] == ["global_step_3"], "nothing temporary is left"


@pytest.mark.parametrize("error", [TrainerError("process is gone"), OSError("disk full")])
def test_a_failing_save_leaves_no_checkpoint_and_harms_none(tmp_path: Path, error: Exception) -> None:
    trainer = DiskTrainer()
    store = CheckpointStore(tmp_path, trainer, keep=1)
    asyncio.run(store.save(1, {"n": 1}))
    trainer.error, trainer.weights = error, "broken"
    with pytest.raises(CheckpointError if isinstance(error, OSError) else TrainerError):
        asyncio.run(store.save(2, {"n": 2}))
    with pytest.raises((CheckpointError, TrainerError)):
        asyncio.run(store.save(1, {"n": 100}))
    assert names(tmp_path) == ["global_step_1"]
    assert read_state(tmp_path / "global_step_1")["n"] == 1
    assert (tmp_path / "global_step_1" / "model" / "weights").read_text() == "w0"
    # The next save clears what the failed one left behind.
    trainer.error = None
    asyncio.run(store.save(2, {"n": 2}))
    assert names(tmp_path) == ["global_step_2"] and not list(tmp_path.glob(".*"))


def test_state_that_is_no_json_leaves_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        asyncio.run(CheckpointStore(tmp_path, DiskTrainer()).save(1, {"n": object()}))
    assert names(tmp_path) == []


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    trainer = DiskTrainer()
    store = CheckpointStore(tmp_path, trainer)
    asyncio.run(store.save(1, {"n": 1}))
    trainer.weights = "w1"
    asyncio.run(store.save(1, {"n": 2}))
    assert read_state(tmp_path / "global_step_1")["n"] == 2
    assert (tmp_path / "global_step_1" / "model" / "weights").read_text() == "w1"


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (None, [1, 2, 9, 10, 11]),
        (1, [11]),
        (2, [10, 11]),
        (4, [2, 9, 10, 11]),
        (5, [1, 2, 9, 10, 11]),
        (9, [1, 2, 9, 10, 11]),
    ],
)
def test_the_newest_are_kept(tmp_path: Path, keep: int | None, kept: list[int]) -> None:
    store = CheckpointStore(tmp_path, DiskTrainer(), keep)
    for step in (1, 2, 9, 10, 11):
        asyncio.run(store.save(step, {}))
    assert names(tmp_path) == [f"global_step_{step}" for step in kept], "by number, not by name"


def test_what_was_just_saved_is_kept_even_if_later_steps_are_there(tmp_path: Path) -> None:
    """A run resumed from an older step, into the same folder."""
    for step in (8, 10):
        asyncio.run(CheckpointStore(tmp_path, DiskTrainer()).save(step, {}))
    asyncio.run(CheckpointStore(tmp_path, DiskTrainer(), keep=2).save(6, {}))
    assert names(tmp_path) == ["global_step_6", "global_step_10"]


def test_going_on_from_an_older_one_sets_newer_ones_aside(tmp_path: Path) -> None:
    """Else a later resume from the newest one would go on with what this run has left behind."""
    store = CheckpointStore(tmp_path, DiskTrainer())
    for step in (1, 2, 3, 10):
        asyncio.run(store.save(step, {"way": "first"}))
    asyncio.run(store.set_aside_after(tmp_path / "global_step_2"))
    assert names(tmp_path) == ["global_step_1", "global_step_2"]
    asyncio.run(store.save(3, {"way": "second"}))
    asyncio.run(store.set_aside_after(tmp_path / "global_step_1"))
    assert names(tmp_path) == ["global_step_1"]
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [
        "global_step_1",
        "global_step_10.abandoned",
        "global_step_2.abandoned",
        "global_step_3.abandoned",
        "global_step_3.abandoned-2",
    ]
    assert read_state(tmp_path / "global_step_3.abandoned-2")["way"] == "second", "and can still be resumed from"


def test_another_runs_checkpoints_stay_as_they_are(tmp_path: Path) -> None:
    ours, theirs = (CheckpointStore(tmp_path / name, DiskTrainer()) for name in ("ours", "theirs"))
    for step in (1, 2):
        asyncio.run(theirs.save(step, {}))
    asyncio.run(ours.set_aside_after(tmp_path / "theirs" / "global_step_1"))
    assert names(tmp_path / "theirs") == ["global_step_1", "global_step_2"]


def test_only_complete_checkpoints_are_listed(tmp_path: Path) -> None:
    asyncio.run(CheckpointStore(tmp_path, DiskTrainer()).save(4, {}))
    for name in ("global_step_5", "global_step_x", ".global_step_6.partial", "else"):
        (tmp_path / name).mkdir()
    (tmp_path / "global_step_7").write_text("a file")
    assert names(tmp_path) == ["global_step_4"]
    assert list_checkpoints(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot read"),
        ("{", "cannot read"),
        ("", "cannot read"),
        (b"\xff\xfe", "cannot read"),
        ("[]", "not a checkpoint of this version"),
        ('{"format": 99}', "format 2"),
        ("{}", "not a checkpoint of this version"),
    ],
)
def test_a_damaged_state_is_an_error_that_names_the_file(
    tmp_path: Path, content: str | bytes | None, why: str
) -> None:
    folder = tmp_path / "global_step_1"
    folder.mkdir()
    if isinstance(content, bytes):
        (folder / "state.json").write_bytes(content)
    elif content is not None:
        (folder / "state.json").write_text(content)
    trainer = DiskTrainer()
    with pytest.raises(CheckpointError, match=why) as caught:
        asyncio.run(CheckpointStore(tmp_path, trainer).load(folder))
    assert "global_step_1" in str(caught.value)
    assert trainer.loaded is None, "nothing is loaded before the state is known to be good"


def test_an_unwritable_folder_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        asyncio.run(CheckpointStore(tmp_path / "file", DiskTrainer()).save(1, {}))


def test_groups_and_prompts_travel_through_json() -> None:
    prompt = Prompt("p1", (1, 2), {"answer": "42", "list": [1, None, {"a": 0.5}]})
    sample = Sample((5, 6, 7), (-0.1, -2.5, -1e-9), ((1, 2), (3, 1)), FinishReason.LENGTH, 1, 2, 3, reward=0.25)
    empty = Sample((), (), (), FinishReason.STOP)
    group = SampleGroup(17, prompt, (sample, empty), 3, 1.5, 2.75)
    assert group_from_json(json.loads(json.dumps(group_to_json(group)))) == group
    assert prompt_from_json(json.loads(json.dumps(prompt_to_json(prompt)))) == prompt


def test_a_save_interrupted_between_its_renames_loses_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, DiskTrainer())
    folder = asyncio.run(store.save(1, {"n": 1}))
    folder.rename(tmp_path / ".global_step_1.old")
    asyncio.run(store.save(2, {"n": 2}))
    assert names(tmp_path) == ["global_step_1", "global_step_2"]
