"""Metric rows as TensorBoard scalars: ``tensorboard --logdir RUN_DIR/tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swingshift.runtime.ports import RunOutcome


class TensorBoardSink:
    """One event file a session; what a resumed session computes again replaces the earlier points."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter  # an extra
        from tensorboardX.proto.summary_pb2 import Summary

        self._folder = folder
        self._new_writer = SummaryWriter
        self._summary = Summary
        self._writer: Any = None

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._new_writer(str(self._folder), purge_step=step, filename_suffix=f".{step}")
        # All in one event: with one each, a row would take five times as long.
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._writer.file_writer.add_summary(self._summary(value=values), step)
        self._writer.flush()

    def close(self, outcome: RunOutcome) -> None:
        if self._writer is not None:
            self._writer.close()
