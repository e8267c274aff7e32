"""What an engine tells a profiler, which decides when to trace. The one here never does."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from swingshift.core.types import WeightVersion


class EngineProfiler(Protocol):
    """Called on the engine's thread alone. None of it may raise."""

    def weights_written(self, version: WeightVersion) -> None:
        """From the next step on, the engine decodes with this version."""

    def before_step(self) -> None: ...

    def stop(self) -> None:
        """No step follows with the present weights."""

    def range(self, name: str) -> AbstractContextManager[object]:
        """What is computed inside belongs to ``name``."""


class NoProfiler:
    def __init__(self) -> None:
        self._nothing = nullcontext()

    def weights_written(self, version: WeightVersion) -> None:
        pass

    def before_step(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def range(self, name: str) -> AbstractContextManager[object]:
        return self._nothing
