"""A simulated inference engine: continuous batching by a cost model, event-driven.

A decode step with ``n`` running responses takes ``step_base_s + n × step_per_sequence_s`` and gives each of them a
token; prefill costs ``prefill_per_token_s`` a token and is charged to the response that needs it. Responses
beyond ``max_num_seqs`` wait, first in first out.

A response's first token is its total length and its ``i``-th token is ``i``, so that whoever resumes it knows
how much is left, and any lost, doubled or reordered token shows.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swingshift.core.types import (
    FinishReason,
    GenerationRequest,
    ReplicaKind,
    TokenOutput,
    Tokens,
    VersionSpans,
    WeightVersion,
    join_spans,
)
from swingshift.errors import NotAcceptingError, ReplicaDiedError
from swingshift.sim.device import SimDevice
from swingshift.sim.faults import FaultHook, no_faults

# Progress is kept in float tokens; a response is done when it is this close to its end, or closer than the clock
# can tell (late in a long run).
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    step_base_s: float = 0.01
    step_per_sequence_s: float = 0.0
    prefill_per_token_s: float = 0.0
    max_num_seqs: int = 8
    abort_s: float = 0.001
    sleep_s: float = 0.01
    wake_s: float = 0.01
    kv_cache_s: float = 0.001


@dataclass(slots=True)
class _Response:
    """One response on the replica. ``done`` counts its new tokens, a fraction while a step is under way."""

    request: _Running
    index: int
    prefix: Tokens
    length: int
    prefill_s: float
    done: float = 0.0
    spans: VersionSpans = ()
    num_spanned: int = 0
    output: TokenOutput | None = None

    @property
    def left(self) -> float:
        return self.length - len(self.prefix) - self.done


@dataclass(slots=True, eq=False)
class _Running:
    request: GenerationRequest
    future: asyncio.Future[tuple[TokenOutput, ...]]
    responses: list[_Response] = field(default_factory=list)


class SimReplica:
    """``lengths(request_id, index)`` draws the length of a new response."""

    def __init__(
        self,
        replica_id: str,
        kind: ReplicaKind,
        device: SimDevice,
        cost: ReplicaCost,
        lengths: Callable[[str, int], int],
        faults: FaultHook = no_faults,
    ) -> None:
        self.id = replica_id
        self.kind = kind
        self.devices: tuple[str, ...] = (device.name,)
        self.device = device
        self.cost = cost
        self.version: WeightVersion = -1
        self.is_dead = False
        self.has_kv_cache = False
        self.has_weights = False
        self.is_accepting = False
        self.is_refusing = kind is ReplicaKind.HYBRID
        self._lengths = lengths
        self._faults = faults
        self._requests: dict[str, _Running] = {}
        self._waiting: deque[_Response] = deque()
        self._batch: list[_Response] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_s = 0.0
        if kind is ReplicaKind.STANDALONE:
            self.has_kv_cache = True
            device.rollout_awake = True

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    # --- generation -------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        await self._called("generate")
        if self.is_refusing:
            raise NotAcceptingError(f"{self.id} is asleep or going to sleep")
        future: asyncio.Future[tuple[TokenOutput, ...]] = asyncio.get_running_loop().create_future()
        running = _Running(request, future)
        for index, (prefix, budget) in enumerate(zip(request.prefixes, request.budgets, strict=True)):
            running.responses.append(self._response(running, index, prefix, budget))
        self._requests[request.request_id] = running
        self._advance()
        self._waiting.extend(running.responses)
        self._schedule()
        try:
            return await future
        finally:
            if self._requests.get(request.request_id) is running:
                self._drop(running)

    def _response(self, running: _Running, index: int, prefix: Tokens, budget: int) -> _Response:
        wanted = prefix[0] if prefix else self._lengths(running.request.request_id, index)
        assert prefix in ((), (wanted, *range(1, len(prefix)))), "a resumed response lost or doubled tokens"
        length = min(wanted, len(prefix) + budget)
        num_prefill = len(running.request.prompt_ids) + len(prefix)
        return _Response(running, index, prefix, length, num_prefill * self.cost.prefill_per_token_s)

    def _advance(self) -> None:
        """Bring every running response to now, at the rate of the batch it ran in."""
        now = asyncio.get_running_loop().time()
        elapsed_s, self._last_s = now - self._last_s, now
        if not self._batch or not self.is_accepting:
            return
        assert self.has_weights and self.has_kv_cache, f"{self.id} decodes without weights or KV cache"
        step_s = self._step_s()
        for response in self._batch:
            used_s = min(elapsed_s, response.prefill_s)
            response.prefill_s -= used_s
            response.done = min(response.done + (elapsed_s - used_s) / step_s, response.done + response.left)
            self._span(response)
        near = max(_EPSILON, 4 * math.ulp(now) / step_s)
        for response in [r for r in self._batch if r.left <= near and r.prefill_s <= 0]:
            response.done = float(response.length - len(response.prefix))
            self._span(response)
            self._finish(response, self._reason(response))

    def _step_s(self) -> float:
        return self.cost.step_base_s + len(self._batch) * self.cost.step_per_sequence_s

    def _span(self, response: _Response) -> None:
        whole = int(response.done + _EPSILON)
        if whole > response.num_spanned:
            new = ((self.version, whole - response.num_spanned),)
            response.spans, response.num_spanned = join_spans(response.spans, new), whole

    def _reason(self, response: _Response) -> FinishReason:
        wanted = response.prefix[0] if response.prefix else self._tokens(response)[0]
        return FinishReason.STOP if wanted == response.length else FinishReason.LENGTH

    def _tokens(self, response: _Response) -> Tokens:
        """Prefix and new tokens."""
        total = len(response.prefix) + response.num_spanned
        if response.prefix:
            return (response.prefix[0], *range(1, total))
        wanted = self._lengths(response.request.request.request_id, response.index)
        return (wanted, *range(1, total)) if total else ()

    def _finish(self, response: _Response, reason: FinishReason) -> None:
        tokens = self._tokens(response)[len(response.prefix) :]
        prefilled = len(response.request.request.prompt_ids) + len(response.prefix)
        response.output = TokenOutput(
            tokens, (-1.0,) * len(tokens), response.spans, reason, num_prefill_tokens=prefilled
        )
        if response in self._batch:
            self._batch.remove(response)
        else:
            self._waiting.remove(response)
        outputs = [r.output for r in response.request.responses]
        complete = [o for o in outputs if o is not None]
        if len(complete) == len(outputs):
            del self._requests[response.request.request.request_id]
            if not response.request.future.done():
                response.request.future.set_result(tuple(complete))

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_accepting or self.is_dead:
            return
        while self._waiting and len(self._batch) < self.cost.max_num_seqs:
            self._batch.append(self._waiting.popleft())
        if self._batch:
            step_s = self._step_s()
            next_s = min(r.prefill_s + r.left * step_s for r in self._batch)
            self._timer = asyncio.get_running_loop().call_later(max(next_s, 0.0), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        self._schedule()

    def _drop(self, running: _Running) -> None:
        """The caller went away."""
        self._advance()
        del self._requests[running.request.request_id]
        self._batch = [r for r in self._batch if r.request is not running]
        self._waiting = deque(r for r in self._waiting if r.request is not running)
        self._schedule()

    # --- verbs ------------------------------------------------------------------------------------------------

    async def abort(self, *, refuse: bool = False) -> int:
        await self._called("abort")
        self.is_refusing = self.is_refusing or refuse
        await self._work(self.cost.abort_s)
        num_aborted = self._abort(list(self._requests))
        self.is_accepting = False
        self._schedule()
        return num_aborted

    async def abort_requests(self, request_ids: Sequence[str]) -> int:
        await self._called("abort_requests")
        await self._work(self.cost.abort_s)
        return self._abort([r for r in request_ids if r in self._requests])

    def _abort(self, request_ids: list[str]) -> int:
        self._advance()
        num_aborted = 0
        for request_id in request_ids:
            running = self._requests.get(request_id)
            if running is not None:
                num_aborted += 1
                for response in running.responses:
                    if response.output is None:
                        self._finish(response, FinishReason.ABORT)
        self._schedule()
        return num_aborted

    async def resume_generation(self) -> None:
        await self._called("resume_generation")
        assert self.has_weights and self.has_kv_cache, f"{self.id} resumed without weights or KV cache"
        self._advance()
        self.is_refusing = False
        self.is_accepting = True
        self._schedule()

    async def release_kv_cache(self) -> None:
        await self._called("release_kv_cache")
        assert not self._batch, f"{self.id} released its KV cache under a running request"
        await self._work(self.cost.kv_cache_s)
        self.has_kv_cache = False

    async def resume_kv_cache(self) -> None:
        await self._called("resume_kv_cache")
        await self._work(self.cost.kv_cache_s)
        self.has_kv_cache = True

    async def sleep(self, level: int = 2) -> None:
        await self._called("sleep")
        assert not self._batch, f"{self.id} slept under a running request"
        self.is_refusing = True
        self.is_accepting = False
        for running in list(self._requests.values()):
            running.future.set_exception(NotAcceptingError(f"{self.id} went to sleep"))
            self._drop(running)
        await self._work(self.cost.sleep_s)
        self.has_kv_cache = self.has_weights = False
        self.device.rollout_awake = False

    async def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await self._called("wake_up")
        await self._work(self.cost.wake_s)
        self.device.rollout_awake = True
        if "kv_cache" in tags:
            # Awake and paused: requests that arrive now are held until generation resumes.
            self.has_kv_cache = True
            self.is_refusing = False

    def write_weights(self, version: WeightVersion) -> None:
        """Called by the simulated weight sync."""
        self._check_alive()
        assert not self._batch, f"weights of {self.id} were written under a running request"
        assert version >= self.version, "weight versions only grow"
        self.version = version
        self.has_weights = True

    def die(self) -> None:
        """The process is gone, and its memory with it: every call fails from now on."""
        self.is_dead = True
        self.device.rollout_awake = False
        self._schedule()
        for running in list(self._requests.values()):
            if not running.future.done():
                running.future.set_exception(ReplicaDiedError(f"{self.id} died"))
        self._requests.clear()
        self._batch.clear()
        self._waiting.clear()

    async def _called(self, verb: str) -> None:
        self._check_alive()
        try:
            await self._faults(self.id, verb)
        except ReplicaDiedError:
            self.die()
            raise
        self._check_alive()

    async def _work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._check_alive()

    def _check_alive(self) -> None:
        if self.is_dead:
            raise ReplicaDiedError(f"{self.id} is dead")
