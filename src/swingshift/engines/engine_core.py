"""The engine's life and its requests, for one thread: what every verb does, and one step at a time.

States: asleep → ``wake_up`` → paused → ``resume_generation`` → accepting. Asleep or refusing: requests fail with
NotAcceptingError. Paused: they are held. A weight update runs while paused with nothing running, so a response
never sees two weight versions and a held request starts on the new ones.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Literal

from torch import Tensor

from swingshift.core.types import FinishReason, GenerationRequest, TokenOutput, WeightVersion
from swingshift.engines.answers import Answers
from swingshift.engines.kv_cache import KVCache
from swingshift.engines.profiler import EngineProfiler, NoProfiler
from swingshift.engines.requests import check_request
from swingshift.engines.runner import Runner
from swingshift.engines.scheduler import Job, Response, Scheduler
from swingshift.engines.status import EngineState, EngineStatus
from swingshift.engines.weights import ModelWeights
from swingshift.errors import NotAcceptingError, ReplicaError

PauseMode = Literal["abort", "wait", "keep"]


class EngineCore:
    """All methods but ``status`` run on the engine's thread; user errors are raised, futures get outputs."""

    def __init__(
        self,
        weights: ModelWeights,
        cache: KVCache,
        *,
        seed: int,
        version: WeightVersion,
        start_awake: bool,
        profiler: EngineProfiler | None = None,
    ) -> None:
        self.scheduler = Scheduler()
        self._weights = weights
        self._cache = cache
        self._profiler = profiler or NoProfiler()
        self._runner = Runner(weights, cache, self._profiler, seed=seed)
        self._version = version
        self._state = EngineState.ASLEEP
        self._refusing = False
        self._updating: WeightVersion | None = None
        self._answers = Answers()
        self._num_decoded = self._num_steps = 0
        self._shared_steps = 0.0
        self._busy_s = 0.0
        if start_awake:
            self.wake_up(("weights", "kv_cache"))
        else:
            weights.free()

    def generate(self, request: GenerationRequest, future: Future[tuple[TokenOutput, ...]]) -> None:
        """Start or hold a request, or raise; ``future`` gets one output per prefix."""
        if self._state is EngineState.ASLEEP or self._refusing:
            why = "refusing requests until generation resumes" if self._refusing else "asleep"
            raise NotAcceptingError(f"request {request.request_id}: the engine is {why}")
        if self._weights.unwritten and self._updating is None:
            raise ReplicaError(
                f"request {request.request_id}: the weights are undefined since the last sleep; "
                "write them with a weight update first"
            )
        check_request(request, self._weights.shape.vocab_size, self._cache.max_len)
        job = Job.build(request, future)
        if not job.responses:
            future.set_result(())
            return
        self._answers.expect(job)
        if self._state is EngineState.ACCEPTING:
            self.scheduler.add(job)
        else:
            self.scheduler.held.append(job)

    def abort(self, *, refuse: bool = False) -> int:
        """End every request with what it has; afterwards requests are held back, or refused."""
        jobs = self._abort(None)
        if self._state is not EngineState.ASLEEP:
            self._state = EngineState.PAUSED
            self._refusing = self._refusing or refuse
        return jobs

    def abort_requests(self, request_ids: Collection[str]) -> int:
        return self._abort(frozenset(request_ids))

    def _abort(self, request_ids: frozenset[str] | None) -> int:
        jobs = self.scheduler.remove(lambda job: request_ids is None or job.request.request_id in request_ids)
        self._runner.rows_changed(self.scheduler)
        for job in jobs:
            for response in job.responses:
                if response.finish_reason is None:
                    response.finish_reason = FinishReason.ABORT
                    self._share_steps(response)
            self._answers.deliver(job)
        self._finish_drains()
        return len(jobs)

    def fail_all(self, error: ReplicaError) -> None:
        """End every request and pending pause with an error."""
        self.scheduler.remove(lambda _: True)
        self._answers.fail_all(error)

    def free(self) -> None:
        """Give back what the engine allocated; the model stays as it is."""
        self._profiler.stop()
        self._runner.forget()
        self._cache.free()
        self._weights.decoder = None

    def pause(self, mode: PauseMode, future: Future[int]) -> None:
        """``future`` gets the number of requests aborted, drained (when the last is done) or kept."""
        if mode not in ("abort", "wait", "keep"):
            raise ReplicaError(f"pause mode is {mode!r}; use 'abort', 'wait' or 'keep'")
        if mode == "abort":
            future.set_result(self.abort())
            return
        affected = len(self.scheduler.jobs()) - len(self.scheduler.held)
        if self._state is EngineState.ACCEPTING:
            self._state = EngineState.PAUSED
        if mode == "keep":
            self._cancel_drains("the engine was paused with its requests kept")
            future.set_result(affected)
            return
        if affected:
            self._require_ready("finish the requests in flight")
        self._answers.expect_drain(future, affected)
        self._finish_drains()

    def resume_generation(self) -> None:
        """Accept and run requests. Raises ReplicaError unless weights and KV cache are there."""
        self._require_ready("resume generation")
        self._cancel_drains("generation was resumed")
        self._state = EngineState.ACCEPTING
        self._refusing = False
        self.scheduler.release_held()

    def _require_ready(self, what: str) -> None:
        if self._state is EngineState.ASLEEP:
            raise ReplicaError(f"cannot {what}: the engine is asleep, call wake_up first")
        if self._updating is not None:
            raise ReplicaError(f"cannot {what}: the weight update to version {self._updating} is not finished")
        if self._weights.decoder is None:
            raise ReplicaError(f"cannot {what}: the weights are asleep or undefined; wake and update them first")
        if self._cache.data is None:
            raise ReplicaError(f"cannot {what}: the KV cache is released, call resume_kv_cache first")

    def _finish_drains(self) -> None:
        if self.scheduler.is_drained:
            self._answers.finish_drains()

    def _cancel_drains(self, why: str) -> None:
        error = ReplicaError(f"pause('wait') ended before everything was done: {why}")
        self._answers.cancel_drains(error)

    def release_kv_cache(self) -> None:
        self._require_quiet("release the KV cache")
        self._runner.forget()
        self._cache.free()

    def resume_kv_cache(self) -> None:
        if self._state is EngineState.ASLEEP:
            raise ReplicaError("the engine is asleep: call wake_up(['kv_cache']) instead")
        self._runner.forget()
        self._cache.allocate()

    def reset_prefix_cache(self) -> None:
        self._runner.forget()

    def sleep(self, level: int = 2) -> None:
        """Free the KV cache and (level 2) the weights; level 1 keeps their contents in host memory."""
        if level not in (1, 2):
            raise ReplicaError(f"sleep level is {level}; use 1 (keep weights in host memory) or 2 (free them)")
        if self.scheduler.num_running or self.scheduler.waiting:
            raise ReplicaError("cannot sleep while requests are in flight: abort them first")
        self._state, self._refusing = EngineState.ASLEEP, False
        self._abandon_update()
        for job in self.scheduler.remove(lambda _: True):
            self._answers.fail(job, NotAcceptingError(f"request {job.request.request_id}: the engine went to sleep"))
        self._runner.forget()
        self._cache.free()
        if level == 2:
            self._weights.free()
        else:
            self._weights.move_to_host()

    def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        unknown = set(tags) - {"weights", "kv_cache"}
        if unknown:
            raise ReplicaError(f"wake_up tags {sorted(unknown)} are unknown; use 'weights' and 'kv_cache'")
        if "weights" in tags:
            self._weights.allocate()
            if self._weights.decoder is None and not self._weights.unwritten:
                self._weights.collect()
        if "kv_cache" in tags:
            self._cache.allocate()
        if self._state is EngineState.ASLEEP:
            self._state = EngineState.PAUSED

    def start_weight_update(self, version: WeightVersion) -> None:
        self._require_quiet("update weights")
        if not self._weights.allocated:
            raise ReplicaError("the weights are asleep: call wake_up(['weights']) before updating them")
        if version < self._version:
            raise ReplicaError(f"weight version {version} is older than the engine's {self._version}")
        self._abandon_update()
        self._profiler.stop()
        self._updating = version

    def _abandon_update(self) -> None:
        """An update that never finished may have written anything."""
        if self._updating is not None:
            self._weights.invalidate()
            self._updating = None

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Write some parameters. They count as undefined until ``finish_weight_update``."""
        if self._updating is None:
            raise ReplicaError("call start_weight_update before update_weights")
        self._runner.forget()
        self._weights.write(named_tensors)

    def finish_weight_update(self, version: WeightVersion) -> None:
        """Weights and version change here, together; packed copies are rebuilt."""
        if self._updating != version:
            raise ReplicaError(f"finish of weight update {version}, but the one started is {self._updating}")
        missing = sorted(self._weights.unwritten)
        if missing:
            raise ReplicaError(f"{len(missing)} parameters were never written, the first is {missing[0]!r}")
        self._runner.forget()
        self._weights.collect()
        self._version = version
        self._updating = None
        self._profiler.weights_written(version)

    def _require_quiet(self, what: str) -> None:
        if self._state is EngineState.ACCEPTING:
            raise ReplicaError(f"cannot {what} while accepting requests: abort or pause first")
        if self.scheduler.num_running or self._answers.is_draining:
            raise ReplicaError(f"cannot {what} while requests are in flight: abort them first")

    @property
    def has_work(self) -> bool:
        active = self._state is EngineState.ACCEPTING or self._answers.is_draining
        return active and not self.scheduler.is_drained

    def step(self) -> None:
        """Let responses leave, join and move; then draw one token for each running one."""
        self._profiler.before_step()
        start = time.perf_counter()
        plan = self.scheduler.plan(self._cache.num_slots)
        if plan:
            for _, response in plan.joins:
                response.version = self._version
                response.steps_at_join = self._shared_steps
            self._runner.apply(plan, self.scheduler)
        rows = self.scheduler.running
        tokens, log_probs = self._runner.step(rows)
        self._num_steps += 1
        self._shared_steps += 1 / len(rows)
        broken = self._record(rows, tokens, log_probs)
        self._busy_s += time.perf_counter() - start
        for job in broken:
            self._fail(job)
        self._finish_drains()

    def _record(self, rows: list[Response], tokens: list[int], log_probs: list[float]) -> list[Job]:
        """Append what was drawn and let finished rows leave. Returns jobs whose model output is not a number."""
        broken: dict[Job, None] = {}
        left = False
        self._num_decoded += len(rows)
        for row, (response, token, log_prob) in enumerate(zip(rows, tokens, log_probs, strict=True)):
            if log_prob != log_prob:
                broken[response.job] = None
                continue
            if not response.append(token, log_prob):
                continue
            self._share_steps(response)
            self.scheduler.leave(row)
            left = True
            response.job.num_open -= 1
            if response.job.num_open == 0:
                self._answers.deliver(response.job)
        if left:
            self._runner.rows_changed(self.scheduler)
        return list(broken)

    def _share_steps(self, response: Response) -> None:
        """It leaves; without a token it has never been in a step."""
        if response.tokens:
            response.decode_steps = self._shared_steps - response.steps_at_join

    def _fail(self, job: Job) -> None:
        """The model's numbers are broken for this job: clear its rows, for NaN survives a mask of zeros."""
        for row, response in enumerate(self.scheduler.rows):
            if response is not None and response.job is job:
                self._cache.clear(row)
        self.scheduler.remove(lambda other: other is job)
        self._runner.rows_changed(self.scheduler)
        error = f"request {job.request.request_id}: weights of version {self._version} give logits that are NaN"
        self._answers.fail(job, ReplicaError(error))

    def status(self) -> EngineStatus:
        """A snapshot; read from any thread, so counts may be a step apart."""
        return EngineStatus(
            state=self._state,
            refusing=self._refusing or self._state is EngineState.ASLEEP,
            weight_version=self._version,
            num_slots=self._cache.num_slots,
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            kv_cache_bytes=self._cache.num_bytes + self._runner.num_kept_bytes,
            weight_bytes=self._weights.num_bytes,
            num_prefilled_tokens=self._runner.num_prefilled_tokens,
            num_decoded_tokens=self._num_decoded,
            num_decode_steps=self._num_steps,
            busy_s=self._busy_s,
        )
