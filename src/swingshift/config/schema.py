"""The configuration schema: every key, its type, its default and what it means.

Key paths are those of the field's published framework wherever it has one, so that overrides can be pasted.
``model_validator`` holds checks within one section; ``config/checks.py`` holds those that cross sections.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)



# --- data -----------------------------------------------------------------------------------------------------


class DataConfig(Section):
    """Where prompts come from."""

    train_files: list[str] = Field(
        ["builtin:sort_digits"],
        description="JSONL or Parquet files, or one built-in task (`builtin:sort_digits`, `builtin:add`) "
        "or a reasoning-gym data set (`reasoning_gym:chain_sum`).",
    )
    val_files: list[str] = Field([], description="Same forms as `train_files`; validation needs them.")
    prompt_key: str = Field("prompt", description="Column with a string or a list of chat messages.")
    answer_key: str = Field("answer", description="Column with the reference answer, passed to the reward.")
    task_options: dict[str, Any] = Field({}, description="Options of a built-in task or reasoning-gym data set.")
    size: PositiveInt = Field(4096, description="Number of prompts a generated data source makes.")
    max_prompt_length: PositiveInt = Field(512, description="Tokens. Longer prompts are an error or dropped.")
    filter_overlong_prompts: bool = Field(False, description="Drop prompts over the limit instead of failing.")
    shuffle: bool = True
    seed: int = 0

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
        None, description="A built-in reward. Unset: the task's own, else `exact_match`."
    )
    path: str | None = Field(None, description="`file.py:function` of your own; wins over `name`.")
    timeout_s: float = Field(30.0, gt=0, description="Deadline for scoring one group.")
    num_workers: PositiveInt = Field(1, description="Worker processes that score groups.")
    max_retries: int = Field(1, ge=0, description="Further tries after a failed or late score.")


# --- model, actor, rollout ------------------------------------------------------------------------------------


class WarmStartConfig(Section):
    """Supervised warm start of `model.path=builtin:tiny` on the built-in task's own solutions."""

    steps: int = Field(100, ge=0)
    batch_size: PositiveInt = 128
    lr: float = Field(3e-3, gt=0)


class ModelConfig(Section):
    path: str = Field("builtin:tiny", description="Hugging Face folder or hub id, or `builtin:tiny`.")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    trust_remote_code: bool = False
    hidden_size: PositiveInt = Field(64, description="Of `builtin:tiny`.")
    num_layers: PositiveInt = Field(3, description="Of `builtin:tiny`.")
    num_heads: PositiveInt = Field(2, description="Of `builtin:tiny`.")
    warm_start: WarmStartConfig = WarmStartConfig()


class OptimConfig(Section):
    lr: float = Field(1e-6, gt=0)
    lr_warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear warm-up.")
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)


class ActorConfig(Section):
    ppo_mini_batch_size: PositiveInt = Field(256, description="Sample groups (prompts) per optimizer step.")
    ppo_epochs: PositiveInt = 1
    ppo_max_token_len_per_gpu: PositiveInt = Field(
        16384, description="Tokens (padding included) of one forward/backward micro-batch."
    )
    clip_ratio: float = Field(0.2, gt=0)
    clip_ratio_low: float | None = Field(None, gt=0, description="Falls back to `clip_ratio`.")
    clip_ratio_high: float | None = Field(None, gt=0, description="Falls back to `clip_ratio`.")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = "token-mean"
    entropy_coeff: float = Field(0.0, ge=0)
    use_kl_loss: bool = False
    kl_loss_coef: float = Field(0.001, ge=0)
    kl_loss_type: Literal["kl", "k2", "low_var_kl"] = "low_var_kl"
    grad_clip: float = Field(1.0, gt=0, description="Maximum gradient norm.")
    optim: OptimConfig = OptimConfig()
    optimizer_offload: bool = Field(
        True, description="While the device is lent, keep optimizer state in host memory."
    )
    free_gradients: bool = Field(True, description="While the device is lent, free gradients.")

    @property
    def clip_low(self) -> float:
        return self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def clip_high(self) -> float:
        return self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high


class CheckpointEngineConfig(Section):
    backend: Literal["object_store", "collective"] = Field(
        "object_store",
        description="How weights reach standalone replicas: Ray's object store, or a torch.distributed broadcast "
        "(NCCL on GPUs, gloo otherwise).",
    )
    update_weights_bucket_megabytes: PositiveInt = 512


class ValKwargsConfig(Section):
    temperature: float = Field(0.0, ge=0)
    n: PositiveInt = 1


class RolloutEngineConfig(Section):
    """`actor_rollout_ref.rollout`: the engines."""

    name: Literal["torch"] = Field("torch", description="Inference engine.")
    n: PositiveInt = Field(8, description="Responses per prompt.")
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    response_length: PositiveInt = Field(512, description="Tokens a response may have.")
    max_num_seqs: PositiveInt = Field(64, description="Responses one replica decodes at once.")
    gpu_memory_utilization: float = Field(
        0.5, gt=0, le=1, description="Memory fraction of hybrid replicas (they share the device with training)."
    )
    standalone_gpu_memory_utilization: float | None = Field(
        None, gt=0, le=1, description="Memory fraction of standalone replicas; null: `gpu_memory_utilization`."
    )
    kv_cache_memory_bytes: PositiveInt | None = Field(
        None, description="KV cache of one replica; unset: from the memory fraction (GPU) or `max_num_seqs` (CPU)."
    )
    free_cache_engine: bool = Field(True, description="Free the KV cache during weight syncs and sleep.")
    partial_rollout: bool = Field(
        True, description="Resume aborted responses with the tokens they have; off: start them over."
    )
    routing: Literal["least_inflight", "least_tokens", "power_of_two", "deterministic"] = "least_inflight"
    checkpoint_engine: CheckpointEngineConfig = CheckpointEngineConfig()
    val_kwargs: ValKwargsConfig = ValKwargsConfig()

    @property
    def standalone_memory_utilization(self) -> float:
        own = self.standalone_gpu_memory_utilization
        return self.gpu_memory_utilization if own is None else own


class ActorRolloutRefConfig(Section):
    model: ModelConfig = ModelConfig()
    actor: ActorConfig = ActorConfig()
    rollout: RolloutEngineConfig = RolloutEngineConfig()


class AlgorithmConfig(Section):
    adv_estimator: Literal["grpo"] = "grpo"
    norm_adv_by_std_in_grpo: bool = Field(True, description="Divide group-centred rewards by their std.")


# --- the asynchronous part ------------------------------------------------------------------------------------


class AsyncTrainingConfig(Section):
    staleness_threshold: float = Field(
        0.1, ge=0, description="Groups that may be submitted ahead, as a fraction of one sync cycle."
    )
    trigger_parameter_sync_step: PositiveInt = Field(4, description="Collections per weight sync.")
    require_batches: PositiveInt = Field(1, description="Mini-batches per collection.")
    concurrent_samples_per_replica: PositiveInt = Field(16, description="Groups in flight per active replica.")
    use_dynamic_resource_scheduling: bool = Field(False, description="Lend the trainer's devices to rollout.")
    dynamic_schedule_policy: str = Field(
        "default", description="A registered name, an entry point of `swingshift.policies`, or `module:Class`."
    )
    dynamic_schedule_deactivate_ratio: float = Field(
        0.3, gt=0, le=1, description="Share of a cycle's groups to buffer before the devices go back."
    )
    dynamic_schedule_enable_rebalance: bool = Field(
        True, description="Redistribute requests in flight after an activation."
    )
    dynamic_schedule_policy_kwargs: dict[str, Any] = Field({}, description="Further arguments of a policy.")
    max_sample_retries: int = Field(2, ge=0, description="Further tries of a group whose generation failed.")
    max_failed_ratio: float = Field(
        0.1, ge=0, le=1, description="The run ends with an error beyond this share of failed groups."
    )
    replica_wait_timeout_s: float = Field(
        3600.0, gt=0, description="How long a request waits for any replica before the run ends with an error."
    )
    call_timeout_s: float = Field(600.0, gt=0, description="Deadline of one remote call (generation excepted).")
    sticky_cache_size: PositiveInt = Field(10_000, description="Requests remembered for sticky routing.")


class RolloutConfig(Section):
    """`rollout`: the standalone rollout nodes."""

    nnodes: int = Field(1, ge=0, description="0: no standalone nodes, training and rollout share devices.")
    n_gpus_per_node: PositiveInt = 1
    total_rollout_steps: PositiveInt | None = Field(
        None, description="Groups to produce in all; unset: `trainer.total_epochs` over the data."
    )

    @property
    def num_devices(self) -> int:
        return self.nnodes * self.n_gpus_per_node


LoggerName = Literal["console", "jsonl"]


class TrainerConfig(Section):
    nnodes: PositiveInt = 1
    n_gpus_per_node: PositiveInt = 1
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`cpu`: a device is one pinned core.")
    total_epochs: PositiveInt = 1
    project_name: str = "swingshift"
    experiment_name: str = "train"
    logger: list[LoggerName] = ["console", "jsonl"]
    default_local_dir: str = Field("runs/train", description="The run directory.")
    overwrite: bool = Field(False, description="Clear an existing run directory first.")
    resume_mode: Literal["auto", "disable", "resume_path"] = Field(
        "disable", description="`auto`: go on from the newest checkpoint in the run directory, if any."
    )
    resume_from_path: str | None = None
    save_freq: int = Field(-1, description="Weight versions between checkpoints; -1: only at the end.")
    max_actor_ckpt_to_keep: PositiveInt | None = Field(2, description="Newest checkpoints kept; null: all.")
    test_freq: int = Field(-1, description="Weight versions between validations; -1: never.")
    log_samples_per_cycle: int = Field(2, ge=0, description="Groups a cycle written to samples.jsonl.")
    seed: int = 0

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
