"""Building the built-in tiny model in a process of its own, while everything else starts up."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import TrainerError
from swingshift.tasks.builtin import Task, get_task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
        self._folder = folder
        self._process: BaseProcess | None = None

    @property
    def is_needed(self) -> bool:
        """False for another model, and for a resumed run that has built it before."""
        built = (self._folder / "config.json").is_file()
        return self._config.actor_rollout_ref.model.path == TINY and not built

    def start(self) -> None:
        if self.is_needed:
            context = multiprocessing.get_context("spawn")
            self._process = context.Process(target=_build, args=(self._config, self._folder), daemon=True)
            self._process.start()

    async def model_path(self) -> str:
        """The folder (or hub id) to load the model from, once it is there."""
        if self._process is not None:
            await asyncio.to_thread(self._process.join)
            if self._process.exitcode != 0:
                raise TrainerError(f"the warm start of {TINY} failed with exit code {self._process.exitcode}")
        path = self._config.actor_rollout_ref.model.path
        return str(self._folder.resolve()) if path == TINY else path

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()


def _build(config: SwingshiftConfig, folder: Path) -> None:
    import torch
    from transformers.utils import logging as transformers_logging

    from swingshift.training.tiny_model import build_tiny_model

    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    model_config = config.actor_rollout_ref.model
    if not config.data.train_files[0].startswith(_BUILTIN):
        no_steps = model_config.warm_start.model_copy(update={"steps": 0})
        model_config = model_config.model_copy(update={"warm_start": no_steps})
    building = folder.with_name(f".{folder.name}.partial")
    building.mkdir(parents=True, exist_ok=True)
    build_tiny_model(building, tiny_task(config), model_config, config.trainer.seed)
    building.rename(folder)
