"""Many simulated runs at once, one process each; results arrive as they are ready."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from types import TracebackType
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class Workers:
    """``with Workers(n) as workers``: whatever ends the block, no process stays. ``n``: None for one a core."""

    def __init__(self, num_processes: int | None = None) -> None:
        self._num = num_processes or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._others = set(multiprocessing.active_children())

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        ours = set(multiprocessing.active_children()) - self._others
        self._pool.shutdown(wait=error is None, cancel_futures=True)
        if error is not None:
            for process in ours:
                process.terminate()

    def map(self, work: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """``(index of the job, its result)`` in order of completion; a single process works here, in order.

        ``work`` must be importable and jobs picklable.
        """
        if self._num == 1 or len(jobs) <= 1:
            for index, job in enumerate(jobs):
                yield index, work(job)
            return
        if self._pool is None:
            # Not forked: the parent may have threads (a progress bar).
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._num, context, _leave_interrupts_to_the_parent)
        futures = {self._pool.submit(work, job): index for index, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
