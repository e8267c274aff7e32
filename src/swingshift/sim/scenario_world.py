"""From a scenario to a simulated world, and what the whole of its work costs."""

from __future__ import annotations

from pathlib import Path

from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_policy import EveryStepPolicy, StepPolicy
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.sim.bound import Split
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_costs import replica_cost, trainer_cost
from swingshift.sim.serving import Lengths
from swingshift.sim.workload import (
    constant_lengths,
    constant_reward,
    drifting_lengths,
    empirical_lengths,
    heavy_tailed_lengths,
    lognormal_lengths,
    read_lengths,
    tool_pauses,
)
from swingshift.sim.world import WorldConfig


def to_world(scenario: Scenario) -> WorldConfig:
    """Raises ConfigError where the parts of a scenario contradict each other."""
    cluster, schedule = scenario.cluster, scenario.async_training
    size, workload = cluster.devices_per_replica, scenario.workload
    v1, in_steps = scenario.v1, scenario.v1.in_steps
    has_tools = workload.num_turns > 1
    return WorldConfig(
        num_standalone=cluster.rollout_devices // size,
        num_hybrid=cluster.trainer_devices // size,
        devices_per_replica=size,
        lend=scenario.lends,
        policy=schedule.dynamic_schedule_policy,
        deactivate_ratio=schedule.dynamic_schedule_deactivate_ratio,
        enable_rebalance=schedule.dynamic_schedule_enable_rebalance,
        ppo_mini_batch_size=schedule.ppo_mini_batch_size,
        require_batches=1 if in_steps else schedule.require_batches,
        trigger_parameter_sync_step=_syncs_after(scenario),
        staleness_threshold=float(v1.warmup_batches) if in_steps else schedule.staleness_threshold,
        concurrent_samples_per_replica=schedule.concurrent_samples_per_replica,
        partial_rollout=schedule.partial_rollout,
        num_responses=scenario.generation.n,
        max_tokens=scenario.generation.response_length,
        num_prompts=num_groups(scenario),
        lengths=lengths_of(scenario),
        prompt_length=scenario.generation.prompt_length,
        seed=scenario.workload.seed,
        pauses=tool_pauses(workload.num_turns, workload.tool_wait_s, seed=workload.seed) if has_tools else None,
        replica_cost=replica_cost(scenario),
        hybrid_replica_cost=replica_cost(scenario, hybrid=True),
        trainer_cost=trainer_cost(scenario),
        reward=constant_reward(0.0, scenario.cost.reward_s),
        shared_cores=cluster.shared_cores,
        control_per_request_s=scenario.cost.control_per_request_s,
        # Simulated replicas cannot hang, and a virtual hour costs nothing.
        replica_wait_timeout_s=1e9,
        call_timeout_s=1e9,
        train_timeout_s=1e9,
        step_mode=_step_mode(scenario) if in_steps else None,
    )


def _step_mode(scenario: Scenario) -> StepMode:
    v1, cluster, batch = scenario.v1, scenario.cluster, step_required_samples(scenario)
    policy: StepPolicy = EveryStepPolicy(batch)
    if v1.trainer_mode == "separate_async":
        num_devices = cluster.rollout_devices + cluster.trainer_devices
        policy = StepSwitchPolicy(
            config=HybridRolloutSwitchConfig(**v1.switch_options()),
            train_batch_size=batch,
            parameter_sync_step=v1.parameter_sync_step,
            standalone_share=cluster.rollout_devices / num_devices,
        )
    rules = StoreRules(
        max_off_policy_threshold=v1.replay_buffer.max_off_policy_threshold,
        max_off_policy_strategy=OffPolicyStrategy(v1.replay_buffer.max_off_policy_strategy),
    )
    settings = StepSettings(
        train_batch_size=batch,
        parameter_sync_step=v1.parameter_sync_step,
        num_warmup_batches=v1.warmup_batches,
        needs_warmup=v1.trainer_mode == "separate_async",
    )
    return StepMode(settings, policy, rules)


def _syncs_after(scenario: Scenario) -> int:
    """Collections (mini-batches) per weight sync."""
    v1 = scenario.v1
    return v1.parameter_sync_step if v1.in_steps else scenario.async_training.trigger_parameter_sync_step


def num_groups(scenario: Scenario) -> int:
    if scenario.workload.num_groups is not None:
        return scenario.workload.num_groups
    return scenario.workload.num_cycles * step_required_samples(scenario)


def step_required_samples(scenario: Scenario) -> int:
    """Groups per sync cycle or global step."""
    schedule = scenario.async_training
    num_batches = 1 if scenario.v1.in_steps else schedule.require_batches
    return schedule.ppo_mini_batch_size * num_batches * _syncs_after(scenario)


def lengths_of(scenario: Scenario) -> Lengths:
    lengths, longest, seed = (
        scenario.workload.lengths,
        scenario.generation.response_length,
        scenario.workload.seed,
    )
    median, sigma = lengths.median, lengths.sigma
    match lengths.kind:
        case "constant":
            return constant_lengths(min(round(median), longest))
        case "lognormal":
            return lognormal_lengths(median, sigma, longest, seed)
        case "heavy_tailed":
            return heavy_tailed_lengths(
                median, sigma, longest, tail_share=lengths.tail_share, alpha=lengths.tail_alpha, seed=seed
            )
        case "drifting":
            return drifting_lengths(median, lengths.last_median, num_groups(scenario), sigma, longest, seed)
        case "empirical":
            values = lengths.values
            if values is None:
                assert lengths.file is not None
                values = read_lengths(Path(lengths.file))
            return empirical_lengths(values, longest, seed)


def split_of(scenario: Scenario) -> Split:
    cluster = scenario.cluster
    return Split(cluster.trainer_devices, cluster.rollout_devices, scenario.efficiency.hybrid_speed)
