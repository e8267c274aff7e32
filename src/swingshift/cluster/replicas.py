"""The control plane's ports, implemented by remote device processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from swingshift.cluster.calls import answer
from swingshift.cluster.placement import Pool
from swingshift.core.types import GenerationRequest, ReplicaKind, SampleGroup, TokenOutput, WeightVersion
from swingshift.errors import ReplicaDiedError, TrainerError
from swingshift.runtime.ports import Replica, TrainResult

logger = logging.getLogger(__name__)


class RayReplica:
    """One engine in a remote device process."""

    def __init__(self, name: str, kind: ReplicaKind, actor: Any) -> None:
        self.id = name
        self.kind = kind
        self.devices: tuple[str, ...] = (name,)
        self.actor = actor

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        outputs: tuple[TokenOutput, ...] = await self._call("generate", request)
        return outputs

    async def abort(self, *, refuse: bool = False) -> int:
        num_aborted: int = await self._call("abort", refuse)
        return num_aborted

    async def abort_requests(self, request_ids: Sequence[str]) -> int:
        num_aborted: int = await self._call("abort_requests", list(request_ids))
        return num_aborted

    async def resume_generation(self) -> None:
        await self._call("resume_generation")

    async def release_kv_cache(self) -> None:
        await self._call("release_kv_cache")

    async def resume_kv_cache(self) -> None:
        await self._call("resume_kv_cache")

    async def health(self) -> None:
        await self._call("health")

    async def sleep(self, level: int = 2) -> None:
        await self._call("sleep", level)

    async def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        await self._call("wake_up", list(tags))

    async def write_weights(self, version: WeightVersion, packed: ray.ObjectRef[Any]) -> None:
        await self._call("write_weights", version, packed)

    async def read_weights(self, version: WeightVersion) -> None:
        await self._call("read_weights", version)

    async def _call(self, verb: str, *args: object) -> Any:
        return await answer(getattr(self.actor, verb).remote(*args), self.id)


class RayTrainer:
    """The trainer: one remote process per rank, called together."""

    def __init__(self, names: Sequence[str], actors: Sequence[Any]) -> None:
        self.devices: tuple[str, ...] = tuple(names)
        self.actors = tuple(actors)

    async def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        batch: Any = list(groups)
        if len(self.actors) > 1:
            # Once into shared memory instead of once per rank into messages.
            batch = await asyncio.to_thread(ray.put, batch)
        results: list[TrainResult] = await self._all("train", batch, version)
        return results[0]

    async def offload(self) -> None:
        await self._all("offload")

    async def onload(self) -> None:
        await self._all("onload")

    async def save(self, folder: Path) -> None:
        await self._first("save", str(folder))

    async def load(self, folder: Path) -> None:
        await self._all("load", str(folder))

    async def pack_weights(self) -> ray.ObjectRef[Any]:
        """A reference to the packed weights, which lie in the object store of the trainer's first node."""
        references: list[ray.ObjectRef[Any]] = await self._first("pack_weights")
        return references[0]

    async def _first(self, verb: str, *args: object) -> Any:
        return await self._answer(0, verb, *args)

    async def _all(self, verb: str, *args: object) -> list[Any]:
        ranks = range(len(self.actors))
        return await asyncio.gather(*(self._answer(rank, verb, *args) for rank in ranks))

    async def _answer(self, rank: int, verb: str, *args: object) -> Any:
        try:
            return await answer(getattr(self.actors[rank], verb).remote(*args), self.devices[rank])
        except ReplicaDiedError as error:
            raise TrainerError(f"the trainer cannot go on: {error}") from error


class RayStarter:
    """Another device process in the place of a standalone one; in a trainer's process, another engine."""

    def __init__(self, pool: Pool, model_path: str) -> None:
        self._pool = pool
        self._model_path = model_path

    async def restart(self, replica: Replica) -> Replica:
        assert isinstance(replica, RayReplica)
        if replica.kind is ReplicaKind.HYBRID:
            actor = replica.actor
            where = await answer(actor.restart_engine.remote(), replica.id)
        else:
            actor = self._pool.replace(replica.id)
            where = await answer(actor.start.remote(self._model_path, None), replica.id)
        logger.info("%s: %s", replica.id, where)
        return RayReplica(replica.id, replica.kind, actor)


class ObjectStoreWeightSync:
    """Weights through Ray's object store: packed once, read by every standalone replica without a copy.

    Hybrid replicas live in the trainer's processes and read its parameters directly.
    """

    def __init__(self, trainer: RayTrainer) -> None:
        self._trainer = trainer
        self._packed: ray.ObjectRef[Any] | None = None

    async def publish(self, version: WeightVersion) -> None:
        self._packed = await self._trainer.pack_weights()

    async def sync_standalone(self, replica: Replica, version: WeightVersion) -> None:
        assert isinstance(replica, RayReplica) and self._packed is not None
        await replica.write_weights(version, self._packed)

    async def sync_hybrid(self, replica: Replica, version: WeightVersion) -> None:
        assert isinstance(replica, RayReplica)
        await replica.read_weights(version)
