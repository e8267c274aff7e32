"""Costs of a scenario: ``hardware``'s, unless a key of ``cost`` says otherwise, and all at the scenario's speeds."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from swingshift.errors import ConfigError
from swingshift.sim import hardware
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.scenario import Scenario
from swingshift.sim.trainer import TrainerCost

Cost = TypeVar("Cost", ReplicaCost, TrainerCost)


def replica_cost(scenario: Scenario, *, hybrid: bool = False) -> ReplicaCost:
    """Of one replica. Raises ConfigError if the longest response does not fit beside the weights."""
    efficiency, cost, size = scenario.efficiency, scenario.cost, scenario.cluster.devices_per_replica
    derived = hardware.replica_cost(
        _model(scenario),
        _device(scenario),
        devices_per_replica=size,
        efficiency=_efficiency(scenario),
        # Where the capacity is given, memory does not matter.
        memory_fraction=_memory_fraction(scenario, hybrid),
        max_num_seqs=scenario.generation.max_num_seqs,
    )
    timed = "step_base_s step_per_sequence_s step_per_kv_token_s prefill_per_token_s"
    given = _with_given(derived, scenario, f"{timed} kv_capacity_tokens abort_s sleep_s wake_s kv_cache_s resume_s")
    result = _at_speed(given, timed, efficiency.rollout_speed * (efficiency.hybrid_speed if hybrid else 1.0))
    longest = scenario.generation.prompt_length + scenario.generation.response_length
    if result.kv_capacity_tokens is not None and result.kv_capacity_tokens < longest:
        where = "cost.kv_capacity_tokens" if cost.kv_capacity_tokens else "cluster.devices_per_replica"
        raise ConfigError(
            f"{where}={cost.kv_capacity_tokens or size}: the KV cache of a replica has room for "
            f"{result.kv_capacity_tokens} tokens, but a response may have {longest} with its prompt; raise it, or "
            "lower generation.response_length"
        )
    return result


def trainer_cost(scenario: Scenario) -> TrainerCost:
    """Of the whole trainer; training is spread evenly over its devices."""
    num, token_s, training = scenario.cluster.trainer_devices, scenario.cost.train_token_device_s, scenario.training
    derived = hardware.trainer_cost(
        _model(scenario),
        _device(scenario),
        num_devices=num,
        devices_per_replica=scenario.cluster.devices_per_replica,
        efficiency=_efficiency(scenario),
        base_s=scenario.cost.train_base_s,
        old_log_prob=not training.bypass_mode,
        ref=training.use_kl_loss,
    )
    if token_s is not None:
        # What is given covers all phases.
        derived = replace(derived, per_token_s=token_s / num, old_log_prob_per_token_s=0.0, ref_per_token_s=0.0)
    given = _with_given(derived, scenario, "offload_s onload_s publish_s sync_standalone_s sync_hybrid_s")
    timed = "base_s per_token_s per_group_s old_log_prob_per_token_s ref_per_token_s adv_per_token_s"
    return _at_speed(given, timed, scenario.efficiency.train_speed)


def _at_speed(cost: Cost, keys: str, speed: float) -> Cost:
    return replace(cost, **{key: getattr(cost, key) / speed for key in keys.split()})


def _with_given(derived: Cost, scenario: Scenario, keys: str) -> Cost:
    """What ``cost`` sets replaces what was derived."""
    given = {key: getattr(scenario.cost, key) for key in keys.split()}
    return replace(derived, **{key: value for key, value in given.items() if value is not None})


def _memory_fraction(scenario: Scenario, hybrid: bool) -> float:
    if scenario.cost.kv_capacity_tokens is not None:
        return 1.0
    own = scenario.efficiency.hybrid_memory_fraction
    return own if hybrid and own is not None else scenario.efficiency.memory_fraction


def _model(scenario: Scenario) -> hardware.ModelSpec:
    model = scenario.model
    return hardware.ModelSpec(
        model.num_params, model.num_active_params, model.kv_bytes_per_token, model.bytes_per_param
    )


def _device(scenario: Scenario) -> hardware.DeviceSpec:
    return hardware.DeviceSpec(**scenario.device.model_dump())


def _efficiency(scenario: Scenario) -> hardware.Efficiency:
    efficiency = scenario.efficiency
    return hardware.Efficiency(
        decode_bandwidth=efficiency.decode_bandwidth,
        decode_mfu=efficiency.decode_mfu,
        prefill_mfu=efficiency.prefill_mfu,
        train_mfu=efficiency.train_mfu,
        step_overhead_s=efficiency.step_overhead_s,
    )
