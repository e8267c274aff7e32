"""CPU cores that devices share with the control process: what it does while none is free holds the devices up.

On a cluster of GPUs it has cores of its own and this does not matter. Where devices *are* the machine's cores, as in
the demo, lending fills the last idle core, and from then on every request costs the devices time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol


class Worker(Protocol):
    """What computes on devices."""

    @property
    def num_cores(self) -> int:
        """How many it occupies now; 0 while it does not compute."""

    def hold_up(self, seconds: float) -> None:
        """Go on so much later."""


class SharedCores:
    """The control process takes ``per_request_s`` of a core for every answered request.

    A free core does it for nothing; else all cores do equal parts of it. Made inside the running loop.
    """

    def __init__(self, num_cores: int, per_request_s: float, workers: Callable[[], Iterable[Worker]]) -> None:
        self._num_cores = num_cores
        self._per_request_s = per_request_s
        self._workers = workers
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self.total_s = 0.0
        """Core time of the control process since the start."""

    def answered(self) -> None:
        """A replica answered a request."""
        if self._per_request_s and not self._due_s:
            # Whoever answers is in the middle of something: hold it up when it is done.
            self._loop.call_soon(self._charge)
        self._due_s += self._per_request_s
        self.total_s += self._per_request_s

    def _charge(self) -> None:
        due_s, self._due_s = self._due_s, 0.0
        busy = [worker for worker in self._workers() if worker.num_cores]
        if sum(worker.num_cores for worker in busy) >= self._num_cores:
            for worker in busy:
                worker.hold_up(due_s / self._num_cores)
