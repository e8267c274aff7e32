"""From configuration to training in global steps: settings, policy, the rules of the replay buffer."""

from __future__ import annotations

import sys
from collections.abc import Callable

from swingshift.config.schema import SwingshiftConfig
from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.runtime.replay_buffer import ReplayBuffer, StepBuffer, check_buffer
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_policy import EveryStepPolicy, StepPolicy
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.user_code import blamed_on, load_object

_BUFFER = "trainer.v1.replay_buffer.path"


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
    wrap: Callable[[ReplayBuffer], StepBuffer] = load_object(path, _BUFFER)
    check_buffer(wrap, path)

    def wrapped(buffer: ReplayBuffer) -> StepBuffer:
        file = getattr(sys.modules.get(wrap.__module__), "__file__", None)
        with blamed_on(f"{_BUFFER}={path}", "building the replay buffer", "correct the class", file):
            return wrap(buffer)

    return wrapped
