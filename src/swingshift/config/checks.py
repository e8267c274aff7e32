"""Checks across sections: what cannot work is an error, what is probably not meant is a warning."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from swingshift.config.keys import format_value
from swingshift.config.plan import budget_numbers, expected_groups
from swingshift.config.problems import Problem, raise_all
from swingshift.config.profiler_checks import profiler_problems, profiler_warnings
from swingshift.config.schema import RolloutCorrectionConfig, SwingshiftConfig
from swingshift.config.secrets import MASK, masked_keys
from swingshift.config.step_checks import step_problems, step_warnings
from swingshift.errors import ConfigError, DataError

_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"
_CORRECTION = "algorithm.rollout_correction"

LOGGER_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
"""What a logger needs beyond our own dependencies; the extra of the same name brings it."""


def check_config(config: SwingshiftConfig) -> list[str]:
    """Warnings, one line each. Raises ConfigError with one line per contradiction, sorted by key."""
    raise_all(
        [
            *_trainer_problems(config),
            *_size_problems(config),
            *_policy_problems(config),
            *_masked_problems(config),
            *step_problems(config),
            *profiler_problems(config),
        ]
    )
    return [
        *_sampling_warnings(config),
        *_scheduling_warnings(config),
        *_correction_warnings(config),
        *step_warnings(config),
        *profiler_warnings(config),
        *_ignored_warnings(config),
    ]


def check_against_data(config: SwingshiftConfig, num_prompts: int) -> list[str]:
    """Warnings about the number of prompts left after filtering.

    Raises DataError for an empty dataset, ConfigError for one too small for a single collection.
    """
    files = ", ".join(config.data.train_files)
    if num_prompts == 0:
        raise DataError(f"data.train_files={files}: no prompt is left to train on; check the files and the filters")
    budget, epochs = budget_numbers(config), config.trainer.total_epochs
    size = budget.ppo_mini_batch_size
    if size > num_prompts:
        raise ConfigError(
            f"{_ACTOR}.ppo_mini_batch_size={size}: is larger than the dataset of {num_prompts} prompts; "
            f"give at most {num_prompts}, or more data"
        )
    available = num_prompts * epochs
    if budget.required_samples > available:
        raise ConfigError(
            f"async_training.require_batches={budget.require_batches}: one collection takes "
            f"{budget.required_samples} prompts, but the data hold {num_prompts} × {epochs} epochs; "
            f"lower it or raise trainer.total_epochs"
        )
    wanted = config.rollout.total_rollout_steps
    if wanted is not None and wanted > available:
        return [
            f"rollout.total_rollout_steps={wanted}: the data end after {available} prompts "
            f"({num_prompts} × trainer.total_epochs={epochs})"
        ]
    return []


# --- errors -------------------------------------------------------------------------------------------------


def _trainer_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    trainer = config.trainer
    if trainer.resume_mode == "resume_path" and trainer.resume_from_path is None:
        yield _problem(
            "trainer.resume_from_path=null",
            "trainer.resume_mode=resume_path needs it; name a checkpoint folder",
        )
    if trainer.overwrite and trainer.resume_mode == "auto":
        yield _problem(
            "trainer.overwrite=true",
            "would clear the checkpoints that trainer.resume_mode=auto goes on from; set only one of them",
        )
    if trainer.test_freq > 0 and not config.data.val_files:
        yield _problem(
            f"trainer.test_freq={trainer.test_freq}",
            "validation needs data; set data.val_files, or -1 for none",
        )
    for name, package in LOGGER_PACKAGES.items():
        if name in trainer.logger and find_spec(package) is None:
            yield _problem(
                f"trainer.logger={format_value(trainer.logger)}",
                f"the package {package} is not installed; pip install 'swingshift[{name}]', or leave {name} out",
            )


def _size_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    engine, actor, budget = (
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.actor,
        budget_numbers(config),
    )
    total = config.rollout.total_rollout_steps
    if total is not None and total < budget.required_samples:
        yield _problem(
            f"rollout.total_rollout_steps={total}",
            f"is less than one collection of {budget.required_samples} groups (ppo_mini_batch_size "
            f"{budget.ppo_mini_batch_size} × require_batches {budget.require_batches}); raise it or "
            f"lower those",
        )
    longest = config.data.max_prompt_length + engine.response_length
    if longest > actor.ppo_max_token_len_per_gpu:
        yield _problem(
            f"{_ACTOR}.ppo_max_token_len_per_gpu={actor.ppo_max_token_len_per_gpu}",
            f"one sample may have {longest} tokens (data.max_prompt_length + {_ROLLOUT}.response_length); "
            f"give at least {longest}",
        )
    if engine.n == 1:
        yield _problem(
            f"{_ROLLOUT}.n=1",
            "algorithm.adv_estimator=grpo compares the responses to one prompt and would learn nothing; "
            "give at least 2",
        )


def _masked_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    for key in masked_keys(config.model_dump()):
        yield _problem(
            f"{key}={MASK}",
            "stands for a secret that was left out when this configuration was written; give it again, best as "
            "${oc.env:NAME}",
        )


def _policy_problems(config: SwingshiftConfig) -> Iterator[Problem]:
    schedule = config.async_training
    if config.rollout.nnodes == 0 and not config.lends and not config.trainer.v1.in_steps:
        yield _problem(
            "rollout.nnodes=0",
            "without standalone nodes nobody generates; set "
            "async_training.use_dynamic_resource_scheduling=true (colocated mode: training and rollout take "
            "turns on the trainer's devices) or give at least 1",
        )
    twice = {"deactivate_ratio", "only_hybrid"} & schedule.dynamic_schedule_policy_kwargs.keys()
    for name in sorted(twice):
        yield _problem(
            f"async_training.dynamic_schedule_policy_kwargs.{name}={schedule.dynamic_schedule_policy_kwargs[name]}",
            "is given to every policy anyway; use async_training.dynamic_schedule_deactivate_ratio "
            "and rollout.nnodes",
        )
    if not twice:
        yield from _unbuildable_policy(config)


def _unbuildable_policy(config: SwingshiftConfig) -> Iterator[Problem]:
    import swingshift.schedule as policies

    schedule = config.async_training
    try:
        policies.build_policy(
            schedule.dynamic_schedule_policy,
            deactivate_ratio=schedule.dynamic_schedule_deactivate_ratio,
            only_hybrid=config.rollout.nnodes == 0,
            **schedule.dynamic_schedule_policy_kwargs,
        )
    except ConfigError as error:
        yield Problem("async_training.dynamic_schedule_policy", " ".join(str(error).split()))


# --- warnings -----------------------------------------------------------------------------------------------


def _sampling_warnings(config: SwingshiftConfig) -> Iterator[str]:
    engine = config.actor_rollout_ref.rollout
    truncated = [f"top_p={engine.top_p}"] * (engine.top_p < 1) + [f"top_k={engine.top_k}"] * (engine.top_k > 0)
    if truncated:
        yield (
            f"{_ROLLOUT}.{', '.join(truncated)}: rollout log-probs are those of the truncated distribution, "
            f"while training uses the whole one; top_p=1 and top_k=-1 keep them comparable"
        )
    validation = engine.val_kwargs
    if validation.temperature == 0 and validation.n > 1:
        yield f"{_ROLLOUT}.val_kwargs.n={validation.n}: greedy validation repeats one response"


def _scheduling_warnings(config: SwingshiftConfig) -> Iterator[str]:
    budget, optim = budget_numbers(config), config.actor_rollout_ref.actor.optim
    groups = expected_groups(config)
    if groups is not None and groups < budget.step_required_samples:
        yield (
            f"the run has {groups} groups, less than one sync cycle of {budget.step_required_samples}: "
            f"weights reach rollout only at the end; lower async_training.trigger_parameter_sync_step"
        )
    if groups is not None:
        num_updates = groups // budget.ppo_mini_batch_size * config.actor_rollout_ref.actor.ppo_epochs
        if optim.lr_warmup_steps > num_updates:
            yield (
                f"{_ACTOR}.optim.lr_warmup_steps={optim.lr_warmup_steps}: the run has only {num_updates} "
                f"optimizer steps"
            )
    num_standalone, num_hybrid = config.rollout.num_devices, config.trainer.num_devices
    is_lending = config.lends and num_standalone > 0
    alone = budget.max_concurrent_samples(num_standalone)
    if is_lending and alone == budget.max_concurrent_samples(num_standalone + num_hybrid):
        yield (
            f"async_training.concurrent_samples_per_replica={budget.concurrent_samples_per_replica}: the "
            f"standalone replicas alone use up the budget of {budget.max_required_samples} groups, so "
            f"lending adds nothing; lower it, or raise async_training.staleness_threshold"
        )


def _correction_warnings(config: SwingshiftConfig) -> Iterator[str]:
    correction, default = config.algorithm.rollout_correction, RolloutCorrectionConfig()
    if correction.rollout_is_threshold == default.rollout_is_threshold:
        return
    setting = f"{_CORRECTION}.rollout_is_threshold={format_value(correction.rollout_is_threshold)}"
    if correction.bypass_mode:
        yield f"{setting}: is ignored unless {_CORRECTION}.bypass_mode=false"
    elif correction.rollout_is is None:
        yield f"{setting}: is ignored unless {_CORRECTION}.rollout_is=token"


def _ignored_warnings(config: SwingshiftConfig) -> Iterator[str]:
    trainer, reward, schedule = config.trainer, config.reward, config.async_training
    if trainer.resume_from_path is not None and trainer.resume_mode != "resume_path":
        yield (
            f"trainer.resume_from_path={trainer.resume_from_path}: is ignored unless trainer.resume_mode=resume_path"
        )
    if config.data.val_files and trainer.test_freq <= 0:
        yield f"data.val_files={', '.join(config.data.val_files)}: is never used; set trainer.test_freq"
    if reward.path is not None and reward.name is not None:
        yield f"reward.name={reward.name}: is ignored, since reward.path={reward.path} wins"
    if schedule.dynamic_schedule_policy != "default" and not schedule.use_dynamic_resource_scheduling:
        yield (
            f"async_training.dynamic_schedule_policy={schedule.dynamic_schedule_policy}: is ignored unless "
            f"async_training.use_dynamic_resource_scheduling=true"
        )


def _problem(setting: str, text: str) -> Problem:
    return Problem(setting.partition("=")[0], f"{setting}: {text}")
