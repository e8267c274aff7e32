"""What cannot work in a scenario, across its sections. Raises ConfigError naming key, value and remedy."""

from __future__ import annotations

from collections.abc import Iterator

from swingshift.errors import ConfigError
from swingshift.schedule.base import build_policy
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_costs import replica_cost, trainer_cost
from swingshift.sim.scenario_world import num_groups, step_required_samples, to_world

MOST_RESPONSES = 10**9
LONGEST_CALL_S = 1e8
"""Of one response alone on an engine, of one collection, of one switch: a tenth of the simulator's deadlines."""
SHORTEST_STEP_S = 1e-12


def check_scenario(scenario: Scenario) -> None:
    _check_amount(scenario)
    schedule = scenario.async_training
    problem = split_problem(scenario) or _warmup_problem(scenario)
    if problem is not None:
        raise ConfigError(problem)
    build_policy(
        schedule.dynamic_schedule_policy,
        deactivate_ratio=schedule.dynamic_schedule_deactivate_ratio,
        only_hybrid=scenario.cluster.rollout_devices == 0,
    )
    _check_weights_fit(scenario)
    to_world(scenario)
    _check_durations(scenario)


def split_problem(scenario: Scenario) -> str | None:
    """Why this way of training cannot work with these devices, None if it can."""
    mode, cluster = scenario.v1.trainer_mode, scenario.cluster
    if mode in ("sync", "colocate_async"):
        if cluster.rollout_devices > 0:
            return (
                f"cluster.rollout_devices={cluster.rollout_devices}: v1.trainer_mode={mode} generates on the "
                "trainer's devices alone; set 0, or use v1.trainer_mode=separate_async"
            )
        return None
    if cluster.rollout_devices > 0:
        return None
    at_least = f"give at least {cluster.devices_per_replica}"
    if mode == "separate_async":
        return (
            f"cluster.rollout_devices=0: v1.trainer_mode=separate_async needs devices that only generate; "
            f"{at_least}, or use v1.trainer_mode=colocate_async"
        )
    if scenario.lends:
        return None
    return (
        "cluster.rollout_devices=0: without standalone devices nobody generates; set "
        f"async_training.use_dynamic_resource_scheduling=true or {at_least}"
    )


def _warmup_problem(scenario: Scenario) -> str | None:
    v1 = scenario.v1
    if v1.trainer_mode != "separate_async" or v1.warmup_batches > 0:
        return None
    return (
        f"v1.num_warmup_batches={v1.warmup_batches}: with nothing in flight before the first step, separate_async "
        "cannot run ahead of training; give at least 1, or use v1.trainer_mode=sync"
    )


def _check_amount(scenario: Scenario) -> None:
    """Of responses in a run and in a cycle."""
    n, workload = scenario.generation.n, scenario.workload
    key, value = ("num_cycles", workload.num_cycles)
    if workload.num_groups is not None:
        key, value = ("num_groups", workload.num_groups)
    for what, groups in (("a run", num_groups(scenario)), ("a cycle", step_required_samples(scenario))):
        if groups * n > MOST_RESPONSES:
            raise ConfigError(
                f"workload.{key}={value}: {what} of {groups * n:.3g} responses is beyond the {MOST_RESPONSES:.0e} "
                "that can be simulated; lower it, or the batches that a cycle is made of"
            )


def _check_weights_fit(scenario: Scenario) -> None:
    """Into the memory that an engine may use, with room for one token."""
    model, efficiency, size = scenario.model, scenario.efficiency, scenario.cluster.devices_per_replica
    if scenario.cost.kv_capacity_tokens is not None:
        shares = {1.0}
    else:
        shares = {efficiency.memory_fraction, efficiency.hybrid_memory_fraction or efficiency.memory_fraction}
    usable, weights = size * scenario.device.memory_bytes * min(shares), model.num_params * model.bytes_per_param
    if usable < weights + model.kv_bytes_per_token:
        raise ConfigError(
            f"cluster.devices_per_replica={size}: {weights / 1e9:.4g} GB of weights leave no room for a KV cache in "
            f"the {usable / 1e9:.4g} GB that a replica may use; give it more devices"
        )


def _check_durations(scenario: Scenario) -> None:
    for key, what, seconds in _durations(scenario):
        if seconds > LONGEST_CALL_S:
            raise ConfigError(
                f"{key}={_value(scenario, key):g}: {what} would take {seconds:.3g} s, beyond the "
                f"{LONGEST_CALL_S:.0e} that can be simulated; correct it, or what else in model, device, efficiency "
                "and cost determines that time"
            )
    for hybrid in (False, True):
        step_s = replica_cost(scenario, hybrid=hybrid).step_base_s
        if step_s < SHORTEST_STEP_S:
            raise ConfigError(
                f"efficiency.rollout_speed={scenario.efficiency.rollout_speed:g}: a decode step would take "
                f"{step_s:.3g} s; lower it, or give at least {SHORTEST_STEP_S:g} s"
            )


def _durations(scenario: Scenario) -> Iterator[tuple[str, str, float]]:
    """The key that most likely is to blame, what takes the time, and how long that is at most."""
    generation, train = scenario.generation, trainer_cost(scenario)
    longest = generation.prompt_length + generation.response_length
    for hybrid in (False, True):
        cost = replica_cost(scenario, hybrid=hybrid)
        slots = min(cost.max_num_seqs, step_required_samples(scenario) * generation.n)
        step_s = cost.step_base_s + slots * (cost.step_per_sequence_s + longest * cost.step_per_kv_token_s)
        blamed = _to_blame(scenario, "efficiency.hybrid_speed" if hybrid else "efficiency.rollout_speed")
        yield blamed, "prefilling the longest response again", longest * cost.prefill_per_token_s
        yield blamed, "decoding the longest response", generation.response_length * step_s
        switch_s = cost.wake_s + cost.sleep_s + train.offload_s + train.onload_s + train.sync_hybrid_s
        yield "device.host_bandwidth", "lending and taking back", switch_s
    yield "device.link_bandwidth", "a weight sync", train.publish_s + train.sync_standalone_s
    tokens = step_required_samples(scenario) * generation.n * longest
    per_token_s = train.per_token_s + train.old_log_prob_per_token_s + train.ref_per_token_s
    blamed = _to_blame(scenario, "efficiency.train_speed")
    yield blamed, "training on a cycle's longest responses", train.base_s + tokens * per_token_s


def _to_blame(scenario: Scenario, speed: str) -> str:
    """A speed, if it is far off, else what devices can do."""
    return speed if _value(scenario, speed) < 1e-3 or scenario.device.flops >= 1e9 else "device.flops"


def _value(scenario: Scenario, key: str) -> float:
    section, _, leaf = key.partition(".")
    return float(getattr(getattr(scenario, section), leaf))
