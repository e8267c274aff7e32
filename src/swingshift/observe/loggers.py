"""``trainer.logger``: the sinks it names besides the console and the JSON lines, which every run has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from swingshift.config.schema import SwingshiftConfig
from swingshift.config.secrets import mask_config
from swingshift.observe.background_sink import BackgroundSink
from swingshift.runtime.ports import MetricSink

MLFLOW_FILE = "mlflow.db"


def open_loggers(config: SwingshiftConfig, folder: Path) -> list[MetricSink]:
    """Each in a thread of its own. That their packages are installed was checked with the configuration."""
    trainer = config.trainer
    known: dict[str, Callable[[], MetricSink]] = {
        "tensorboard": lambda: _tensorboard(folder),
        "wandb": lambda: _wandb(config, folder),
        "mlflow": lambda: _mlflow(config, folder),
    }
    return [BackgroundSink(name, known[name]) for name in dict.fromkeys(trainer.logger) if name in known]


def _tensorboard(folder: Path) -> MetricSink:
    from swingshift.observe.tensorboard_sink import TensorBoardSink

    return TensorBoardSink(folder / "tensorboard")


def _wandb(config: SwingshiftConfig, folder: Path) -> MetricSink:
    from swingshift.observe.wandb_sink import WandbSink

    trainer = config.trainer
    return WandbSink(folder, trainer.project_name, trainer.experiment_name, mask_config(config.model_dump()))


def _mlflow(config: SwingshiftConfig, folder: Path) -> MetricSink:
    from swingshift.observe.mlflow_sink import MlflowSink

    trainer = config.trainer
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / MLFLOW_FILE).resolve()}"
    return MlflowSink(uri, trainer.project_name, trainer.experiment_name, mask_config(config.model_dump()))
