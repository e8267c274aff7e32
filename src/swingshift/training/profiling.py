"""Profiles of chosen steps with torch's profiler: one Chrome trace per training call, and one per rollout device.

Step N is the one that makes weight version N out of N - 1, as in ``training/global_step``. A trace holds what its own
thread computed (and the GPU, where there is one), under ranges named after the phases.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from swingshift.config.schema import ProfilerConfig
from swingshift.core.types import WeightVersion

logger = logging.getLogger(__name__)


class Traces:
    """At most one trace at a time, begun and ended on the same thread.

    Traces are to look at: one that cannot be written is warned about and ends no run.
    """

    def __init__(self, config: ProfilerConfig, folder: Path, device: str, *, on_cuda: bool = False) -> None:
        self._config = config
        self._folder = folder
        self._device = device
        self._activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_cuda
        self._steps = frozenset(config.steps) if config.tool is not None else frozenset()
        self._nothing = nullcontext()
        self._open: profile | None = None

    def step_of(self, version: WeightVersion) -> int | None:
        """The step that computes with the weights of ``version``, if it is to be profiled."""
        return version + 1 if version + 1 in self._steps else None

    def path(self, step: int, part: int | None = None) -> Path:
        suffix = "" if part is None else f"-{part}"
        return self._folder / f"step_{step}-{self._device}{suffix}.json.gz"

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def begin(self) -> None:
        assert self._open is None, "a trace is open already"
        self._open = profile(
            activities=self._activities,
            record_shapes=self._config.record_shapes,
            with_stack=self._config.with_stack,
        )
        self._open.start()

    def end(self, path: Path | None) -> None:
        """Write the open trace, if there is one; without a path it is dropped."""
        ended, self._open = self._open, None
        if ended is None:
            return
        ended.stop()
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            ended.export_chrome_trace(str(path))
            logger.info("wrote the profile %s", path)
        except OSError as error:
            logger.warning("global_profiler.save_path: the profile %s could not be written: %s", path, error)

    def range(self, name: str) -> AbstractContextManager[object]:
        """What is computed inside belongs to ``name``. Without an open trace this costs next to nothing."""
        return self._nothing if self._open is None else record_function(name)


class TrainProfiler:
    """Of the train worker. A step's training calls are traced one by one and numbered from 1."""

    def __init__(self, traces: Traces | None = None) -> None:
        self._traces = traces or Traces(ProfilerConfig(), Path(), "")
        self._step = 0
        self._num_calls = 0

    @contextmanager
    def call(self, version: WeightVersion) -> Iterator[None]:
        """One training call. If it fails there is no trace of it."""
        step = self._traces.step_of(version)
        if step is None:
            yield
            return
        self._num_calls = self._num_calls + 1 if step == self._step else 1
        self._step = step
        path: Path | None = None
        self._traces.begin()
        try:
            with self._traces.range("train"):
                yield
            path = self._traces.path(step, self._num_calls)
        finally:
            self._traces.end(path)

    def range(self, name: str) -> AbstractContextManager[object]:
        return self._traces.range(name)


class RolloutProfiler:
    """Of a standalone engine, whose ``EngineProfiler`` it is: the first ``num_decode_steps`` of a profiled step.

    A whole step may take minutes, and its trace more memory than there is.
    """

    def __init__(self, traces: Traces, num_decode_steps: int) -> None:
        self._traces = traces
        self._num_decode_steps = num_decode_steps
        self._step: int | None = None
        self._num_left = 0

    def weights_written(self, version: WeightVersion) -> None:
        self._step, self._num_left = self._traces.step_of(version), self._num_decode_steps

    def before_step(self) -> None:
        if self._step is None:
            return
        if self._num_left == 0:
            self.stop()
            return
        if not self._traces.is_open:
            self._traces.begin()
        self._num_left -= 1

    def stop(self) -> None:
        step, self._step = self._step, None
        self._traces.end(None if step is None else self._traces.path(step))

    def range(self, name: str) -> AbstractContextManager[object]:
        return self._traces.range(name)
