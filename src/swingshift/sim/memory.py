"""What the devices of a scenario would hold, as far as a scenario says: weights, training state, KV cache. Pure.

A scenario's trainer shards its state evenly over its devices, as production trainers do; what activations take is
unknown. While lent, a device holds its share of an engine and no training state.
"""

from __future__ import annotations

from swingshift.config.memory_plan import GIB, DeviceState
from swingshift.errors import ConfigError
from swingshift.sim.scenario import ModelSection, Scenario
from swingshift.sim.scenario_costs import replica_cost

GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 12
"""Of a parameter: Adam's two moments and 32-bit weights."""
TIGHT = 0.9


def scenario_memory(scenario: Scenario) -> list[DeviceState]:
    """Raises ConfigError for a scenario whose KV cache cannot hold its longest response, and for one of no model."""
    _check_has_model(scenario)
    model, cluster = scenario.model, scenario.cluster
    trained = model.num_params / cluster.trainer_devices
    states = [
        DeviceState(
            "trainer",
            "training",
            {
                "weights": round(trained * model.bytes_per_param),
                "gradients": round(trained * GRADIENT_BYTES),
                "optimizer": round(trained * OPTIMIZER_BYTES),
            },
        )
    ]
    if scenario.lends:
        states.append(DeviceState("trainer", "lent", _engine(scenario, hybrid=True)))
    if cluster.rollout_devices:
        states.append(DeviceState("rollout", "rollout", _engine(scenario, hybrid=False)))
    return states


def has_model(scenario: Scenario) -> bool:
    """Where costs are given, as after a calibration, the default model is a placeholder."""
    cost = scenario.cost
    return cost.step_base_s is None or cost.train_token_device_s is None or scenario.model != ModelSection()


def _check_has_model(scenario: Scenario) -> None:
    if has_model(scenario):
        return
    raise ConfigError(
        f"model.num_params={scenario.model.num_params:g}: is the default, while cost.step_base_s and "
        "cost.train_token_device_s give the costs, so what the model holds is not known; set model.num_params, "
        "model.kv_bytes_per_token and device.memory_bytes to yours"
    )


def _engine(scenario: Scenario, *, hybrid: bool) -> dict[str, int]:
    size, model = scenario.cluster.devices_per_replica, scenario.model
    tokens = replica_cost(scenario, hybrid=hybrid).kv_capacity_tokens or 0
    return {
        "weights": round(model.num_params * model.bytes_per_param / size),
        "KV cache": round(tokens * model.kv_bytes_per_token / size),
    }


def memory_verdict(scenario: Scenario) -> tuple[list[str], list[str]]:
    """Errors and warnings, one line each."""
    capacity, errors, warnings = scenario.device.memory_bytes, [], []
    for state in scenario_memory(scenario):
        key, more = _KNOBS[state.state]
        value = getattr(scenario.cluster, key.partition(".")[2])
        what = f"{key}={value}: a {state.device} device while {state.state} takes {state.total / GIB:.1f} GiB of the "
        what += f"{capacity / GIB:.1f} GiB of one {scenario.device.name}"
        if state.total > capacity:
            at_least = -(-round(state.total * value) // int(capacity))
            errors.append(f"{what}; give at least {at_least} {more}")
        elif state.total > TIGHT * capacity:
            warnings.append(f"{what} ({state.total / capacity:.0%})")
    return errors, warnings


_KNOBS = {
    "training": ("cluster.trainer_devices", "devices, which share its state"),
    "lent": ("cluster.devices_per_replica", "devices to an engine, which share its weights"),
    "rollout": ("cluster.devices_per_replica", "devices to an engine, which share its weights"),
}
