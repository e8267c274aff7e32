"""Every number of a scenario at every extreme: refused in one line that names the key, or a run comes to its end."""

from __future__ import annotations

import math

import pytest

from swingshift.config.keys import Key, all_keys
from swingshift.errors import ConfigError
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import Scenario
from swingshift.sim.work import work_of

NUMBERS = [key for key in all_keys(Scenario).values() if "number" in key.expects]
SHORT = [
    "workload.num_cycles=1",
    "workload.num_turns=2",
    "async_training.ppo_mini_batch_size=2",
    "async_training.trigger_parameter_sync_step=2",
    "v1.parameter_sync_step=2",
    "generation.n=2",
    "generation.response_length=64",
]
KINDS = [
    ["workload.lengths.kind=lognormal"],
    ["workload.lengths.kind=heavy_tailed"],
    ["workload.lengths.kind=drifting"],
]
IN_STEPS = ["v1.trainer_mode=separate_async", "v1.separate_async.hybrid_rollout.enable_switch=true"]
FRACTIONS = ["0", "5e-324", "1e-100", "1e-90", "1e-9", "1e-6", "200", "1e6", "1e9", "1e24"]
LARGE = ["1e29", "1e30", "1e300", "-1e308", ".nan", ".inf", str(2**63 - 1), str(2**63), str(10**30)]
WHOLE = ["0", "1", "-1", *LARGE]


def run(*overrides: str) -> None:
    """A mistake must name a key with its section, in one line; what is accepted must be computable."""
    try:
        scenario = load_scenario("rollout-bound-8", [*SHORT, *overrides])
    except ConfigError as error:
        [line] = str(error).splitlines()
        key = line.partition("=")[0]
        assert key in all_keys(Scenario) or key.rpartition("[")[0] in all_keys(Scenario), line
        assert ";" in line, line
        return
    summary = run_scenario(scenario)
    assert math.isfinite(summary["wall_s"]) and summary["wall_s"] > 0.0
    assert 0.0 <= summary["efficiency"] <= 1.0
    assert math.isfinite(work_of(scenario).rollout_s)


@pytest.mark.parametrize("key", NUMBERS, ids=lambda key: key.path)
def test_a_number_is_refused_or_its_run_ends(key: Key) -> None:
    numbers = WHOLE if "whole" in key.expects else [*FRACTIONS, *LARGE]
    for number in numbers:
        value = f"[{number}]" if "list" in key.expects else number
        kinds = KINDS if key.path.startswith("workload.lengths") else KINDS[:1]
        if key.path == "workload.lengths.values":
            kinds = [["workload.lengths.kind=empirical"]]
        if key.path.startswith("v1."):
            kinds = [IN_STEPS]
        for kind in kinds:
            run(*kind, f"{key.path}={value}")


@pytest.mark.parametrize(
    "overrides",
    [
        ["device.flops=1e3", "efficiency.prefill_mfu=1e-6"],
        ["device.flops=1e3", "efficiency.train_speed=1e-6"],
        ["device.host_bandwidth=1e3", "model.num_params=3e10"],
        ["device.link_bandwidth=1e3", "model.num_params=3e10"],
        ["cost.step_base_s=1e-9", "efficiency.rollout_speed=1e6"],
        ["cost.train_token_device_s=1e6", "efficiency.train_speed=1e-6"],
        ["cost.kv_capacity_tokens=1000000", "model.num_params=1e18", "model.num_active_params=1e18"],
        ["workload.lengths.median=1e9", "workload.lengths.sigma=10"],
        ["workload.lengths.median=1e9", "workload.lengths.tail_alpha=0.1", "workload.lengths.kind=heavy_tailed"],
        ["cost.abort_s=1e6", "cost.wake_s=1e6", "cost.offload_s=1e6", "cost.reward_s=1e6", "cost.resume_s=1e6"],
        ["cluster.shared_cores=1", "cost.control_per_request_s=1e6"],
        ["v1.trainer_mode=separate_async", "v1.parameter_sync_step=9223372036854775807"],
        ["async_training.require_batches=1000000", "async_training.trigger_parameter_sync_step=1000000"],
    ],
    ids=" ".join,
)
def test_numbers_that_only_together_are_too_much(overrides: list[str]) -> None:
    run(*overrides)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["model.num_active_params=1e12"], "model.num_active_params=1e+12"),
        (["model.num_params=1e12"], "cluster.devices_per_replica=1"),
        (["workload.lengths.sigma=200"], "workload.lengths.sigma=200"),
        (["cost.abort_s=1e20"], "cost.abort_s=1e+20"),
        (["efficiency.rollout_speed=1e-9"], "efficiency.rollout_speed=1e-09"),
    ],
)
def test_the_key_is_named_with_its_section(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scenario("rollout-bound-8", overrides)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{key}: ")
