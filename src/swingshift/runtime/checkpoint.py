"""Checkpoints: all control state as JSON beside the trainer's own files, written whole or not at all.

A checkpoint is a folder ``global_step_N``. It is written under a temporary name, flushed to disk and renamed, so
a folder with that name is complete. Hidden ones are a save's own, of which a kill may leave some behind:
``.global_step_N.partial`` is being written; ``.global_step_N.old`` is whole, and counts until another
``global_step_N`` has taken its place; ``.global_step_N.removed`` is being deleted, and counts no more.

No pickle: the trainer writes safetensors and JSON, this module JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.errors import CheckpointError
from swingshift.runtime.client import PartialResponse
from swingshift.runtime.group_runner import PendingPrompt
from swingshift.runtime.json_pieces import json_pieces
from swingshift.runtime.ports import TrainWorker

logger = logging.getLogger(__name__)

PREFIX = "global_step_"
STATE_FILE = "state.json"
FORMAT = 2
_PARTIAL, _OLD, _REMOVED = ".partial", ".old", ".removed"


def prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    return {"uid": prompt.uid, "token_ids": _plain(prompt.token_ids), "data": dict(prompt.data)}


def prompt_from_json(value: Mapping[str, Any]) -> Prompt:
    return Prompt(value["uid"], tuple(value["token_ids"]), value["data"])


def pending_to_json(pending: PendingPrompt) -> dict[str, Any]:
    return {
        "group_id": pending.group_id,
        "prompt": prompt_to_json(pending.prompt),
        "submit_version": pending.submit_version,
        "responses": [_partial_to_json(r) for r in pending.responses],
    }


def pending_from_json(value: Mapping[str, Any]) -> PendingPrompt:
    return PendingPrompt(
        value["group_id"],
        prompt_from_json(value["prompt"]),
        value["submit_version"],
        tuple(_partial_from_json(r) for r in value["responses"]),
    )


def _partial_to_json(response: PartialResponse) -> dict[str, Any]:
    reason = response.finish_reason
    return {
        "token_ids": _plain(response.token_ids),
        "log_probs": _plain(response.log_probs),
        "version_spans": [list(span) for span in response.version_spans],
        "finish_reason": None if reason is None else reason.value,
        "num_preemptions": response.num_preemptions,
        "num_aborts": response.num_aborts,
        "num_reprefilled_tokens": response.num_reprefilled_tokens,
    }


def _partial_from_json(value: Mapping[str, Any]) -> PartialResponse:
    reason = value["finish_reason"]
    return PartialResponse(
        token_ids=tuple(value["token_ids"]),
        log_probs=tuple(value["log_probs"]),
        version_spans=tuple((version, n) for version, n in value["version_spans"]),
        finish_reason=None if reason is None else FinishReason(reason),
        num_preemptions=value["num_preemptions"],
        num_aborts=value["num_aborts"],
        num_reprefilled_tokens=value["num_reprefilled_tokens"],
    )


def group_to_json(group: SampleGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "prompt": prompt_to_json(group.prompt),
        "submit_version": group.submit_version,
        "submit_time": group.submit_time,
        "finish_time": group.finish_time,
        "samples": [_sample_to_json(s) for s in group.samples],
    }


def group_from_json(value: Mapping[str, Any]) -> SampleGroup:
    return SampleGroup(
        group_id=value["group_id"],
        prompt=prompt_from_json(value["prompt"]),
        samples=tuple(_sample_from_json(s) for s in value["samples"]),
        submit_version=value["submit_version"],
        submit_time=value["submit_time"],
        finish_time=value["finish_time"],
    )


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    return {
        "token_ids": _plain(sample.token_ids),
        "log_probs": _plain(sample.log_probs),
        "version_spans": [list(span) for span in sample.version_spans],
        "finish_reason": sample.finish_reason.value,
        "num_preemptions": sample.num_preemptions,
        "num_aborts": sample.num_aborts,
        "num_reprefilled_tokens": sample.num_reprefilled_tokens,
        "reward": sample.reward,
    }


def _sample_from_json(value: Mapping[str, Any]) -> Sample:
    return Sample(
        token_ids=tuple(value["token_ids"]),
        log_probs=tuple(value["log_probs"]),
        version_spans=tuple((version, n) for version, n in value["version_spans"]),
        finish_reason=FinishReason(value["finish_reason"]),
        num_preemptions=value["num_preemptions"],
        num_aborts=value["num_aborts"],
        num_reprefilled_tokens=value["num_reprefilled_tokens"],
        reward=value["reward"],
    )


def _plain(values: Sequence[float]) -> Sequence[float]:
    """Tuples are JSON as they are, and copying those of every token would hold up the control loop."""
    return values if isinstance(values, tuple) else list(values)


class CheckpointStore:
    """The checkpoints of one run under ``root``; the newest ``keep`` stay (None: all).

    One save at a time: what a cancelled one does to the disk goes on in its thread (``runtime.save_call``).
    """

    def __init__(self, root: Path, trainer: TrainWorker, keep: int | None = None) -> None:
        # Absolute: the trainer's process may have another working directory.
        self._root = root.absolute()
        self._trainer = trainer
        self._keep = keep

    async def save(self, step: int, state: Mapping[str, Any]) -> Path:
        """Write ``global_step_<step>``. Raises CheckpointError; an older checkpoint is never harmed."""
        target = self._root / f"{PREFIX}{step}"
        temporary = _hidden(target, _PARTIAL)
        try:
            await asyncio.to_thread(_tidy, self._root)
            await asyncio.to_thread(temporary.mkdir, parents=True)
            await self._trainer.save(temporary)
            await asyncio.to_thread(_finish, temporary, target, {"format": FORMAT, "step": step, **state})
            await asyncio.to_thread(self._prune, target)
        except OSError as error:
            raise CheckpointError(f"cannot write the checkpoint {target}: {error}") from error
        return target

    async def load(self, folder: Path) -> dict[str, Any]:
        """Restore the trainer from a checkpoint folder and return its control state."""
        folder = await asyncio.to_thread(folder.absolute)
        state = await asyncio.to_thread(read_state, folder)
        await self._trainer.load(folder)
        return state

    async def set_aside_after(self, folder: Path) -> None:
        """Training goes on from ``folder``: this run's newer checkpoints get a name that no resume looks for.

        Whoever resumed from the newest one later would mix two ways that training went.
        """
        folder = await asyncio.to_thread(folder.absolute)
        if folder.parent == self._root:
            await asyncio.to_thread(_set_aside_after, folder)

    def _prune(self, newest: Path) -> None:
        """What was just written stays, whatever else is in the folder."""
        if self._keep is not None:
            others = [c for c in list_checkpoints(self._root) if c != newest]
            for old in others[: max(0, len(others) - (self._keep - 1))]:
                _remove(old)


def list_checkpoints(root: Path) -> list[Path]:
    """Complete checkpoints under ``root``, oldest first.

    Looks only: somebody else may be saving there. One that was just moved aside is found where it is now.
    """
    found = {}
    for path in [*root.glob(f".{PREFIX}*{_OLD}"), *root.glob(f"{PREFIX}*")]:
        number = _shown_name(path).removeprefix(PREFIX)
        if number.isdigit() and (path / STATE_FILE).is_file():
            found[int(number)] = path
    return [path for _, path in sorted(found.items())]


def read_state(folder: Path) -> dict[str, Any]:
    """The control state of a checkpoint. Raises CheckpointError if it is missing, damaged or from another format."""
    path = folder / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read the checkpoint {folder}: {error}; resume from another one") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of Swingshift (format {FORMAT}); resume from another one"
        )
    return state


def _set_aside_after(chosen: Path) -> None:
    for path in list_checkpoints(chosen.parent):
        if _step(path) > _step(chosen):
            names = (f"{_shown_name(path)}.abandoned{'' if n == 1 else f'-{n}'}" for n in itertools.count(1))
            target = next(path.with_name(name) for name in names if not path.with_name(name).exists())
            path.rename(target)
            logger.warning("%s was trained on another way and is set aside as %s", _shown_name(path), target.name)


def _step(folder: Path) -> int:
    return int(_shown_name(folder).removeprefix(PREFIX))


def _tidy(root: Path) -> None:
    """Clear what saves that failed or were interrupted left behind."""
    for ending in (_PARTIAL, _REMOVED):
        for path in root.glob(f".{PREFIX}*{ending}"):
            shutil.rmtree(path)
    for path in root.glob(f".{PREFIX}*{_OLD}"):
        target = root / _shown_name(path)
        if target.exists():
            _remove(path)
        else:
            path.rename(target)


def _finish(temporary: Path, target: Path, state: Mapping[str, Any]) -> None:
    with (temporary / STATE_FILE).open("w", encoding="utf-8") as file:
        file.writelines(json_pieces(state))
    for path in sorted(temporary.rglob("*")):
        _flush(path)
    _flush(temporary)
    old = _hidden(target, _OLD)
    replaces = target.exists()
    if replaces:
        target.rename(old)
    temporary.rename(target)
    _flush(target.parent)
    if replaces:
        _remove(old)


def _remove(folder: Path) -> None:
    """At no moment is a part of it taken for a checkpoint."""
    doomed = _hidden(folder, _REMOVED)
    folder.rename(doomed)
    shutil.rmtree(doomed)


def _hidden(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{_shown_name(folder)}{ending}")


def _shown_name(folder: Path) -> str:
    """What a checkpoint that was moved aside is called otherwise."""
    name = folder.name
    return name.removeprefix(".").removesuffix(_OLD) if name.startswith(".") else name


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
