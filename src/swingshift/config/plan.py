"""What a run would use, computed from its configuration alone: devices, replicas, budget, syncs, memory."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from swingshift.config.schema import SwingshiftConfig
from swingshift.core.staleness import BudgetNumbers
from swingshift.core.types import ReplicaKind

_GENERATED = ("builtin:", "reasoning_gym:")
_GPU_DRIVERS = ("nv*", "kfd", "dxg")
"""What the drivers of NVIDIA, of AMD, and of GPUs below Windows put into /dev."""


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Inference replicas of one kind, one device each."""

    kind: ReplicaKind
    num_replicas: int
    memory_fraction: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run. Counts are sample groups where not said otherwise."""

    mode: str
    """``static``, ``dynamic`` or ``colocated``; in global steps the trainer mode."""
    in_steps: bool
    policy: str | None
    """None in static mode, where nothing is ever lent."""
    device_kind: str
    """``cpu`` (a device is one pinned core) or ``cuda``."""
    num_trainer_devices: int
    num_rollout_devices: int
    hybrid: ReplicaPlan
    standalone: ReplicaPlan
    budget: BudgetNumbers
    wait_threshold_wanted: int
    """``int(deactivate_ratio × step_required_samples)``."""
    wait_threshold: int
    """The same, clamped to what the budget and the data allow."""
    num_groups: int | None
    """Groups in all; None when only reading the data will tell."""
    num_sync_cycles: int | None
    kv_cache_memory_bytes: int | None
    max_num_seqs: int
    run_dir: str

    @property
    def max_concurrent_standalone(self) -> int:
        return self.budget.max_concurrent_samples(self.standalone.num_replicas)

    @property
    def max_concurrent_all(self) -> int:
        return self.budget.max_concurrent_samples(self.standalone.num_replicas + self.hybrid.num_replicas)

    @property
    def num_collections(self) -> int | None:
        return None if self.num_groups is None else math.ceil(self.num_groups / self.budget.required_samples)


def budget_numbers(config: SwingshiftConfig) -> BudgetNumbers:
    asynchronous = config.async_training
    if config.trainer.v1.in_steps:
        # A step takes a batch of mini-batches; what is in flight ahead of it is the warm-up.
        return BudgetNumbers(
            ppo_mini_batch_size=config.actor_rollout_ref.actor.ppo_mini_batch_size,
            require_batches=1,
            trigger_parameter_sync_step=config.trainer.v1.parameter_sync_step,
            staleness_threshold=float(config.trainer.v1.warmup_batches),
            concurrent_samples_per_replica=asynchronous.concurrent_samples_per_replica,
        )
    return BudgetNumbers(
        ppo_mini_batch_size=config.actor_rollout_ref.actor.ppo_mini_batch_size,
        require_batches=asynchronous.require_batches,
        trigger_parameter_sync_step=asynchronous.trigger_parameter_sync_step,
        staleness_threshold=asynchronous.staleness_threshold,
        concurrent_samples_per_replica=asynchronous.concurrent_samples_per_replica,
    )


def expected_groups(config: SwingshiftConfig, num_prompts: int | None = None) -> int | None:
    """Groups the run will train on at most; None when that depends on files nobody has read yet."""
    if num_prompts is None and all(file.startswith(_GENERATED) for file in config.data.train_files):
        num_prompts = config.data.size * len(config.data.train_files)
    available = None if num_prompts is None else num_prompts * config.trainer.total_epochs
    steps, per_step = config.trainer.total_training_steps, budget_numbers(config).step_required_samples
    in_steps = None if steps is None else steps * per_step
    limits = [limit for limit in (available, config.rollout.total_rollout_steps, in_steps) if limit is not None]
    return min(limits, default=None)


def count_cycles(config: SwingshiftConfig, num_prompts: int | None = None) -> int | None:
    """Sync cycles (global steps) the run will have at most; None when nobody can say yet."""
    groups = expected_groups(config, num_prompts)
    return None if groups is None else math.ceil(groups / budget_numbers(config).step_required_samples)


def make_plan(config: SwingshiftConfig, device_kind: str) -> Plan:
    """The plan of a configuration that passed ``check_config``. ``device_kind``: ``cpu`` or ``cuda``."""
    engine, trainer = config.actor_rollout_ref.rollout, config.trainer
    is_dynamic, in_steps = config.lends, trainer.v1.in_steps
    budget, num_groups = budget_numbers(config), expected_groups(config)
    ratio = config.async_training.dynamic_schedule_deactivate_ratio
    if in_steps:
        switch = trainer.v1.separate_async.hybrid_rollout
        ratio = switch.switch_threshold_ratio if trainer.v1.trainer_mode == "separate_async" else 1.0
    wanted = int(ratio * budget.step_required_samples)
    ceiling = budget.max_required_samples if num_groups is None else min(budget.max_required_samples, num_groups)
    num_hybrid = trainer.num_devices if is_dynamic else 0
    return Plan(
        mode=_mode(config),
        in_steps=in_steps,
        policy=_policy(config) if is_dynamic else None,
        device_kind=device_kind,
        num_trainer_devices=trainer.num_devices,
        num_rollout_devices=config.rollout.num_devices,
        hybrid=ReplicaPlan(ReplicaKind.HYBRID, num_hybrid, engine.gpu_memory_utilization),
        standalone=ReplicaPlan(
            ReplicaKind.STANDALONE, config.rollout.num_devices, engine.standalone_memory_utilization
        ),
        budget=budget,
        wait_threshold_wanted=wanted,
        wait_threshold=min(wanted, ceiling),
        num_groups=num_groups,
        num_sync_cycles=count_cycles(config),
        kv_cache_memory_bytes=engine.kv_cache_memory_bytes,
        max_num_seqs=engine.max_num_seqs,
        run_dir=trainer.default_local_dir,
    )


def resolve_device_kind(config: SwingshiftConfig) -> str:
    """``cpu`` or ``cuda``; looks at this machine (and imports torch, if it may have a GPU) only for ``auto``."""
    if config.trainer.device != "auto":
        return config.trainer.device
    if sys.platform == "linux" and not any(any(Path("/dev").glob(name)) for name in _GPU_DRIVERS):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _policy(config: SwingshiftConfig) -> str:
    if not config.trainer.v1.in_steps:
        return config.async_training.dynamic_schedule_policy
    return "step_switch" if config.trainer.v1.trainer_mode == "separate_async" else "every_step"


def _mode(config: SwingshiftConfig) -> str:
    if config.trainer.v1.in_steps:
        return config.trainer.v1.trainer_mode
    if config.rollout.nnodes == 0:
        return "colocated"
    return "dynamic" if config.async_training.use_dynamic_resource_scheduling else "static"


def plan_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """The plan for people: name, value, where it comes from. A row without a value is a heading."""
    return [*_device_rows(plan), *_budget_rows(plan), *_length_rows(plan), *_memory_rows(plan)]


def _device_rows(plan: Plan) -> list[tuple[str, str, str]]:
    unit = "pinned CPU core" if plan.device_kind == "cpu" else "GPU"
    policy = plan.policy or "none: the trainer's devices are never lent"
    return [
        ("devices", "", ""),
        ("mode", plan.mode, ""),
        (
            "policy",
            policy,
            "trainer.v1.trainer_mode" if plan.in_steps else "async_training.dynamic_schedule_policy",
        ),
        ("device", f"one {unit}", "trainer.device"),
        ("trainer devices", str(plan.num_trainer_devices), "trainer.nnodes × trainer.n_gpus_per_node"),
        ("rollout devices", str(plan.num_rollout_devices), "rollout.nnodes × rollout.n_gpus_per_node"),
        ("hybrid replicas", str(plan.hybrid.num_replicas), "one per trainer device that may be lent"),
        ("standalone replicas", str(plan.standalone.num_replicas), "one per rollout device"),
    ]


def _budget_rows(plan: Plan) -> list[tuple[str, str, str]]:
    budget = plan.budget
    rows = [("budget (sample groups)", "", ""), *(_step_rows(plan) if plan.in_steps else _cycle_rows(plan))]
    rows.append(
        (
            "max_concurrent_samples",
            f"{plan.max_concurrent_standalone} standalone, {plan.max_concurrent_all} with hybrid",
            f"min(active replicas × concurrent_samples_per_replica, {budget.max_required_samples})",
        )
    )
    if plan.policy is not None:
        clamped = plan.wait_threshold != plan.wait_threshold_wanted
        value = f"{plan.wait_threshold}{f' (clamped from {plan.wait_threshold_wanted})' if clamped else ''}"
        ratio = "switch_threshold_ratio × batch" if plan.in_steps else "deactivate_ratio × step_required_samples"
        rows.append(("wait threshold", value, f"int({ratio}), at the start"))
    return rows


def _cycle_rows(plan: Plan) -> list[tuple[str, str, str]]:
    budget = plan.budget
    return [
        ("required_samples", str(budget.required_samples), "ppo_mini_batch_size × require_batches"),
        (
            "step_required_samples",
            str(budget.step_required_samples),
            "required_samples × trigger_parameter_sync_step",
        ),
        (
            "max_required_samples",
            str(budget.max_required_samples),
            "int(step_required_samples × (1 + staleness_threshold)), also the queue's capacity",
        ),
        ("buffer_samples", str(budget.buffer_samples), "step_required_samples × staleness_threshold"),
    ]


def _step_rows(plan: Plan) -> list[tuple[str, str, str]]:
    budget = plan.budget
    return [
        ("mini-batch", str(budget.required_samples), "actor_rollout_ref.actor.ppo_mini_batch_size"),
        (
            "train_batch_size",
            str(budget.step_required_samples),
            "mini-batch × trainer.v1.parameter_sync_step, one global step",
        ),
        ("warm-up", str(budget.buffer_samples), "train_batch_size × trainer.v1.num_warmup_batches"),
    ]


def _length_rows(plan: Plan) -> list[tuple[str, str, str]]:
    groups, collections, cycles = (
        "known when the data are read" if count is None else str(count)
        for count in (plan.num_groups, plan.num_collections, plan.num_sync_cycles)
    )
    per = "parameter_sync_step" if plan.in_steps else "trigger_parameter_sync_step"
    what, whole = ("mini-batches", "global steps") if plan.in_steps else ("collections", "sync cycles")
    return [
        ("length", "", ""),
        ("sample groups", groups, _length_source(plan)),
        (what, collections, f"sample groups / {plan.budget.required_samples}"),
        (whole, cycles, f"{what} / {per}"),
        ("run directory", plan.run_dir, "trainer.default_local_dir"),
    ]


def _length_source(plan: Plan) -> str:
    keys = ["rollout.total_rollout_steps", *["trainer.total_training_steps"] * plan.in_steps]
    return f"{', '.join(keys)}, or trainer.total_epochs over the data"


def _memory_rows(plan: Plan) -> list[tuple[str, str, str]]:
    rows = [("memory", "", "")]
    if plan.kv_cache_memory_bytes is not None:
        size = f"{plan.kv_cache_memory_bytes / 2**20:.1f} MiB a replica"
        rows.append(("KV cache", size, "actor_rollout_ref.rollout.kv_cache_memory_bytes"))
    elif plan.device_kind == "cpu":
        rows.append(
            ("KV cache", f"{plan.max_num_seqs} responses a replica", "actor_rollout_ref.rollout.max_num_seqs")
        )
    if plan.device_kind != "cpu":
        hybrid, standalone = plan.hybrid.memory_fraction, plan.standalone.memory_fraction
        rows += [
            (
                "hybrid fraction",
                f"{hybrid:.2f}",
                "gpu_memory_utilization, only while lent; all of it trains otherwise",
            ),
            ("standalone fraction", f"{standalone:.2f}", "standalone_gpu_memory_utilization"),
        ]
    return rows
