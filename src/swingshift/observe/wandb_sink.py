"""Metric rows to Weights & Biases. Its own environment variables say where: ``WANDB_MODE=offline`` stays local."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swingshift.runtime.ports import RunOutcome

_EXIT_CODES = {RunOutcome.FINISHED: 0, RunOutcome.FAILED: 1, RunOutcome.INTERRUPTED: 130}
"""Those of the command line. W&B takes all but 0 for a failure."""


class WandbSink:
    """A W&B run with the configuration; its files go to ``wandb/`` in the folder."""

    def __init__(self, folder: Path, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb  # an extra

        self._wandb = wandb
        self._run = wandb.init(
            project=project,
            name=name,
            config=dict(config),
            dir=str(folder),
            # Standard output belongs to the live view, and what W&B would print at the end is in our summary.
            settings=wandb.Settings(console="off", quiet=True),
        )

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self._run.log(dict(row), step=step)

    def close(self, outcome: RunOutcome) -> None:
        self._run.finish(exit_code=_EXIT_CODES[outcome])
        self._wandb.teardown()  # ends the process that W&B starts beside ours
