"""The configuration schema: every key, its type, its default and what it means.

Key paths are those of the field's published framework wherever it has one, so that overrides can be pasted.
Validators here hold checks within one section; ``config/checks.py`` holds those that cross sections.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from swingshift.config.model_schema import (
    ActorConfig,
    ActorRolloutRefConfig,
    ModelConfig,
    OptimConfig,
    RolloutEngineConfig,
    ValKwargsConfig,
    WarmStartConfig,
)
from swingshift.config.profiler_schema import ProfilerConfig
from swingshift.config.section import Section
from swingshift.config.step_schema import FilterGroupsConfig, V1Config

__all__ = [
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "AsyncTrainingConfig",
    "DataConfig",
    "ModelConfig",
    "OptimConfig",
    "ProfilerConfig",
    "PrometheusConfig",
    "RewardConfig",
    "RolloutConfig",
    "RolloutCorrectionConfig",
    "RolloutEngineConfig",
    "Section",
    "SwingshiftConfig",
    "TrainerConfig",
    "ValKwargsConfig",
    "WarmStartConfig",
]


# --- data ---------------------------------------------------------------------------------------------------


class DataConfig(Section):
    """Where prompts come from."""

    train_files: list[str] = Field(
        default=["builtin:sort_digits"],
        min_length=1,
        description="JSONL or Parquet files, or one built-in task (`builtin:sort_digits`, `builtin:add`) "
        "or a reasoning-gym data set (`reasoning_gym:chain_sum`).",
    )
    val_files: list[str] = Field(default=[], description="Same forms as `train_files`; validation needs them.")
    prompt_key: str = Field(default="prompt", description="Column with a string or a list of chat messages.")
    answer_key: str = Field(default="answer", description="Column with the reference answer, passed to the reward.")
    task_options: dict[str, Any] = Field(
        default={}, description="Options of a built-in task or reasoning-gym data set."
    )
    size: PositiveInt = Field(default=4096, description="Number of prompts a generated data source makes.")
    max_prompt_length: PositiveInt = Field(default=512, description="Tokens. Longer prompts are an error or dropped.")
    train_batch_size: PositiveInt | None = Field(
        default=None,
        description="Groups per global step (`trainer.v1`); null: ppo_mini_batch_size × parameter_sync_step.",
    )
    filter_overlong_prompts: bool = Field(
        default=False, description="Drop prompts over the limit instead of failing."
    )
    shuffle: bool = Field(default=True, description="Shuffle the prompts anew in each epoch.")
    seed: int = Field(default=0, description="Seed of the shuffle and of generated data sources.")

    @model_validator(mode="before")
    @classmethod
    def _one_file_is_a_list(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for key in ("train_files", "val_files"):
                if isinstance(values.get(key), str):
                    values = {**values, key: [values[key]]}
                elif values.get(key, 0) is None:
                    values = {**values, key: []}
        return values


class RewardConfig(Section):
    """How finished responses are scored."""

    name: Literal["exact_match", "math_verify", "reasoning_gym"] | None = Field(
        default=None, description="A built-in reward. Unset: the task's own, else `exact_match`."
    )
    path: str | None = Field(default=None, description="`file.py:function` of your own; wins over `name`.")
    timeout_s: float = Field(default=30.0, gt=0, description="Deadline for scoring one group.")
    num_workers: PositiveInt = Field(default=1, description="Worker processes that score groups.")
    max_retries: int = Field(default=1, ge=0, description="Further tries after a failed or late score.")

    @field_validator("path")
    @classmethod
    def _names_a_function(cls, path: str | None) -> str | None:
        if path is not None:
            file, _, function = path.rpartition(":")
            if not (file.endswith(".py") and function.isidentifier()):
                raise ValueError("does not name a function; write file.py:function")
        return path


class RolloutCorrectionConfig(Section):
    """How the loss allows for responses that older weights sampled."""

    bypass_mode: bool = Field(
        default=True,
        description="true: probability ratios are against the rollout's log-probs. false: decoupled PPO, against "
        "those of the weights at the start of the sync cycle, which one more forward pass computes.",
    )
    rollout_is: Literal["token"] | None = Field(
        default="token",
        description="In decoupled PPO, weigh each token's loss by its probability at the start of the cycle over "
        "that at rollout; null: no weights, the metrics alone.",
    )
    rollout_is_threshold: float | None = Field(
        default=2.0, ge=1, description="Truncate those weights at this value; null: do not."
    )


class AlgorithmConfig(Section):
    """How rewards become advantages, and advantages a loss."""

    adv_estimator: Literal["grpo"] = Field(default="grpo", description="Rewards normalised within each group.")
    norm_adv_by_std_in_grpo: bool = Field(default=True, description="Divide group-centred rewards by their std.")
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()


# --- the asynchronous part ----------------------------------------------------------------------------------


class AsyncTrainingConfig(Section):
    """Staleness, weight syncs and the lending of the trainer's devices."""

    staleness_threshold: float = Field(
        default=0.1, ge=0, le=1000, description="Groups that may be submitted ahead, as a fraction of one sync cycle."
    )
    trigger_parameter_sync_step: PositiveInt = Field(default=4, description="Collections per weight sync.")
    require_batches: PositiveInt = Field(default=1, description="Mini-batches per collection.")
    concurrent_samples_per_replica: PositiveInt = Field(
        default=16, description="Groups in flight per active replica."
    )
    use_dynamic_resource_scheduling: bool = Field(default=False, description="Lend the trainer's devices to rollout.")
    dynamic_schedule_policy: str = Field(
        default="default",
        description="A registered name, an entry point of `swingshift.policies`, or `module:Class`.",
    )
    dynamic_schedule_deactivate_ratio: float = Field(
        default=0.3, gt=0, le=1, description="Share of a cycle's groups to buffer before the devices go back."
    )
    dynamic_schedule_enable_rebalance: bool = Field(
        default=True, description="Redistribute requests in flight after an activation."
    )
    dynamic_schedule_policy_kwargs: dict[str, Any] = Field(default={}, description="Further arguments of a policy.")
    max_sample_retries: int = Field(default=2, ge=0, description="Further tries of a group whose generation failed.")
    max_failed_ratio: float = Field(
        default=0.1, ge=0, le=1, description="The run ends with an error beyond this share of failed groups."
    )
    replica_wait_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="How long a request waits for any replica before the run ends with an error.",
    )
    call_timeout_s: float = Field(
        default=600.0, gt=0, description="Deadline of one remote call (generation and training excepted)."
    )
    train_timeout_s: float = Field(
        default=7200.0, gt=0, description="Deadline of training on one collection; a trainer beyond it ends the run."
    )
    max_replica_restarts: int = Field(
        default=3,
        ge=0,
        description="Restarts in a row of a replica that failed. After them the run ends with an error, or goes on "
        "without it if it is a hybrid one; 0: whoever fails stays out.",
    )
    health_check_interval_s: float | None = Field(
        default=30.0, gt=0, description="Seconds between health checks of serving replicas; null: none."
    )
    watchdog_timeout_s: float | None = Field(
        default=3600.0,
        gt=0,
        description="The run ends with an error if nothing moves for so long, training excepted; null: it waits.",
    )
    sticky_cache_size: PositiveInt = Field(default=10_000, description="Requests remembered for sticky routing.")


class RolloutConfig(Section):
    """The standalone rollout nodes."""

    nnodes: int = Field(default=1, ge=0, description="0: no standalone nodes, training and rollout share devices.")
    n_gpus_per_node: PositiveInt = Field(default=1, description="Devices per standalone rollout node.")
    total_rollout_steps: PositiveInt | None = Field(
        default=None, description="Groups to produce in all; unset: `trainer.total_epochs` over the data."
    )

    @property
    def num_devices(self) -> int:
        return self.nnodes * self.n_gpus_per_node


LoggerName = Literal["console", "jsonl", "tensorboard", "wandb", "mlflow"]


class PrometheusConfig(Section):
    """Metrics of a run for Prometheus to scrape."""

    port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of `/metrics`; 0: any free one; null: none is served."
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. Nobody is asked for a password: the default is for this machine only.",
    )


class TrainerConfig(Section):
    """The trainer's nodes, and the run as a whole."""

    nnodes: PositiveInt = Field(default=1, description="Trainer nodes.")
    n_gpus_per_node: PositiveInt = Field(default=1, description="Devices per trainer node.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="`cpu`: a device is one pinned core.")
    total_epochs: PositiveInt = Field(default=1, description="Passes over the training data.")
    total_training_steps: PositiveInt | None = Field(
        default=None, description="Global steps (`trainer.v1`); null: until the data end."
    )
    project_name: str = Field(default="swingshift", description="Project, for metric services.")
    experiment_name: str = Field(default="train", description="Name of the run, for metric services.")
    logger: list[LoggerName] = Field(
        default=["console", "jsonl"], description="Where metrics go. `jsonl` is always written, named or not."
    )
    prometheus: PrometheusConfig = PrometheusConfig()
    default_local_dir: str = Field(default="runs/train", min_length=1, description="The run directory.")
    overwrite: bool = Field(default=False, description="Clear an existing run directory first.")
    resume_mode: Literal["auto", "disable", "resume_path"] = Field(
        default="disable",
        description="`auto`: go on from the newest checkpoint in the run directory, if any.",
    )
    resume_from_path: str | None = Field(default=None, description="Checkpoint folder of `resume_mode=resume_path`.")
    save_freq: int = Field(default=-1, ge=-1, description="Weight versions between checkpoints; -1: only at the end.")
    max_actor_ckpt_to_keep: PositiveInt | None = Field(default=2, description="Newest checkpoints kept; null: all.")
    test_freq: int = Field(default=-1, ge=-1, description="Weight versions between validations; -1: never.")
    log_samples_per_cycle: int = Field(default=2, ge=0, description="Groups a cycle written to samples.jsonl.")
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of the model, of training and of sampling.")
    v1: V1Config = V1Config()

    @property
    def num_devices(self) -> int:
        return self.nnodes * self.n_gpus_per_node

    @model_validator(mode="before")
    @classmethod
    def _one_logger_is_a_list(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("logger"), str):
            values = {**values, "logger": [values["logger"]]}
        return values


class SwingshiftConfig(Section):
    """The whole configuration of a training run."""

    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    actor_rollout_ref: ActorRolloutRefConfig = ActorRolloutRefConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    async_training: AsyncTrainingConfig = AsyncTrainingConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    global_profiler: ProfilerConfig = ProfilerConfig()

    @property
    def lends(self) -> bool:
        """Are the trainer's devices ever lent?"""
        v1 = self.trainer.v1
        return v1.lends if v1.in_steps else self.async_training.use_dynamic_resource_scheduling

    @property
    def train_batch_size(self) -> int:
        """Groups per global step."""
        product = self.actor_rollout_ref.actor.ppo_mini_batch_size * self.trainer.v1.parameter_sync_step
        return self.data.train_batch_size or product
