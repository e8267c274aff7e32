"""Section ``trainer.v1``: training in global steps over a replay buffer, instead of fully asynchronously."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator

from swingshift.config.section import Section

TrainerMode = Literal["fully_async", "separate_async", "colocate_async", "sync"]


class HybridRolloutConfig(Section):
    """When `separate_async` lends the trainer's devices between steps."""

    enable_switch: bool = Field(default=False, description="Lend them at all.")
    switch_threshold_ratio: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Share of `data.train_batch_size` that must be sampleable before lent devices go back.",
    )
    adaptive_switch_threshold: bool = Field(default=True, description="Let the ratio follow idle and calm steps.")
    switch_threshold_step_up: float = Field(default=0.1, ge=0, description="Added to the ratio when steps are idle.")
    switch_threshold_step_down: float = Field(default=0.05, ge=0, description="Taken off it when steps are calm.")
    switch_threshold_release_steps: PositiveInt = Field(
        default=2, description="Steps of one kind in a row before the ratio moves."
    )
    switch_cost_window_size: PositiveInt = Field(
        default=3, description="Switches of each direction whose durations are averaged."
    )
    idle_threshold_ratio: float = Field(
        default=0.01, ge=0, description="A step was idle if it waited for groups longer than this share of it."
    )
    per_sample_time_decay: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="0: time per sample is an average over the whole run. Else the weight a step loses per step.",
    )
    measure_scaling_factor: bool = Field(
        default=False, description="Measure what lending adds to rollout, instead of taking it from device counts."
    )
    benefit_margin: float = Field(
        default=0.0,
        ge=0,
        description="Standard deviations of recent times per sample by which the expected benefit is lowered.",
    )


class SeparateAsyncConfig(Section):
    """Mode `separate_async`."""

    hybrid_rollout: HybridRolloutConfig = HybridRolloutConfig()


class ReplayBufferConfig(Section):
    """Which groups may be trained on, and when they are replaced."""

    max_off_policy_threshold: PositiveInt | None = Field(
        default=8, description="Age in steps that a group may have; null: any."
    )
    max_off_policy_strategy: Literal["drop", "wait"] = Field(
        default="drop",
        description="`drop`: replace finished groups beyond the threshold. `wait`: sample nothing while a group in "
        "flight has reached it.",
    )
    path: str | None = Field(default=None, description="`module:Class` of your own, built around the usual buffer.")

    @field_validator("path")
    @classmethod
    def _names_a_class(cls, path: str | None) -> str | None:
        if path is not None and not all(part.isidentifier() for part in path.replace(":", ".").split(".")):
            raise ValueError("does not name a class; write module:Class")
        if path is not None and path.count(":") != 1:
            raise ValueError("does not name a class; write module:Class")
        return path


class V1Config(Section):
    """How training proceeds."""

    trainer_mode: TrainerMode = Field(
        default="fully_async",
        description="`fully_async`: section `async_training`. The others train in global steps: `separate_async` "
        "with rollout nodes of its own, `colocate_async` and `sync` on the trainer's devices alone.",
    )
    parameter_sync_step: PositiveInt = Field(
        default=4, description="Mini-batches per global step, after which weights are synced."
    )
    num_warmup_batches: int | None = Field(
        default=None,
        ge=0,
        description="Batches in flight before the first step; null: 1, and 0 in mode `sync`.",
    )
    separate_async: SeparateAsyncConfig = SeparateAsyncConfig()
    replay_buffer: ReplayBufferConfig = ReplayBufferConfig()

    @property
    def in_steps(self) -> bool:
        return self.trainer_mode != "fully_async"

    @property
    def warmup_batches(self) -> int:
        if self.num_warmup_batches is not None:
            return self.num_warmup_batches
        return 0 if self.trainer_mode == "sync" else 1

    @property
    def lends(self) -> bool:
        """In global steps: are the trainer's devices ever lent?"""
        return self.trainer_mode != "separate_async" or self.separate_async.hybrid_rollout.enable_switch

    def switch_options(self) -> dict[str, Any]:
        return self.separate_async.hybrid_rollout.model_dump()


class FilterGroupsConfig(Section):
    """Groups that teach nothing (training in global steps only)."""

    enable: bool = Field(default=False, description="Replace groups whose responses all have the same metric.")
    metric: Literal["reward", "response_length"] = Field(default="reward", description="The metric.")
    max_num_gen_batches: PositiveInt = Field(
        default=10, description="Batches replaced in a row without a group of use before the run ends."
    )


class DisaggregationConfig(Section):
    """Prefill and decoding on different replicas."""

    enable: bool = Field(default=False, description="No engine here can do it yet.")
