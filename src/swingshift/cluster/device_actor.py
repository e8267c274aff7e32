"""The process on one device: an engine, and on the trainer's devices also a train worker. A thin shell.

Coroutines only wait: the engine computes in its own thread, training in another. A hybrid process never does both
at once, because the controller puts the engine to sleep first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from swingshift.cluster.device import claim_device
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.types import GenerationRequest, SampleGroup, TokenOutput, WeightVersion
from swingshift.engines.torch_engine import TorchEngine
from swingshift.errors import ConfigError
from swingshift.runtime.ports import TrainResult
from swingshift.training.weights import WeightManifest, unpack_weights
from swingshift.training.worker import TorchTrainWorker

T = TypeVar("T")
Packed = tuple[np.ndarray, WeightManifest]


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Which device a process owns. ``rank`` is the trainer's rank, None on a standalone device."""

    name: str
    kind: str
    core_index: int
    rank: int | None = None
    world_size: int = 1


class DeviceActor:
    """Remote class; ``start`` loads the model and returns once it is ready."""

    def __init__(self, config: SwingshiftConfig, spec: DeviceSpec) -> None:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._spec = spec
        self._device = claim_device(spec.kind, spec.core_index)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="train")
        self._engine: TorchEngine | None = None
        self._worker: TorchTrainWorker | None = None

    # --- start ------------------------------------------------------------------------------------------------

    async def rendezvous(self) -> str:
        """Rank 0: where the trainer's ranks meet."""
        return f"tcp://{ray.util.get_node_ip_address()}:{_free_port()}"

    async def start(self, model_path: str, init_method: str | None = None) -> None:
        """Load the model; join the other ranks; build the train worker and the engine."""
        await self._in_thread(lambda: self._start(model_path, init_method))

    def _start(self, model_path: str, init_method: str | None) -> None:
        spec, config = self._spec, self._config
        model = self._load(model_path)
        is_trainer = spec.rank is not None
        if is_trainer:
            self._worker = self._build_worker(model, model_path, init_method)
        rollout = config.actor_rollout_ref.rollout
        if is_trainer and not config.async_training.use_dynamic_resource_scheduling:
            return
        own_memory = rollout.gpu_memory_utilization if is_trainer else rollout.standalone_memory_utilization
        self._engine = TorchEngine(
            model,
            max_num_seqs=rollout.max_num_seqs,
            max_model_len=config.data.max_prompt_length + rollout.response_length,
            device=self._device,
            kv_cache_memory_bytes=rollout.kv_cache_memory_bytes,
            memory_utilization=own_memory,
            # Replicas must not draw the same random numbers for the same prompts.
            seed=config.trainer.seed * 10_007 + spec.core_index,
            shares_weights=is_trainer,
            start_awake=not is_trainer,
        )

    def _load(self, model_path: str) -> torch.nn.Module:
        model_config = self._config.actor_rollout_ref.model
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                model_path,
                dtype=getattr(torch, model_config.dtype),
                trust_remote_code=model_config.trust_remote_code,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"actor_rollout_ref.model.path: cannot load a causal language model from {model_path!r}: {error}"
            ) from error
        loaded: torch.nn.Module = model.to(self._device)
        return loaded

    def _build_worker(self, model: torch.nn.Module, model_path: str, init_method: str | None) -> TorchTrainWorker:
        spec, config = self._spec, self._config
        assert spec.rank is not None
        if spec.world_size > 1:
            dist.init_process_group(
                "nccl" if self._device.type == "cuda" else "gloo",
                init_method=init_method,
                rank=spec.rank,
                world_size=spec.world_size,
            )
        return TorchTrainWorker(
            model,
            config.actor_rollout_ref.actor,
            temperature=config.actor_rollout_ref.rollout.temperature,
            norm_adv_by_std=config.algorithm.norm_adv_by_std_in_grpo,
            seed=config.trainer.seed,
            rank=spec.rank,
            world_size=spec.world_size,
            tokenizer_dir=Path(model_path) if Path(model_path).is_dir() else None,
        )

    # --- the engine's verbs -----------------------------------------------------------------------------------

    @property
    def engine(self) -> TorchEngine:
        assert self._engine is not None, f"{self._spec.name} has no engine"
        return self._engine

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
        await self._update(version, lambda: unpack_weights(*packed))

    async def read_weights(self, version: WeightVersion) -> None:
        """Hybrid: the trainer's parameters are the engine's own; only the version has to be told."""
        await self._update(version, dict)

    async def _update(self, version: WeightVersion, tensors: Callable[[], dict[str, torch.Tensor]]) -> None:
        await asyncio.wrap_future(self.engine.start_weight_update(version))
        named = tensors()
        if named:
            await asyncio.wrap_future(self.engine.update_weights(named.items()))
        await asyncio.wrap_future(self.engine.finish_weight_update(version))

    # --- training ---------------------------------------------------------------------------------------------

    @property
    def worker(self) -> TorchTrainWorker:
        assert self._worker is not None, f"{self._spec.name} does not train"
        return self._worker

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
        engine = asdict(self._engine.status()) if self._engine is not None else {}
        return {"pid": os.getpid(), "name": self._spec.name, **engine}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
