"""A trainer that writes files, for tests of checkpoints on a real disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from swingshift.core.types import SampleGroup
from swingshift.runtime.ports import TrainResult


class DiskTrainer:
    """Writes two files, one in a folder; fails half-way through if told to."""

    devices: tuple[str, ...] = ("d",)

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.weights = "w0"
        self.loaded: Path | None = None

    async def train(self, groups: Sequence[SampleGroup], version: int) -> TrainResult:
        raise NotImplementedError

    async def offload(self) -> None: ...

    async def onload(self) -> None: ...

    async def save(self, folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(self.weights)
        if self.error is not None:
            raise self.error
        (folder / "optimizer").write_text(self.weights)

    async def load(self, folder: Path) -> None:
        self.loaded = folder
        self.weights = (folder / "model" / "weights").read_text()
        assert (folder / "optimizer").read_text() == self.weights
