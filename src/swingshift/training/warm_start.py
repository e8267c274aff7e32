"""Building the built-in tiny model in a process of its own, while everything else starts up.

``python -m swingshift.training.warm_start FOLDER`` is that process; the configuration comes as JSON on its stdin.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING

from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import TrainerError
from swingshift.tasks.builtin import Task, get_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

TINY = "builtin:tiny"
_BUILTIN = "builtin:"


def tiny_task(config: SwingshiftConfig) -> Task:
    """The built-in task whose tokenizer and solutions ``builtin:tiny`` uses.

    With files of the user's own there is no task to imitate: the tokenizer of ``sort_digits`` covers their
    characters, and the weights stay random.
    """
    source = config.data.train_files[0]
    if source.startswith(_BUILTIN):
        return get_task(source.removeprefix(_BUILTIN), config.data.task_options)
    return get_task("sort_digits", {})


def tiny_tokenizer(config: SwingshiftConfig) -> PreTrainedTokenizerFast:
    return tiny_task(config).tokenizer()


class WarmStart:
    """``start`` begins building ``model.path=builtin:tiny`` in ``folder``; other paths need nothing."""

    def __init__(self, config: SwingshiftConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder.absolute()
        self._process: Process | None = None
        self._errors: asyncio.Task[bytes] | None = None

    @property
    def is_needed(self) -> bool:
        """False for another model, and for a resumed run that has built it before."""
        built = (self._folder / "config.json").is_file()
        return self._config.actor_rollout_ref.model.path == TINY and not built

    async def start(self) -> None:
        # Its own session: Ctrl-C must not reach it, since its end is ours to decide.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "swingshift.training.warm_start", str(self._folder)),
            stdin=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stderr is not None
        self._process.stdin.write(self._config.model_dump_json().encode())
        self._process.stdin.close()
        self._errors = asyncio.create_task(self._process.stderr.read())

    async def model_path(self) -> str:
        """The folder (or hub id) to load the model from, once it is there."""
        if self._process is not None and self._errors is not None:
            errors = (await self._errors).decode(errors="replace").strip()
            code = await self._process.wait()
            if errors:
                logger.warning("the warm start said: %s", errors)
            if code != 0:
                reason = errors.splitlines()[-1] if errors else f"exit code {code}"
                raise TrainerError(f"the warm start of {TINY} failed: {reason}")
        path = self._config.actor_rollout_ref.model.path
        return str(self._folder) if path == TINY else _whole_path(path)

    async def kill(self) -> None:
        """End it, wherever it is. May be called when it has ended, or was never started."""
        if self._process is not None and self._errors is not None:
            if self._process.returncode is None:
                self._process.kill()
            await asyncio.gather(self._process.wait(), self._errors)


def _whole_path(path: str) -> str:
    """Of a folder, as processes with another working directory or home need it; a hub id stays one."""
    folder = Path(path).expanduser().absolute()
    return str(folder) if folder.is_dir() else path


def main() -> None:
    gc.disable()  # looking for garbage while importing takes a quarter of the time
    import torch
    from transformers.utils import logging as transformers_logging

    from swingshift.training.tiny_model import build_tiny_model

    gc.enable()
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    folder, config = Path(sys.argv[1]), SwingshiftConfig.model_validate_json(sys.stdin.read())
    model_config = config.actor_rollout_ref.model
    if not config.data.train_files[0].startswith(_BUILTIN):
        no_steps = model_config.warm_start.model_copy(update={"steps": 0})
        model_config = model_config.model_copy(update={"warm_start": no_steps})
    building = folder.with_name(f".{folder.name}.partial")
    building.mkdir(parents=True, exist_ok=True)
    build_tiny_model(building, tiny_task(config), model_config, config.trainer.seed)
    building.rename(folder)


if __name__ == "__main__":
    main()
