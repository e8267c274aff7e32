"""What a run's devices will hold in each state, computed before anything is loaded. Pure.

States of a trainer's device: *training*; *switching*, when it is given away or taken back (the trainer rests and the
engine has its weights, but no KV cache yet, see ``runtime/controller.py``); *lent*. A rollout device has one state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from swingshift.config import memory_plan_parts as parts
from swingshift.config.memory_plan_model import ModelSizes
from swingshift.config.schema import SwingshiftConfig

MIB = 2**20
GIB = 2**30
PROCESS_BYTES = {"cpu": 300 * MIB, "cuda": 2 * GIB}
"""Host memory of a device process beside what is counted: measured on CPUs, assumed with CUDA's libraries."""
CONTROL_BYTES = 600 * MIB
"""The control process, Ray's own, and what all processes share of their libraries; measured."""
CUDA_BYTES = GIB
"""Assumed for a process's CUDA context, the workspaces of its libraries and fragmentation."""

Device = Literal["trainer", "rollout"]
State = Literal["training", "switching", "lent", "rollout"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """None: not known. On CPUs devices have no memory of their own, they share the machine's."""

    device_bytes: int | None
    machine_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What one device holds; parts in bytes, by name."""

    device: Device
    state: State
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class MachineState:
    """What a run's processes hold of this machine's memory while the trainer's devices are in ``state``."""

    state: State
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``slots``: responses that the KV caches of the replicas on such devices hold; 0: not even one fits."""

    device_kind: str
    sizes: ModelSizes
    dtype: str
    capacity: Capacity
    devices: tuple[DeviceState, ...]
    machine: tuple[MachineState, ...]
    slots: Mapping[Device, int]
    slot_bytes: int


def make_memory_plan(config: SwingshiftConfig, sizes: ModelSizes, device_kind: str, capacity: Capacity) -> MemoryPlan:
    """The plan of a configuration that passed ``check_config``. ``device_kind``: ``cpu`` or ``cuda``."""
    slots = {device: _num_slots(config, sizes, device_kind, capacity, device) for device in _engines(config)}
    devices = [_training(config, sizes)]
    if config.lends:
        devices += [_switching(config, sizes), _lent(config, sizes, device_kind, slots["trainer"])]
    if config.rollout.num_devices:
        devices.append(_rollout(config, sizes, slots["rollout"]))
    if device_kind == "cuda":
        devices = [DeviceState(d.device, d.state, {**d.parts, "CUDA": CUDA_BYTES}) for d in devices]
    return MemoryPlan(
        device_kind=device_kind,
        sizes=sizes,
        dtype=config.actor_rollout_ref.model.dtype,
        capacity=capacity,
        devices=tuple(devices),
        machine=tuple(_machine(config, sizes, device_kind, devices)),
        slots=slots,
        slot_bytes=parts.slot_bytes(config, sizes),
    )


# --- devices ------------------------------------------------------------------------------------------------


def _training(config: SwingshiftConfig, sizes: ModelSizes) -> DeviceState:
    return DeviceState(
        "trainer",
        "training",
        {**_resting(config, sizes), "activations": parts.activation_bytes(config, sizes)},
    )


def _switching(config: SwingshiftConfig, sizes: ModelSizes) -> DeviceState:
    """Nothing is gone yet and the engine's copies are there: more than at any moment of either direction."""
    copies = parts.packed_bytes(config, sizes)
    return DeviceState("trainer", "switching", {**_resting(config, sizes), "engine's copies": copies})


def _lent(config: SwingshiftConfig, sizes: ModelSizes, device_kind: str, num_slots: int) -> DeviceState:
    actor, held = config.actor_rollout_ref.actor, _resting(config, sizes)
    if actor.free_gradients:
        del held["gradients"]
    # On a CPU the device's memory is the host's: there is nowhere to offload to.
    if actor.optimizer_offload and device_kind == "cuda":
        del held["optimizer"]
    return DeviceState("trainer", "lent", {**held, **_engine(config, sizes, num_slots)})


def _rollout(config: SwingshiftConfig, sizes: ModelSizes, num_slots: int) -> DeviceState:
    weights = {"weights": parts.weight_bytes(config, sizes)}
    return DeviceState("rollout", "rollout", {**weights, **_engine(config, sizes, num_slots)})


def _resting(config: SwingshiftConfig, sizes: ModelSizes) -> dict[str, int]:
    """The trainer between two calls."""
    weights = parts.weight_bytes(config, sizes)
    held = {"weights": weights}
    if config.actor_rollout_ref.actor.use_kl_loss:
        held["reference model"] = weights
    held["gradients"] = parts.gradient_bytes(sizes)
    held["optimizer"] = parts.optimizer_bytes(config, sizes)
    return held


def _engine(config: SwingshiftConfig, sizes: ModelSizes, num_slots: int) -> dict[str, int]:
    return {
        "engine's copies": parts.packed_bytes(config, sizes),
        "KV cache": num_slots * parts.slot_bytes(config, sizes),
        "engine's work": parts.engine_work_bytes(config, sizes, num_slots),
    }


def _engines(config: SwingshiftConfig) -> tuple[Device, ...]:
    trainer: tuple[Device, ...] = ("trainer",) if config.lends else ()
    return (*trainer, "rollout") if config.rollout.num_devices else trainer


def _num_slots(
    config: SwingshiftConfig, sizes: ModelSizes, device_kind: str, capacity: Capacity, device: Device
) -> int:
    rollout, weights = config.actor_rollout_ref.rollout, parts.weight_bytes(config, sizes)
    available = rollout.kv_cache_memory_bytes
    if available is None and device_kind == "cuda" and capacity.device_bytes is not None:
        if device == "rollout":
            available = int(capacity.device_bytes * rollout.standalone_memory_utilization) - weights
        else:
            # The weights are the trainer's; they do not count against the engine's share.
            share = int(capacity.device_bytes * rollout.gpu_memory_utilization)
            available = min(share, capacity.device_bytes - weights)
    if available is None:
        return rollout.max_num_seqs
    return max(0, min(rollout.max_num_seqs, available // parts.slot_bytes(config, sizes)))


# --- this machine -------------------------------------------------------------------------------------------


def _machine(
    config: SwingshiftConfig, sizes: ModelSizes, device_kind: str, devices: list[DeviceState]
) -> list[MachineState]:
    by_state = {d.state: d for d in devices}
    states: list[State] = ["training", "lent"] if config.lends else ["training"]
    return [MachineState(state, _machine_parts(config, sizes, device_kind, by_state, state)) for state in states]


def _machine_parts(
    config: SwingshiftConfig,
    sizes: ModelSizes,
    device_kind: str,
    by_state: Mapping[State, DeviceState],
    state: State,
) -> dict[str, int]:
    num_trainer, num_rollout = config.trainer.num_devices, config.rollout.num_devices
    found: dict[str, int] = {}
    if device_kind == "cpu":
        found["trainer devices"] = num_trainer * by_state[state].total
        if num_rollout:
            found["rollout devices"] = num_rollout * by_state["rollout"].total
    elif state == "lent" and config.actor_rollout_ref.actor.optimizer_offload:
        found["offloaded optimizer"] = num_trainer * parts.optimizer_bytes(config, sizes)
    elif state == "training":
        # Tensors on their way to a checkpoint; at the start, models on their way to their devices.
        loading = (num_trainer + num_rollout) * parts.weight_bytes(config, sizes)
        found["checkpoint or loading"] = max(parts.optimizer_bytes(config, sizes), loading)
    if parts.keeps_proximal(config):
        found["weights of the cycle's start"] = num_trainer * parts.weight_bytes(config, sizes)
    if num_rollout:
        # The trainer's packed buffer, and in Ray's store the new one and the last.
        found["weight sync"] = 3 * parts.published_bytes(config, sizes)
    found["processes"] = CONTROL_BYTES + (num_trainer + num_rollout) * PROCESS_BYTES[device_kind]
    return found
