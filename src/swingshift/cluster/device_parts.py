"""What computes on a device: the model, the train worker, the engine. The heavy imports of a device process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from swingshift.cluster.rendezvous import join
from swingshift.cluster.specs import DeviceSpec
from swingshift.config.plan import budget_numbers
from swingshift.config.run_dir import profile_dir_of
from swingshift.config.schema import SwingshiftConfig
from swingshift.engines.torch_engine import TorchEngine
from swingshift.errors import ConfigError
from swingshift.tasks.model_folder import fetch_model
from swingshift.training.profiling import RolloutProfiler, Traces, TrainProfiler
from swingshift.training.worker import TorchTrainWorker


@dataclass(slots=True)
class DeviceParts:
    """A device that only rolls out has no worker; a trainer's device that is never lent has no engine."""

    engine: TorchEngine | None
    worker: TorchTrainWorker | None
    build_engine: Callable[[], TorchEngine]

    def restart_engine(self) -> None:
        """Another engine in the place of one that failed, whose memory is free before the new one is made."""
        assert self.engine is not None
        self.engine.close()
        self.engine = self.build_engine()


def build_parts(
    config: SwingshiftConfig, spec: DeviceSpec, device_name: str, model_path: str, meeting_place: str | None
) -> DeviceParts:
    """Load the model and build what the device needs; on a trainer's rank, join the other ranks first.

    ``model_path``: a folder or hub id. Raises ConfigError for a model that cannot be loaded or run.
    """
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    device = torch.device(device_name)
    # A hub id may be cached on each machine of a cluster in another place, or not yet.
    folder = fetch_model(model_path)
    model = _load(config, folder).to(device)
    is_trainer = spec.rank is not None
    worker = _build_worker(config, spec, device, model, folder, meeting_place) if is_trainer else None
    build_engine = partial(_build_engine, config, spec, device, model)
    return DeviceParts(None if is_trainer and not config.lends else build_engine(), worker, build_engine)


def _load(config: SwingshiftConfig, folder: Path) -> torch.nn.Module:
    model_config = config.actor_rollout_ref.model
    try:
        model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, model_config.dtype),
            trust_remote_code=model_config.trust_remote_code,
            # Other formats are pickles, and a pickle may run code.
            use_safetensors=True,
        )
    except Exception as error:  # whatever the model's own files or code raise
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"actor_rollout_ref.model.path={model_config.path}: cannot load a causal language model from {folder} "
            f"({type(error).__name__}: {reason}); give another model"
        ) from error
    return model


def _build_worker(
    config: SwingshiftConfig,
    spec: DeviceSpec,
    device: torch.device,
    model: torch.nn.Module,
    folder: Path,
    meeting_place: str | None,
) -> TorchTrainWorker:
    assert spec.rank is not None
    if spec.world_size > 1:
        assert meeting_place is not None
        join(meeting_place, "nccl" if device.type == "cuda" else "gloo", spec.rank, spec.world_size)
    return TorchTrainWorker(
        model,
        config.actor_rollout_ref.actor,
        temperature=config.actor_rollout_ref.rollout.temperature,
        norm_adv_by_std=config.algorithm.norm_adv_by_std_in_grpo,
        correction=config.algorithm.rollout_correction,
        collections_per_cycle=budget_numbers(config).trigger_parameter_sync_step,
        seed=config.trainer.seed,
        rank=spec.rank,
        world_size=spec.world_size,
        tokenizer_dir=folder,
        profiler=TrainProfiler(_traces(config, spec, device)),
    )


def _build_engine(config: SwingshiftConfig, spec: DeviceSpec, device: torch.device, model: Any) -> TorchEngine:
    rollout = config.actor_rollout_ref.rollout
    is_trainer = spec.rank is not None
    decode_steps = config.global_profiler.num_decode_steps
    # A process can hold one trace at a time, and on a trainer's device it is the train worker's.
    traced = not is_trainer and decode_steps > 0
    return TorchEngine(
        model,
        max_num_seqs=rollout.max_num_seqs,
        max_model_len=config.data.max_prompt_length + rollout.response_length,
        device=device,
        kv_cache_memory_bytes=rollout.kv_cache_memory_bytes,
        memory_utilization=rollout.gpu_memory_utilization if is_trainer else rollout.standalone_memory_utilization,
        # Replicas must not draw the same random numbers for the same prompts.
        seed=config.trainer.seed * 10_007 + spec.core_index,
        shares_weights=is_trainer,
        start_awake=not is_trainer,
        profiler=RolloutProfiler(_traces(config, spec, device), decode_steps) if traced else None,
    )


def _traces(config: SwingshiftConfig, spec: DeviceSpec, device: torch.device) -> Traces:
    folder = profile_dir_of(config)
    return Traces(config.global_profiler, folder, spec.name, on_cuda=device.type == "cuda")
