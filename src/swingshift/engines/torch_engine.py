"""The default engine: continuous batching of a Hugging Face causal LM with torch, in a thread of its own.

The engine's thread lets others run at every torch operation, so an event loop beside it answers within a
fraction of a millisecond. The reverse does not hold: pure Python work in another thread keeps the engine
waiting for ``sys.getswitchinterval()`` (5 ms) an operation. An actor that does such work should lower it with
``sys.setswitchinterval``; the setting belongs to the whole process, so the engine leaves it alone.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from swingshift.core.types import GenerationRequest, TokenOutput, WeightVersion
from swingshift.engines.engine_core import EngineCore, PauseMode
from swingshift.engines.kv_cache import KVCache, count_slots, cuda_kv_bytes
from swingshift.engines.model_shape import ModelShape, check_supported
from swingshift.engines.profiler import EngineProfiler
from swingshift.engines.status import EngineState, EngineStatus
from swingshift.engines.weights import ModelWeights
from swingshift.errors import ReplicaDiedError, SwingshiftError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Command:
    """Something to do on the engine's thread. ``deferred``: the call itself answers the future, maybe later."""

    call: Callable[[], Any]
    future: Future[Any]
    deferred: bool = False


class TorchEngine:
    """Every verb may be called from any thread and returns a future; verbs happen in the order of the calls.

    Starts paused (``start_awake``) or asleep: ``resume_generation`` opens it. ``max_model_len``: tokens of
    prompt and response together. ``kv_cache_memory_bytes`` bounds the slots; unset, they follow from
    ``memory_utilization`` on CUDA and are ``max_num_seqs`` on a CPU. ``shares_weights``: the model belongs to a
    trainer in this process, which changes it only while this engine sleeps or is paused in a weight update.

    Raises ConfigError for a model it cannot run and for a cache without room for one response. Futures fail
    with NotAcceptingError, ReplicaError, DataError (a bad request), or ReplicaDiedError once the thread is gone.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        max_num_seqs: int,
        max_model_len: int,
        device: str | torch.device = "cpu",
        kv_cache_memory_bytes: int | None = None,
        memory_utilization: float = 0.5,
        seed: int = 0,
        weight_version: WeightVersion = 0,
        shares_weights: bool = False,
        start_awake: bool = True,
        profiler: EngineProfiler | None = None,
    ) -> None:
        config = model.config
        check_supported(config, max_model_len)
        shape = ModelShape.from_config(config)
        where = torch.device(device)
        if not shares_weights:
            model.to(where)
        weights = ModelWeights(model, shape, shared=shares_weights, device=where)
        available = kv_cache_memory_bytes
        if available is None and where.type == "cuda":
            available = cuda_kv_bytes(where, memory_utilization, weights.num_bytes)
        per_slot = max_model_len * shape.kv_bytes_per_token(weights.dtype)
        slots = count_slots(max_num_seqs, per_slot, available)
        cache = KVCache(shape, num_slots=slots, max_len=max_model_len, dtype=weights.dtype, device=where)
        with torch.no_grad():
            self._core = EngineCore(
                weights, cache, seed=seed, version=weight_version, start_awake=start_awake, profiler=profiler
            )
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._death: BaseException | str | None = None
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    # --- verbs ------------------------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> Future[tuple[TokenOutput, ...]]:
        """One output per prefix, in order; aborted responses come back with what they have."""
        future: Future[tuple[TokenOutput, ...]] = Future()
        return self._submit(lambda: self._core.generate(request, future), future, deferred=True)

    def abort(self, *, refuse: bool = False) -> Future[int]:
        """Number of requests aborted. When it is known, nothing is computed for them any more."""
        return self._submit(lambda: self._core.abort(refuse=refuse))

    def abort_requests(self, request_ids: Iterable[str]) -> Future[int]:
        ids = frozenset(request_ids)
        return self._submit(lambda: self._core.abort_requests(ids))

    def pause(self, mode: PauseMode = "abort") -> Future[int]:
        """``abort`` ends what is in flight, ``wait`` finishes it first, ``keep`` freezes it in its slots."""
        future: Future[int] = Future()
        return self._submit(lambda: self._core.pause(mode, future), future, deferred=True)

    def health(self) -> Future[None]:
        """Answered by the engine's thread between two decode steps."""
        return self._submit(lambda: None)

    def resume_generation(self) -> Future[None]:
        return self._submit(self._core.resume_generation)

    def release_kv_cache(self) -> Future[None]:
        return self._submit(self._core.release_kv_cache)

    def resume_kv_cache(self) -> Future[None]:
        return self._submit(self._core.resume_kv_cache)

    def reset_prefix_cache(self) -> Future[None]:
        return self._submit(self._core.reset_prefix_cache)

    def sleep(self, level: int = 2) -> Future[None]:
        """Held requests fail with NotAcceptingError; running ones make it fail with ReplicaError."""
        return self._submit(lambda: self._core.sleep(level))

    def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> Future[None]:
        """Stays paused. Weights of its own that level 2 freed are undefined until a weight update."""
        return self._submit(lambda: self._core.wake_up(tuple(tags)))

    def start_weight_update(self, version: WeightVersion) -> Future[None]:
        return self._submit(lambda: self._core.start_weight_update(version))

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]]) -> Future[None]:
        """Copies the tensors (names as in ``named_parameters``); keep them unchanged until it is done."""
        return self._submit(lambda: self._core.update_weights(named_tensors))

    def finish_weight_update(self, version: WeightVersion) -> Future[None]:
        return self._submit(lambda: self._core.finish_weight_update(version))

    def status(self) -> EngineStatus:
        status = self._core.status()
        return status if self._death is None else replace(status, state=EngineState.DEAD, refusing=True)

    def close(self) -> None:
        """End the thread; requests in flight and later calls fail with ReplicaDiedError. May be called twice."""
        self._die("the engine was closed")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread -------------------------------------------------------------------------------------------

    def _submit(
        self, call: Callable[[], Any], future: Future[Any] | None = None, *, deferred: bool = False
    ) -> Future[Any]:
        future = Future() if future is None else future
        with self._lock:
            if self._death is None:
                self._commands.put(_Command(call, future, deferred))
                return future
        future.set_exception(_died(self._death))
        return future

    def _die(self, cause: BaseException | str) -> None:
        """From now on calls fail; a last command wakes the thread."""
        with self._lock:
            if self._death is None:
                self._death = cause
                self._commands.put(_Command(lambda: None, Future()))

    def _run(self) -> None:
        try:
            with torch.no_grad():
                self._serve()
        except BaseException as error:
            # Not swallowed: every caller, present and later, gets it as the cause of its own error.
            logger.error("engine thread ends: %s: %s", type(error).__name__, error)
            self._die(error)
        self._fail_everyone()

    def _serve(self) -> None:
        core, commands = self._core, self._commands
        while self._death is None:
            if not core.has_work or not commands.empty():
                self._execute(commands.get())
                continue
            with torch.inference_mode():
                core.step()

    def _execute(self, command: _Command) -> None:
        future = command.future
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = command.call()
        except SwingshiftError as error:
            future.set_exception(error)
        except BaseException as error:
            future.set_exception(_died(error))
            raise
        else:
            if not command.deferred:
                future.set_result(result)

    def _fail_everyone(self) -> None:
        assert self._death is not None
        self._core.fail_all(_died(self._death))
        while not self._commands.empty():
            command = self._commands.get()
            if command.future.set_running_or_notify_cancel():
                command.future.set_exception(_died(self._death))
        with torch.no_grad():
            self._core.free()


def _died(cause: BaseException | str) -> ReplicaDiedError:
    if isinstance(cause, str):
        return ReplicaDiedError(cause)
    error = ReplicaDiedError(f"the engine's thread ended: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
