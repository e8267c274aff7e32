"""The process on one device: an engine, and on the trainer's devices also a train worker. A thin shell.

Coroutines only wait: the engine computes in its own thread, training in another. A hybrid process never does both
at once, because the controller puts the engine to sleep first.

The control process only names this class, so torch and everything that needs it are imported in the device's process.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ray

from swingshift.cluster.device import claim_device
from swingshift.cluster.specs import DeviceSpec
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.types import GenerationRequest, SampleGroup, TokenOutput, WeightVersion
from swingshift.runtime.ports import TrainResult

if TYPE_CHECKING:
    import numpy as np
    import torch

    from swingshift.cluster.device_parts import DeviceParts
    from swingshift.engines.torch_engine import TorchEngine
    from swingshift.training.weights import WeightManifest
    from swingshift.training.worker import TorchTrainWorker

    Packed = tuple[np.ndarray, WeightManifest]

T = TypeVar("T")


class DeviceActor:
    """Remote class; ``start`` loads the model and returns once it is ready."""

    def __init__(self, config: SwingshiftConfig, spec: DeviceSpec) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._spec = spec
        self._device_name = claim_device(spec.kind, spec.core_index)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train")
        self._parts: DeviceParts | None = None
        # Importing takes seconds: begin while the model is still being made.
        self._thread.submit(_import_parts)

    # --- start ------------------------------------------------------------------------------------------------

    async def rendezvous(self) -> str:
        """Rank 0: where the trainer's ranks meet, ``host:port``."""
        return await self._in_thread(_free_address)

    async def start(self, model_path: str, meeting_place: str | None = None) -> str:
        """Load the model; join the other ranks; build the train worker and the engine. Says where it runs."""
        self._parts = await self._in_thread(lambda: self._build(model_path, meeting_place))
        return f"process {os.getpid()} on {ray.util.get_node_ip_address()}"

    def _build(self, model_path: str, meeting_place: str | None) -> DeviceParts:
        from swingshift.cluster.device_parts import build_parts

        return build_parts(self._config, self._spec, self._device_name, model_path, meeting_place)

    async def restart_engine(self) -> str:
        """Hybrid: end what is left of the engine and build another one on the trainer's parameters, asleep."""
        assert self._parts is not None
        # Beside training, which may be under way: a sleeping engine only holds references.
        await asyncio.to_thread(self._parts.restart_engine)
        return f"another engine in process {os.getpid()}"

    # --- the engine's verbs -----------------------------------------------------------------------------------

    @property
    def engine(self) -> TorchEngine:
        assert self._parts is not None and self._parts.engine is not None, f"{self._spec.name} has no engine"
        return self._parts.engine

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        return await asyncio.wrap_future(self.engine.generate(request))

    async def abort(self, refuse: bool) -> int:
        return await asyncio.wrap_future(self.engine.abort(refuse=refuse))

    async def abort_requests(self, request_ids: Sequence[str]) -> int:
        return await asyncio.wrap_future(self.engine.abort_requests(request_ids))

    async def resume_generation(self) -> None:
        await asyncio.wrap_future(self.engine.resume_generation())

    async def release_kv_cache(self) -> None:
        await asyncio.wrap_future(self.engine.release_kv_cache())

    async def resume_kv_cache(self) -> None:
        await asyncio.wrap_future(self.engine.resume_kv_cache())

    async def health(self) -> None:
        await asyncio.wrap_future(self.engine.health())

    async def sleep(self, level: int) -> None:
        await asyncio.wrap_future(self.engine.sleep(level))

    async def wake_up(self, tags: Sequence[str]) -> None:
        await asyncio.wrap_future(self.engine.wake_up(tags))

    # --- weights ----------------------------------------------------------------------------------------------

    async def pack_weights(self) -> list[ray.ObjectRef[Any]]:
        """A reference to the trainer's weights as one buffer, which lies in the object store once for all readers.

        The reference travels inside a list, so that the buffer itself stays on this node.
        """
        return [await self._in_thread(lambda: ray.put(self.worker.pack_weights()))]

    async def write_weights(self, version: WeightVersion, packed: Packed) -> None:
        """Standalone: copy a packed buffer (read-only, shared memory) into the engine, and the version with it."""
        from swingshift.training.weights import unpack_weights

        await self._update(version, lambda: unpack_weights(*packed))

    async def read_weights(self, version: WeightVersion) -> None:
        """Hybrid: the trainer's parameters are the engine's own; only the version has to be told."""
        await self._update(version, dict)

    async def _update(self, version: WeightVersion, tensors: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        await asyncio.wrap_future(self.engine.start_weight_update(version))
        named = tensors()
        if named:
            await asyncio.wrap_future(self.engine.update_weights(named.items()))
        await asyncio.wrap_future(self.engine.finish_weight_update(version))

    # --- training ---------------------------------------------------------------------------------------------

    @property
    def worker(self) -> TorchTrainWorker:
        assert self._parts is not None and self._parts.worker is not None, f"{self._spec.name} does not train"
        return self._parts.worker

    async def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        return await self._in_thread(lambda: self.worker.train(groups, version))

    async def offload(self) -> None:
        await self._in_thread(self.worker.offload)

    async def onload(self) -> None:
        await self._in_thread(self.worker.onload)

    async def save(self, folder: str) -> None:
        await self._in_thread(lambda: self.worker.save(Path(folder)))

    async def load(self, folder: str) -> None:
        await self._in_thread(lambda: self.worker.load(Path(folder)))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def status(self) -> dict[str, Any]:
        """For tests and reports: the engine's status as plain values, and the process id."""
        engine = asdict(self._parts.engine.status()) if self._parts and self._parts.engine else {}
        return {"pid": os.getpid(), "name": self._spec.name, **engine}


def _import_parts() -> None:
    """Nothing of what an import makes is garbage, and looking for some takes a quarter of the time."""
    gc.disable()
    try:
        importlib.import_module("swingshift.cluster.device_parts")
    finally:
        gc.enable()
    gc.freeze()


def _free_address() -> str:
    from swingshift.cluster.rendezvous import free_address

    return free_address(ray.util.get_node_ip_address())
