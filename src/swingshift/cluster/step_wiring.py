"""From configuration to training in global steps: settings, policy, the rules of the replay buffer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from swingshift.config.schema import SwingshiftConfig
from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.errors import ConfigError
from swingshift.runtime.replay_buffer import ReplayBuffer, StepBuffer, check_buffer
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_switch import EveryStepPolicy, HybridRolloutSwitchConfig, StepPolicy, StepSwitchPolicy


def step_mode(config: SwingshiftConfig) -> StepMode:
    """Of a configuration that passed its checks. Raises ConfigError for a replay buffer that cannot be used."""
    v1, filters = config.trainer.v1, config.algorithm.filter_groups
    return StepMode(
        settings=StepSettings(
            train_batch_size=config.train_batch_size,
            parameter_sync_step=v1.parameter_sync_step,
            num_warmup_batches=v1.warmup_batches,
            total_training_steps=config.trainer.total_training_steps,
            needs_warmup=v1.trainer_mode == "separate_async",
        ),
        policy=_policy(config),
        rules=StoreRules(
            max_off_policy_threshold=v1.replay_buffer.max_off_policy_threshold,
            max_off_policy_strategy=OffPolicyStrategy(v1.replay_buffer.max_off_policy_strategy),
            filter_metric=filters.metric if filters.enable else None,
        ),
        max_refill_batches=filters.max_num_gen_batches,
        wrap_buffer=_wrapper(v1.replay_buffer.path),
    )


def _policy(config: SwingshiftConfig) -> StepPolicy:
    v1 = config.trainer.v1
    if v1.trainer_mode != "separate_async":
        return EveryStepPolicy(config.train_batch_size)
    num_standalone = config.rollout.num_devices
    return StepSwitchPolicy(
        config=HybridRolloutSwitchConfig(**v1.switch_options()),
        train_batch_size=config.train_batch_size,
        parameter_sync_step=v1.parameter_sync_step,
        standalone_share=num_standalone / (num_standalone + config.trainer.num_devices),
    )


def _wrapper(path: str | None) -> Callable[[ReplayBuffer], StepBuffer]:
    if path is None:
        return lambda buffer: buffer
    wrap: Callable[[ReplayBuffer], StepBuffer] = _load(path)
    check_buffer(wrap, path)
    return wrap


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"trainer.v1.replay_buffer.path={path}: cannot be loaded ({error}); name an importable module:Class"
        ) from error
