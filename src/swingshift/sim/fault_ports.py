"""The ports of a simulated world with faults in front of them. Everything passes through here; nothing is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from swingshift.core.types import GenerationRequest, Prompt, ReplicaKind, SampleGroup, TokenOutput, WeightVersion
from swingshift.errors import CheckpointError, DataError, ReplicaDiedError, ReplicaError, TrainerError
from swingshift.runtime.ports import PromptSource, Replica, ReplicaStarter, RewardFn, TrainResult, WeightSync
from swingshift.runtime.session_parts import Ports
from swingshift.sim.fault_plan import Fault, FaultKind, FaultSchedule
from swingshift.sim.fault_process import FaultyProcess, after
from swingshift.sim.replica import SimReplica
from swingshift.sim.trainer import SimTrainer


class RequestWatch(Protocol):
    """Who looks at the requests that replicas get."""

    def requested(self, replica_id: str, request: GenerationRequest) -> None: ...

    def answered(self, request: GenerationRequest, outputs: Sequence[TokenOutput]) -> None: ...


class FaultyReplica:
    """``requests``: who is being asked for right now. ``watch`` sees requests as they come, and their answers.

    ``jitter_s()``: how long the next answer is under way.
    """

    def __init__(
        self, inner: SimReplica, schedule: FaultSchedule, watch: RequestWatch, jitter_s: Callable[[], float]
    ) -> None:
        self.id, self.kind, self.devices = inner.id, inner.kind, inner.devices
        self.inner = inner
        self.process = FaultyProcess(inner.id, schedule, fail=ReplicaError, died=ReplicaDiedError, kill=inner.die)
        self.requests: set[str] = set()
        self._watch = watch
        self._jitter_s = jitter_s

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        self.requests.add(request.request_id)
        self._watch.requested(self.id, request)
        try:
            # An engine drops a request whose caller has gone away.
            outputs = await self.process.call("generate", lambda: self.inner.generate(request), outlives_caller=False)
            jitter_s = self._jitter_s()
            if jitter_s:
                await asyncio.sleep(jitter_s)
            self._watch.answered(request, outputs)
            return outputs
        finally:
            self.requests.discard(request.request_id)

    async def abort(self, *, refuse: bool = False) -> int:
        return await self.process.call("abort", lambda: self.inner.abort(refuse=refuse))

    async def abort_requests(self, request_ids: Sequence[str]) -> int:
        return await self.process.call("abort_requests", lambda: self.inner.abort_requests(request_ids))

    async def resume_generation(self) -> None:
        await self.process.call("resume_generation", self.inner.resume_generation)

    async def release_kv_cache(self) -> None:
        await self.process.call("release_kv_cache", self.inner.release_kv_cache)

    async def resume_kv_cache(self) -> None:
        await self.process.call("resume_kv_cache", self.inner.resume_kv_cache)

    async def health(self) -> None:
        await self.process.call("health", self.inner.health)

    async def sleep(self, level: int = 2) -> None:
        await self.process.call("sleep", lambda: self.inner.sleep(level))

    async def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await self.process.call("wake_up", lambda: self.inner.wake_up(tags))


class FaultyStarter:
    """A new process, or a new engine in the trainer's, in the place of one that failed."""

    def __init__(self, inner: ReplicaStarter, schedule: FaultSchedule, world: FaultyWorld) -> None:
        self._inner = inner
        self._schedule = schedule
        self._world = world

    async def restart(self, replica: Replica) -> Replica:
        assert isinstance(replica, FaultyReplica)
        fault = self._schedule.take("starter.restart")
        if fault is not None:
            await _fail_or_wait(fault, ReplicaError)
        trainer, shares = self._world.trainer, replica.kind is ReplicaKind.HYBRID
        assert trainer is not None
        if shares and trainer.process.is_dead:
            raise ReplicaDiedError(f"the process of {replica.id} is gone")
        self._world.replicas[replica.id].process.die()
        another = self._world.wrap_replica(await self._inner.restart(replica.inner))
        if shares:
            trainer.process.dies_with.append(another.process)
            if trainer.process.is_dead:
                another.process.die()
        return another


class FaultyTrainer:
    """``on_train`` sees what is about to be trained on; ``saved`` is what the newest save wrote."""

    def __init__(self, inner: SimTrainer, schedule: FaultSchedule) -> None:
        self.devices = inner.devices
        self.inner = inner
        self.process = FaultyProcess("trainer", schedule, fail=TrainerError, died=TrainerError, one_at_a_time=True)
        self.saved: tuple[int, ...] = ()
        self.on_train: Callable[[Sequence[SampleGroup], WeightVersion], None] = lambda groups, version: None

    async def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        self.on_train(groups, version)
        return await self.process.call("train", lambda: self.inner.train(groups, version))

    async def offload(self) -> None:
        await self.process.call("offload", self.inner.offload)

    async def onload(self) -> None:
        await self.process.call("onload", self.inner.onload)

    async def save(self, folder: Path) -> None:
        async def effect() -> None:
            await self.inner.save(folder)
            self.saved = tuple(self.inner.trained)

        await self.process.call("save", effect)

    async def load(self, folder: Path) -> None:
        await self.process.call("load", lambda: self.inner.load(folder))


class FaultyWeightSync:
    """Publishing is the trainer's work, writing that of the replica's process."""

    def __init__(self, inner: WeightSync, trainer: FaultyTrainer) -> None:
        self._inner = inner
        self._trainer = trainer

    async def publish(self, version: WeightVersion) -> None:
        await self._trainer.process.call("publish", lambda: self._inner.publish(version))

    async def sync_standalone(self, replica: Replica, version: WeightVersion) -> None:
        await self._sync(replica, lambda inner: self._inner.sync_standalone(inner, version))

    async def sync_hybrid(self, replica: Replica, version: WeightVersion) -> None:
        await self._sync(replica, lambda inner: self._inner.sync_hybrid(inner, version))

    async def _sync(self, replica: Replica, write: Callable[[SimReplica], Awaitable[None]]) -> None:
        assert isinstance(replica, FaultyReplica)
        await replica.process.call("write_weights", lambda: write(replica.inner))


@dataclass(slots=True)
class FaultyReward:
    inner: RewardFn
    schedule: FaultSchedule

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        fault = self.schedule.take("reward.score")
        if fault is not None:
            await _fail_or_wait(fault, DataError)
        return await self.inner.score(group)


@dataclass(slots=True)
class FaultyPrompts:
    inner: PromptSource
    schedule: FaultSchedule

    def next(self) -> Prompt | None:
        fault = self.schedule.take("prompts.next")
        if fault is not None:
            raise DataError(f"injected: {fault}")
        return self.inner.next()

    def remaining(self) -> int:
        return self.inner.remaining()

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.inner.load_state_dict(state)


@dataclass(slots=True)
class FaultyStore:
    """Keeps the newest checkpoint: control state as the JSON it would be on disk, and what the trainer wrote.

    ``seconds``: what the disk takes. A save whose caller gave up goes on, as threads and the trainer do.
    """

    schedule: FaultSchedule
    seconds: float = 0.0
    trainer: FaultyTrainer | None = None
    on_saved: Callable[[dict[str, Any], tuple[int, ...]], None] = lambda state, trained: None
    on_problem: Callable[[str], None] = lambda problem: None
    is_gone: bool = False
    """The process that saves has crashed: what it still does never reaches the disk."""
    jobs: dict[asyncio.Future[None], None] = field(default_factory=dict)

    async def save(self, step: int, state: Mapping[str, Any]) -> None:
        if self.jobs:
            self.on_problem(f"the save of version {step} clears away what another one is writing")
        job = asyncio.ensure_future(self._write(dict(state)))
        self.jobs[job] = None
        job.add_done_callback(self._ended)
        await asyncio.shield(job)

    async def _write(self, state: dict[str, Any]) -> None:
        assert self.trainer is not None
        fault = self.schedule.take("store.save")
        if fault is not None and fault.kind is not FaultKind.LOST:
            await _fail_or_wait(fault, CheckpointError)
        await self.trainer.save(Path("checkpoint"))
        trained = self.trainer.saved
        if self.seconds:
            await asyncio.sleep(self.seconds)
        if not self.is_gone:
            self.on_saved(state, trained)
        if fault is not None and fault.kind is FaultKind.LOST:
            raise CheckpointError(f"injected: {fault}")

    def _ended(self, job: asyncio.Future[None]) -> None:
        self.jobs.pop(job)
        if not job.cancelled():
            # Whoever asked may have given up: then nobody else looks at the error.
            job.exception()


@dataclass(slots=True)
class FaultyWorld:
    """All the ports of one session, wrapped. ``replicas``: those of now, by id."""

    schedule: FaultSchedule
    watch: RequestWatch
    jitter_s: Callable[[], float]
    replicas: dict[str, FaultyReplica] = field(default_factory=dict)
    trainer: FaultyTrainer | None = None
    processes: list[FaultyProcess] = field(default_factory=list)
    """Those that were replaced, too."""

    def wrap(self, ports: Ports) -> Ports:
        assert isinstance(ports.trainer, SimTrainer)
        self.trainer = FaultyTrainer(ports.trainer, self.schedule)
        self.processes.append(self.trainer.process)
        starter = ports.starter
        standalone = [self.wrap_replica(r) for r in ports.standalone]
        hybrid = [self.wrap_replica(r) for r in ports.hybrid]
        # Trainer and engine share the processes on the trainer's devices.
        self.trainer.process.dies_with += [replica.process for replica in hybrid]
        return replace(
            ports,
            trainer=self.trainer,
            standalone=standalone,
            hybrid=hybrid,
            weight_sync=FaultyWeightSync(ports.weight_sync, self.trainer),
            prompts=FaultyPrompts(ports.prompts, self.schedule),
            starter=None if starter is None else FaultyStarter(starter, self.schedule, self),
        )

    def wrap_replica(self, replica: Replica) -> FaultyReplica:
        assert isinstance(replica, SimReplica)
        faulty = FaultyReplica(replica, self.schedule, self.watch, self.jitter_s)
        self.replicas[replica.id] = faulty
        self.processes.append(faulty.process)
        return faulty

    def process(self, name: str) -> FaultyProcess | None:
        """None: this world has none of that name."""
        assert self.trainer is not None
        if name == "trainer":
            return self.trainer.process
        replica = self.replicas.get(name)
        return replica.process if replica is not None else None


async def _fail_or_wait(fault: Fault, error: type[Exception]) -> None:
    match fault.kind:
        case FaultKind.ERROR:
            raise error(f"injected: {fault}")
        case FaultKind.HANG:
            await after(float("inf"))
        case FaultKind.DELAY | FaultKind.LATE:
            await asyncio.sleep(fault.seconds)
