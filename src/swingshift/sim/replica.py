"""A simulated inference engine: the port's states and verbs around ``serving.Serving``, event-driven.

Between two events (a request comes or ends, the KV cache fills up) nothing is computed: one timer per replica
waits for the next. A response's tokens are ``SimTokens``, so any lost, doubled or reordered token shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swingshift.core.types import GenerationRequest, ReplicaKind, TokenOutput, WeightVersion
from swingshift.errors import NotAcceptingError, ReplicaDiedError
from swingshift.sim.decoding import DecodeCost
from swingshift.sim.device import SimDevice
from swingshift.sim.faults import FaultHook, no_faults
from swingshift.sim.responses import Lengths, Pauses, no_pauses
from swingshift.sim.serving import Finished, Serving


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """Seconds per step, token and verb; see ``decoding`` for the step's formula.

    Waking takes ``wake_s`` for the weights and ``kv_cache_s`` for the KV cache.
    """

    step_base_s: float = 0.01
    step_per_sequence_s: float = 0.0
    step_per_kv_token_s: float = 0.0
    prefill_per_token_s: float = 0.0
    max_num_seqs: int = 8
    kv_capacity_tokens: int | None = None
    abort_s: float = 0.001
    sleep_s: float = 0.01
    wake_s: float = 0.01
    kv_cache_s: float = 0.001
    resume_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.step_base_s > 0.0, "a decode step takes time"
        assert self.max_num_seqs >= 1 and (self.kv_capacity_tokens is None or self.kv_capacity_tokens >= 1)

    @property
    def decode(self) -> DecodeCost:
        return DecodeCost(
            self.step_base_s, self.step_per_sequence_s, self.step_per_kv_token_s, self.prefill_per_token_s
        )


class SimReplica:
    """One engine on ``devices``, made inside the running loop.

    ``lengths(request_id, index)`` draws the length of a new response, ``pauses`` its tool calls.
    ``touched`` collects replicas to which something happened (an ordered set; whoever reads it empties it).
    """

    def __init__(
        self,
        replica_id: str,
        kind: ReplicaKind,
        devices: Sequence[SimDevice],
        cost: ReplicaCost,
        lengths: Lengths,
        faults: FaultHook = no_faults,
        pauses: Pauses = no_pauses,
    ) -> None:
        self.id = replica_id
        self.kind = kind
        self.devices: tuple[str, ...] = tuple(d.name for d in devices)
        self.sim_devices = tuple(devices)
        self.cost = cost
        self.is_dead = False
        self.has_kv_cache = False
        self.is_kv_stale = False
        """It holds prefixes that were cached under older weights."""
        self.has_weights = False
        self.is_accepting = False
        self.is_refusing = kind is ReplicaKind.HYBRID
        self.num_calls = 0
        self.touched: dict[SimReplica, None] = {}
        self.on_answer: Callable[[], None] = _ignore
        self._loop = asyncio.get_running_loop()
        self._made_from = (lengths, faults, pauses)
        self._faults = faults
        self._serving = Serving(cost.decode, cost.max_num_seqs, cost.kv_capacity_tokens, lengths, pauses)
        self._futures: dict[str, asyncio.Future[tuple[TokenOutput, ...]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        if kind is ReplicaKind.STANDALONE:
            self.has_kv_cache = True
            self._hold_devices(True)

    @property
    def num_requests(self) -> int:
        return len(self._futures)

    @property
    def serving(self) -> Serving:
        """Its requests and counters, as of the last event."""
        return self._serving

    @property
    def version(self) -> WeightVersion:
        return self._serving.version

    @property
    def is_awake(self) -> bool:
        """Does it hold memory on its devices?"""
        return any(device.rollout_awake for device in self.sim_devices)

    def _hold_devices(self, hold: bool) -> None:
        self.touched[self] = None
        for device in self.sim_devices:
            device.rollout_awake = hold

    # --- generation -------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        await self._called("generate")
        if self.is_refusing:
            raise NotAcceptingError(f"{self.id} is asleep or going to sleep")
        future: asyncio.Future[tuple[TokenOutput, ...]] = self._loop.create_future()
        self._advance()
        self._futures[request.request_id] = future
        self._serving.submit(request)
        self._schedule()
        try:
            return await future
        finally:
            if self._futures.get(request.request_id) is future:
                self._advance()
                if self._futures.pop(request.request_id, None) is not None:
                    self._serving.drop(request.request_id)
                self._schedule()

    def _advance(self) -> None:
        """Bring the batch to now and answer whoever is finished."""
        if not (self.has_weights and self.has_kv_cache):
            assert not self._serving.num_running, f"{self.id} decodes without weights or KV cache"
        ended = self._serving.advance(self._loop.time())
        if ended:
            self._answer(ended)

    def _answer(self, finished: Iterable[Finished]) -> None:
        for request_id, outputs in finished:
            self.touched[self] = None
            future = self._futures.pop(request_id)
            self.on_answer()
            if not future.done():
                future.set_result(outputs)

    @property
    def num_cores(self) -> int:
        """Devices that compute now."""
        return len(self.sim_devices) if self.is_accepting and self._serving.num_running else 0

    def hold_up(self, seconds: float) -> None:
        self._advance()
        self._serving.hold_up(seconds)
        self._schedule()

    def _schedule(self) -> None:
        """Admit who waits and set the timer for the next event."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self.is_dead or not self.is_accepting:
            return
        seconds = self._serving.admit()
        if seconds is not None:
            self._timer = self._loop.call_at(self._serving.now + seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        self._schedule()

    # --- verbs ------------------------------------------------------------------------------------------------

    async def abort(self, *, refuse: bool = False) -> int:
        await self._called("abort")
        self.is_refusing = self.is_refusing or refuse
        await self._work(self.cost.abort_s)
        num_aborted = self._abort(list(self._futures))
        self.is_accepting = False
        self._schedule()
        return num_aborted

    async def abort_requests(self, request_ids: Sequence[str]) -> int:
        await self._called("abort_requests")
        await self._work(self.cost.abort_s)
        return self._abort(request_ids)

    def _abort(self, request_ids: Sequence[str]) -> int:
        self._advance()
        running = [r for r in request_ids if r in self._futures]
        self._answer(self._serving.abort(running))
        self._schedule()
        return len(running)

    async def resume_generation(self) -> None:
        await self._called("resume_generation")
        if self.cost.resume_s:
            await self._work(self.cost.resume_s)
        assert self.has_weights and self.has_kv_cache, f"{self.id} resumed without weights or KV cache"
        assert not self.is_kv_stale, f"{self.id} resumed with a cache made with older weights"
        self._advance()
        self.is_refusing = False
        self.is_accepting = True
        self._schedule()

    async def release_kv_cache(self) -> None:
        await self._called("release_kv_cache")
        assert not self._serving.num_running, f"{self.id} released its KV cache under a running request"
        await self._work(self.cost.kv_cache_s)
        self.has_kv_cache = self.is_kv_stale = False

    async def resume_kv_cache(self) -> None:
        await self._called("resume_kv_cache")
        await self._work(self.cost.kv_cache_s)
        self.has_kv_cache, self.is_kv_stale = True, False

    async def health(self) -> None:
        await self._called("health")

    async def sleep(self, level: int = 2) -> None:
        await self._called("sleep")
        assert not self._serving.num_running, f"{self.id} slept under a running request"
        self.is_refusing = True
        self.is_accepting = False
        self._fail_all(NotAcceptingError(f"{self.id} went to sleep"))
        await self._work(self.cost.sleep_s)
        self.has_kv_cache = self.is_kv_stale = self.has_weights = False
        self._hold_devices(False)

    async def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await self._called("wake_up")
        seconds = {"weights": self.cost.wake_s, "kv_cache": self.cost.kv_cache_s}
        await self._work(sum(seconds[tag] for tag in tags))
        self._hold_devices(True)
        if "kv_cache" in tags:
            # Awake and paused: requests that arrive now are held until generation resumes.
            self.has_kv_cache, self.is_kv_stale = True, False
            self.is_refusing = False

    def write_weights(self, version: WeightVersion) -> None:
        """Called by the simulated weight sync."""
        self._check_alive()
        assert not self._serving.num_running, f"weights of {self.id} were written under a running request"
        assert version >= self.version, "weight versions only grow"
        self.touched[self] = None
        self._serving.version = version
        # Whatever it cached, it cached with the weights it had.
        self.is_kv_stale = self.has_weights and self.has_kv_cache
        self.has_weights = True

    def die(self) -> None:
        """The process is gone, and its memory with it: every call fails from now on."""
        self.is_dead = True
        self._hold_devices(False)
        self._schedule()
        self._fail_all(ReplicaDiedError(f"{self.id} died"))

    def another(self) -> SimReplica:
        """A new process in the place of this one, which is dead."""
        assert self.is_dead, f"{self.id} still runs"
        replica = SimReplica(self.id, self.kind, self.sim_devices, self.cost, *self._made_from)
        replica.touched, replica.on_answer = self.touched, self.on_answer
        return replica

    def _fail_all(self, error: Exception) -> None:
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
        self._futures.clear()
        self._serving.clear()

    async def _called(self, verb: str) -> None:
        self._check_alive()
        self.num_calls += 1
        self.touched[self] = None
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
