"""Who waits for what: the futures of unfinished requests and of pauses that wait for them."""

from __future__ import annotations

from concurrent.futures import Future

from swingshift.engines.scheduler import Job
from swingshift.errors import ReplicaError


class Answers:
    """Each future is answered exactly once. Jobs are remembered here whatever the scheduler thinks of them."""

    def __init__(self) -> None:
        self._open: dict[Job, None] = {}
        self._drains: list[tuple[Future[int], int]] = []

    @property
    def is_draining(self) -> bool:
        return bool(self._drains)

    def expect(self, job: Job) -> None:
        self._open[job] = None

    def deliver(self, job: Job) -> None:
        """Every response of the job has a finish reason."""
        outputs = tuple(r.output() for r in job.responses)
        del self._open[job]
        job.future.set_result(outputs)

    def fail(self, job: Job, error: ReplicaError) -> None:
        del self._open[job]
        job.future.set_exception(error)

    def fail_all(self, error: ReplicaError) -> None:
        for job in list(self._open):
            self.fail(job, error)
        self.cancel_drains(error)

    def expect_drain(self, future: Future[int], count: int) -> None:
        """``future`` gets ``count`` once everything in flight is done."""
        self._drains.append((future, count))

    def finish_drains(self) -> None:
        for future, count in self._drains:
            future.set_result(count)
        self._drains.clear()

    def cancel_drains(self, error: ReplicaError) -> None:
        for future, _ in self._drains:
            future.set_exception(error)
        self._drains.clear()
