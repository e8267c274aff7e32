"""A scenario: everything that defines a simulated run, as a small YAML file.

Sections ``async_training`` and ``v1`` (``trainer.v1``) have the key names of a training run's configuration. Costs
follow from ``model``, ``device`` and ``efficiency`` (see ``hardware``); keys of ``cost`` that are set replace what
would follow.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from swingshift.config.section import Section
from swingshift.config.step_schema import V1Config
from swingshift.errors import ConfigError

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]
"""Of one operation. Beyond a million, deadlines of the control plane would strike."""
Speed = Annotated[float, Field(ge=1e-6, le=1e6)]
Rate = Annotated[float, Field(ge=1e3, le=1e24)]
"""A second; also bytes of a memory."""
Share = Annotated[float, Field(ge=1e-6, le=1)]
Length = Annotated[float, Field(ge=1e-3, le=1e9)]


class ClusterSection(Section):
    """Devices and how they are split."""

    trainer_devices: Count = Field(default=1, description="Devices that train, and that may be lent.")
    rollout_devices: int = Field(
        default=1,
        ge=0,
        le=1_000_000,
        description="Devices that only generate. 0: training and rollout share the trainer's.",
    )
    devices_per_replica: Count = Field(
        default=1, description="Devices of one inference engine; both splits are whole multiples of it."
    )
    shared_cores: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="CPU cores on which devices (one each) and the control process run; 0: it has cores of its own.",
    )

    @model_validator(mode="after")
    def _whole_replicas(self) -> ClusterSection:
        for name in ("trainer_devices", "rollout_devices"):
            number, size = getattr(self, name), self.devices_per_replica
            if number % size:
                raise ValueError(f"{name}={number}: is no multiple of devices_per_replica={size}; change one of them")
        return self


class ModelSection(Section):
    """The model, as far as costs depend on it. Defaults: a dense one of 7.6 billion parameters."""

    num_params: float = Field(default=7.6e9, ge=1, le=1e18, description="All parameters.")
    num_active_params: float = Field(
        default=7.6e9, ge=1, le=1e18, description="Parameters a token passes through (fewer in a mixture of experts)."
    )
    kv_bytes_per_token: float = Field(
        default=57_344, ge=1e-3, le=1e12, description="Bytes of keys and values a token keeps, over all layers."
    )
    bytes_per_param: float = Field(default=2.0, ge=0.01, le=1000, description="Of the weights that generate.")

    @model_validator(mode="after")
    def _active_are_part_of_all(self) -> ModelSection:
        if self.num_active_params > self.num_params:
            raise ValueError(
                f"num_active_params={self.num_active_params:g}: is more than num_params={self.num_params:g}; a dense "
                "model has as many of either"
            )
        return self


class DeviceSection(Section):
    """One accelerator. Defaults: an H100 SXM with PCIe 5 to the host and a port of 400 Gb/s."""

    name: str = Field(default="H100", description="For tables.")
    flops: Rate = Field(default=989e12, description="Peak dense 16-bit floating-point operations a second.")
    memory_bandwidth: Rate = Field(default=3.35e12, description="Bytes a second.")
    memory_bytes: Rate = Field(default=80e9, description="Bytes.")
    host_bandwidth: Rate = Field(default=64e9, description="Bytes a second between device and host.")
    link_bandwidth: Rate = Field(default=50e9, description="Bytes a second over the network.")


class EfficiencySection(Section):
    """What share of the peak is reached, two speeds that a fit determines, and that of lent devices."""

    train_speed: Speed = Field(
        default=1.0, description="Of training, relative to what all else says, direct costs included."
    )
    rollout_speed: Speed = Field(default=1.0, description="Of prefill and decoding, likewise.")
    hybrid_speed: Speed = Field(
        default=1.0, description="Of a lent engine's prefill and decoding, relative to a standalone one's."
    )
    train_mfu: Share = Field(default=0.35, description="Share of `device.flops` in training.")
    prefill_mfu: Share = Field(default=0.5, description="Share of `device.flops` in prefill.")
    decode_mfu: Share = Field(default=0.4, description="Share of `device.flops` in decoding.")
    decode_bandwidth: Share = Field(default=0.7, description="Share of `device.memory_bandwidth` in decoding.")
    step_overhead_s: Seconds = Field(default=0.002, description="Of every decode step.")
    memory_fraction: Share = Field(default=0.85, description="Share of memory a standalone engine uses.")
    hybrid_memory_fraction: Share | None = Field(
        default=None, description="Share of memory a lent engine uses; unset: as much as a standalone one."
    )


class CostSection(Section):
    """Direct numbers; what is unset follows from model, device and efficiency."""

    step_base_s: float | None = Field(default=None, ge=1e-9, le=1e6, description="Of a decode step of one replica.")
    step_per_sequence_s: Seconds | None = Field(default=None, description="Per running response and step.")
    step_per_kv_token_s: Seconds | None = Field(default=None, description="Per cached token and step.")
    prefill_per_token_s: Seconds | None = Field(default=None, description="Of one replica.")
    kv_capacity_tokens: PositiveInt | None = Field(default=None, le=10**15, description="Of one replica.")
    train_token_device_s: Seconds | None = Field(
        default=None, description="Device-seconds of training on one token (prompts count once per response)."
    )
    train_base_s: Seconds = Field(default=0.0, description="Seconds of a collection whatever its tokens.")
    offload_s: Seconds | None = Field(default=None, description="Trainer state out, before lending.")
    onload_s: Seconds | None = Field(default=None, description="Trainer state in, after lending.")
    wake_s: Seconds | None = Field(
        default=None, description="Waking the weights of a lent replica; its KV cache takes `kv_cache_s`."
    )
    sleep_s: Seconds | None = Field(default=None, description="Putting a lent replica to sleep.")
    abort_s: Seconds = Field(default=0.05, description="Aborting what is in flight on one replica.")
    kv_cache_s: Seconds = Field(
        default=0.05, description="Freeing or allocating a KV cache at a sync, allocating it when a replica wakes."
    )
    resume_s: Seconds = Field(
        default=0.0, description="From the end of a sync, an activation or a rebalance until a replica generates."
    )
    publish_s: Seconds | None = Field(default=None, description="Gathering the weights for a sync.")
    sync_standalone_s: Seconds | None = Field(default=None, description="Weights to standalone replicas.")
    sync_hybrid_s: Seconds | None = Field(default=None, description="Weights to a lent replica.")
    reward_s: Seconds = Field(default=0.0, description="Scoring a group; does not hold up the others.")
    control_per_request_s: Seconds = Field(
        default=0.0,
        description="Core time of the control process per answer of an engine; matters only on shared cores.",
    )


class TrainingSection(Section):
    """Forward passes beside the update; without effect where `cost.train_token_device_s` gives all of training."""

    bypass_mode: bool = Field(
        default=False, description="Old log-probs are the rollout's: no forward pass computes them again."
    )
    use_kl_loss: bool = Field(default=False, description="A forward pass for the reference model's log-probs.")


class GenerationSection(Section):
    """What is generated, and how many responses a replica decodes at once."""

    n: PositiveInt = Field(default=8, le=10_000, description="Responses per prompt.")
    prompt_length: Count = Field(default=256, description="Tokens.")
    response_length: Count = Field(default=8192, description="Most tokens of a response.")
    max_num_seqs: Count = Field(default=256, description="Responses one replica decodes at once.")


LengthKind = Literal["constant", "lognormal", "heavy_tailed", "drifting", "empirical"]


class LengthsSection(Section):
    """How long responses are, in tokens; `generation.response_length` cuts them all."""

    kind: LengthKind = Field(default="lognormal", description="Distribution.")
    median: Length = Field(default=2000, description="Of `constant` the length itself; not of `empirical`.")
    sigma: float = Field(default=0.6, ge=0, le=10, description="Of the logarithm (not of `constant`, `empirical`).")
    tail_share: float = Field(default=0.1, ge=0, le=1, description="`heavy_tailed`: share of Pareto responses.")
    tail_alpha: float = Field(
        default=1.2, ge=0.1, le=1000, description="`heavy_tailed`: the smaller, the heavier the tail."
    )
    last_median: PositiveInt = Field(
        default=4000, le=10**9, description="`drifting`: the median at the end of the run."
    )
    file: str | None = Field(default=None, description="`empirical`: JSON list, or one whole number a line.")
    values: list[PositiveInt] | None = Field(
        default=None, min_length=1, description="`empirical`: the lengths themselves, each as likely as the others."
    )


class WorkloadSection(Section):
    """How much is trained on, and how long it is."""

    lengths: LengthsSection = LengthsSection()
    num_turns: Count = Field(default=1, description="Turns of a response; a tool call between two of them.")
    tool_wait_s: float = Field(default=5.0, ge=1e-6, le=1e6, description="Median seconds of a tool call.")
    num_cycles: Count = Field(default=20, description="Sync cycles.")
    num_groups: PositiveInt | None = Field(
        default=None, le=10**9, description="Sample groups instead of whole cycles."
    )
    seed: int = Field(default=0, description="Of all random draws.")

    @model_validator(mode="after")
    def _empirical_needs_lengths(self) -> WorkloadSection:
        lengths = self.lengths
        if lengths.kind != "empirical":
            return self
        if lengths.file is None and lengths.values is None:
            raise ValueError(
                "lengths.file=null: lengths.kind=empirical needs it; name a file of response lengths, or give "
                "lengths.values"
            )
        if lengths.file is not None and lengths.values is not None:
            raise ValueError(f"lengths.file={lengths.file}: lengths.values is there too; leave one of them out")
        return self


class AsyncSection(Section):
    """Staleness, weight syncs and lending; the key names of a training run."""

    ppo_mini_batch_size: Count = Field(default=64, description="Sample groups per optimizer step.")
    require_batches: Count = Field(default=1, description="Mini-batches per collection.")
    trigger_parameter_sync_step: Count = Field(default=4, description="Collections per weight sync.")
    staleness_threshold: float = Field(
        default=0.5, ge=0, le=1000, description="Groups that may be submitted ahead, as a fraction of one sync cycle."
    )
    concurrent_samples_per_replica: Count = Field(default=16, description="Groups in flight per active replica.")
    use_dynamic_resource_scheduling: bool = Field(default=True, description="Lend the trainer's devices to rollout.")
    dynamic_schedule_policy: str = Field(default="default", description="A registered name, or `module:Class`.")
    dynamic_schedule_deactivate_ratio: float = Field(
        default=0.6, gt=0, le=1, description="Share of a cycle's groups to buffer before the devices go back."
    )
    dynamic_schedule_enable_rebalance: bool = Field(
        default=True, description="Redistribute requests in flight after an activation."
    )
    partial_rollout: bool = Field(default=True, description="Continue aborted responses instead of starting over.")


class Scenario(Section):
    """A simulated run: cluster, model, workload, schedule."""

    name: str = Field(default="scenario", min_length=1, description="One word, for tables.")
    description: str = Field(default="", description="One sentence: what it is, what it shows.")
    sources: list[str] = Field(default=[], description="Where figures come from, one a line.")
    assumptions: list[str] = Field(default=[], description="What was assumed, one a line.")
    cluster: ClusterSection = ClusterSection()
    model: ModelSection = ModelSection()
    device: DeviceSection = DeviceSection()
    efficiency: EfficiencySection = EfficiencySection()
    cost: CostSection = CostSection()
    training: TrainingSection = TrainingSection()
    generation: GenerationSection = GenerationSection()
    workload: WorkloadSection = WorkloadSection()
    async_training: AsyncSection = AsyncSection()
    v1: V1Config = V1Config()

    @property
    def lends(self) -> bool:
        """Are the trainer's devices ever lent?"""
        return self.v1.lends if self.v1.in_steps else self.async_training.use_dynamic_resource_scheduling


def with_lending(scenario: Scenario, lending: bool) -> Scenario:
    """The same run with the trainer's devices lent or not. Raises ConfigError for modes that cannot do without."""
    if not scenario.v1.in_steps:
        schedule = scenario.async_training.model_copy(update={"use_dynamic_resource_scheduling": lending})
        return scenario.model_copy(update={"async_training": schedule})
    if not lending and scenario.v1.trainer_mode != "separate_async":
        raise ConfigError(
            f"v1.trainer_mode={scenario.v1.trainer_mode}: lends in every step, there is no such run without lending; "
            "use separate_async"
        )
    separate = scenario.v1.separate_async
    switch = separate.hybrid_rollout.model_copy(update={"enable_switch": lending})
    separate = separate.model_copy(update={"hybrid_rollout": switch})
    return scenario.model_copy(update={"v1": scenario.v1.model_copy(update={"separate_async": separate})})
