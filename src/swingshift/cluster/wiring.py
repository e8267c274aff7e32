"""From configuration, inputs and device processes to a session: every setting handed to the part that needs it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from swingshift.cluster.inputs import Inputs
from swingshift.cluster.placement import Pool
from swingshift.cluster.replicas import ObjectStoreWeightSync, RayReplica, RayTrainer
from swingshift.cluster.run_files import RunFiles
from swingshift.cluster.step_wiring import step_mode
from swingshift.config.plan import budget_numbers, resolve_device_kind
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.types import ReplicaKind, SamplingParams
from swingshift.runtime.checkpoint import CheckpointStore
from swingshift.runtime.group_runner import RolloutSettings
from swingshift.runtime.ports import ReplicaStarter
from swingshift.runtime.restarts import RestartSettings
from swingshift.runtime.session import Session
from swingshift.runtime.session_parts import Ports, SessionSettings
from swingshift.runtime.validator import Validator
from swingshift.schedule.base import DynamicSchedulePolicyBase, build_policy


def compose(
    config: SwingshiftConfig,
    inputs: Inputs,
    files: RunFiles,
    folder: Path,
    trainer_pool: Pool,
    standalone_pool: Pool,
    starter: ReplicaStarter,
) -> tuple[Session, CheckpointStore]:
    """The session of a run whose device processes are ready, and the store it saves to."""
    rollout, training = config.actor_rollout_ref.rollout, config.async_training
    lends = config.lends
    trainer = RayTrainer(trainer_pool.names, trainer_pool.actors)
    store = CheckpointStore(folder / "checkpoints", trainer, config.trainer.max_actor_ckpt_to_keep)
    ports = Ports(
        trainer=trainer,
        standalone=_replicas(standalone_pool, ReplicaKind.STANDALONE),
        hybrid=_replicas(trainer_pool, ReplicaKind.HYBRID) if lends else [],
        weight_sync=ObjectStoreWeightSync(trainer),
        prompts=inputs.source,
        reward=inputs.reward,
        saver=store,
        starter=starter,
        validate=_validator(config, inputs),
    )
    settings = SessionSettings(
        numbers=budget_numbers(config),
        rollout=RolloutSettings(
            num_responses=rollout.n,
            sampling=_sampling(config, inputs, rollout.temperature, rollout.top_p, rollout.top_k),
            max_sample_retries=training.max_sample_retries,
            max_failed_ratio=training.max_failed_ratio,
        ),
        enable_rebalance=training.dynamic_schedule_enable_rebalance,
        partial_rollout=rollout.partial_rollout,
        routing=rollout.routing,
        sticky_cache_size=training.sticky_cache_size,
        replica_wait_timeout_s=training.replica_wait_timeout_s,
        call_timeout_s=training.call_timeout_s,
        restarts=RestartSettings(training.max_replica_restarts),
        health_check_interval_s=training.health_check_interval_s,
        watchdog_timeout_s=training.watchdog_timeout_s,
        train_timeout_s=training.train_timeout_s,
        release_kv_cache=rollout.free_cache_engine,
        save_freq=config.trainer.save_freq,
        test_freq=config.trainer.test_freq,
        seed=config.trainer.seed,
    )
    mode = step_mode(config) if config.trainer.v1.in_steps else _policy(config)
    session = Session(
        ports, settings, mode, on_cycle=files.on_cycle, on_span=files.on_span, on_trained=files.on_trained
    )
    is_cpu = resolve_device_kind(config) == "cpu" and hasattr(os, "sched_getaffinity")
    session.metrics.engines.watch_cpu(time.process_time, len(os.sched_getaffinity(0)) if is_cpu else 0)
    files.events.watch(session)
    files.live.watch(session)
    return session, store


def _policy(config: SwingshiftConfig) -> DynamicSchedulePolicyBase:
    training = config.async_training
    return build_policy(
        training.dynamic_schedule_policy if config.lends else "static_fully_async",
        deactivate_ratio=training.dynamic_schedule_deactivate_ratio,
        only_hybrid=config.rollout.nnodes == 0,
        **training.dynamic_schedule_policy_kwargs,
    )


def _replicas(pool: Pool, kind: ReplicaKind) -> list[RayReplica]:
    return [RayReplica(name, kind, actor) for name, actor in zip(pool.names, pool.actors, strict=True)]


def _sampling(
    config: SwingshiftConfig, inputs: Inputs, temperature: float, top_p: float, top_k: int
) -> SamplingParams:
    return SamplingParams(
        max_tokens=config.actor_rollout_ref.rollout.response_length,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop_token_ids=inputs.stop_token_ids,
    )


def _validator(config: SwingshiftConfig, inputs: Inputs) -> Validator | None:
    if config.trainer.test_freq <= 0 or not inputs.val_prompts:
        return None
    kwargs = config.actor_rollout_ref.rollout.val_kwargs
    num_devices = config.rollout.num_devices or config.trainer.num_devices
    return Validator(
        inputs.val_prompts,
        inputs.reward,
        _sampling(config, inputs, kwargs.temperature, 1.0, -1),
        kwargs.n,
        max_in_flight=config.async_training.concurrent_samples_per_replica * num_devices,
    )
