"""Checks of training in global steps (``trainer.v1``): what cannot work, and what is probably not meant."""

from __future__ import annotations

from collections.abc import Iterator

from swingshift.config.problems import Problem
from swingshift.config.schema import SwingshiftConfig
from swingshift.schedule.step_switch import check_disaggregation


def step_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    v1 = config.trainer.v1
    if config.actor_rollout_ref.rollout.disaggregation.enable:
        yield from _disaggregation_problems(config)
    if not v1.in_steps:
        yield from _fully_async_problems(config)
        return
    yield from _batch_problems(config)
    if v1.trainer_mode == "separate_async":
        if config.rollout.nnodes == 0:
            yield _problem(
                "rollout.nnodes=0",
                "trainer.v1.trainer_mode=separate_async needs a standalone rollout pool; give at least 1, or use "
                "trainer_mode=colocate_async",
            )
        if v1.warmup_batches == 0 and config.trainer.resume_mode == "disable":
            yield _problem(
                "trainer.v1.num_warmup_batches=0",
                "with nothing in flight before the first step, separate_async cannot run ahead of training; give at "
                "least 1, or use trainer.v1.trainer_mode=sync",
            )
    elif config.rollout.nnodes > 0:
        yield _problem(
            f"rollout.nnodes={config.rollout.nnodes}",
            f"trainer.v1.trainer_mode={v1.trainer_mode} generates on the trainer's devices alone; set 0, or use "
            "trainer_mode=separate_async",
        )


def step_warnings(config: SwingshiftConfig) -> Iterator[str]:
    v1, schedule = config.trainer.v1, config.async_training
    if not v1.in_steps:
        return
    if schedule.use_dynamic_resource_scheduling:
        yield (
            "async_training.use_dynamic_resource_scheduling=true: is ignored in "
            f"trainer.v1.trainer_mode={v1.trainer_mode}"
            + (
                "; trainer.v1.separate_async.hybrid_rollout.enable_switch lends there"
                if v1.trainer_mode == "separate_async"
                else ", where the devices are lent in every step"
            )
        )
    if v1.trainer_mode == "sync" and v1.warmup_batches > 0:
        yield (
            f"trainer.v1.num_warmup_batches={v1.num_warmup_batches}: trainer_mode=sync then trains on responses of "
            "older weights; 0 keeps it on-policy"
        )


def _fully_async_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    """Keys that would silently do nothing."""
    remedy = "set trainer.v1.trainer_mode=separate_async (or colocate_async, sync), or leave it out"
    if config.data.train_batch_size is not None:
        yield _problem(
            f"data.train_batch_size={config.data.train_batch_size}", f"only training in global steps has it; {remedy}"
        )
    if config.trainer.total_training_steps is not None:
        yield _problem(
            f"trainer.total_training_steps={config.trainer.total_training_steps}",
            f"only training in global steps has it; use rollout.total_rollout_steps, or {remedy}",
        )
    if config.algorithm.filter_groups.enable:
        yield _problem(
            "algorithm.filter_groups.enable=true", f"only the replay buffer of global steps filters; {remedy}"
        )
    if config.trainer.v1.replay_buffer.path is not None:
        yield _problem(
            f"trainer.v1.replay_buffer.path={config.trainer.v1.replay_buffer.path}",
            f"only training in global steps has a replay buffer; {remedy}",
        )
    if config.trainer.v1.separate_async.hybrid_rollout.enable_switch:
        yield _problem(
            "trainer.v1.separate_async.hybrid_rollout.enable_switch=true",
            f"in fully-asynchronous mode async_training.use_dynamic_resource_scheduling lends; {remedy}",
        )


def _batch_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    v1, size = config.trainer.v1, config.actor_rollout_ref.actor.ppo_mini_batch_size
    wanted = v1.parameter_sync_step * size
    if config.train_batch_size != wanted:
        yield _problem(
            f"data.train_batch_size={config.train_batch_size}",
            f"must be trainer.v1.parameter_sync_step={v1.parameter_sync_step} × "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={size} = {wanted}; leave it out, or change one of them",
        )


def _disaggregation_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    key, engine = "actor_rollout_ref.rollout.disaggregation.enable", config.actor_rollout_ref.rollout.name
    try:
        check_disaggregation(lent_by=_lent_by(config), disaggregated=True)
    except ValueError as error:
        # Without lending it could not be had either.
        yield Problem(key, f"{error}; and no engine can do it, so set it to false")
        return
    yield _problem(
        f"{key}=true",
        f"no engine can do it: actor_rollout_ref.rollout.name={engine} prefills and decodes in one; set it to false",
    )


def _lent_by(config: SwingshiftConfig) -> str | None:
    """The setting that lends in this mode."""
    mode = config.trainer.v1.trainer_mode
    if not config.lends:
        return None
    if mode == "fully_async":
        return "async_training.use_dynamic_resource_scheduling=true"
    if mode == "separate_async":
        return "trainer.v1.separate_async.hybrid_rollout.enable_switch=true"
    return f"trainer.v1.trainer_mode={mode}"


def _problem(setting: str, text: str) -> Problem:
    return Problem(setting.partition("=")[0], f"{setting}: {text}")
