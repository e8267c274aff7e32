"""Costs of the simulated engine and trainer from first principles. Pure.

Units: seconds, bytes, operations (one multiplication and one addition are two). With ``d`` devices in a replica,
``W = num_params × bytes_per_param`` bytes of weights and efficiencies ``e``:

=========================  =================================================================
decode step                ``step_overhead + W / (d·memory_bandwidth·e)`` (all weights are read once)
… per response             ``2 · num_active_params / (d·flops·e)``
… per cached token         ``kv_bytes_per_token / (d·memory_bandwidth·e)``
prefill, per token         ``2 · num_active_params / (d·flops·e)``
KV capacity, tokens        ``(d·memory_bytes·memory_fraction − W) / kv_bytes_per_token``
sleep, wake                ``W / (d·host_bandwidth)`` (waking the KV cache copies nothing: ``kv_cache_s``)
sync of a standalone one   ``W / (d·link_bandwidth)``
sync of a hybrid one       ``2 · W / (d·memory_bandwidth)`` (read and written on the same devices)
training, per token        ``6 · num_active_params / (a·flops·e)`` on ``a`` devices
log-probs, per token       ``2 · num_active_params / (a·flops·e)``, old and reference each
publish                    ``W / (a·link_bandwidth)``
offload, onload            ``num_params · optimizer_bytes_per_param / (a·host_bandwidth)``
=========================  =================================================================

Left out: reading and computing overlap (the terms of a step are added: at worst twice too slow); operations of
attention over long contexts, in prefill and training; fewer experts read where a batch is tiny; communication inside
a replica and inside the trainer (put it into the efficiencies); recomputation of activations (8 instead of 6);
latencies and stragglers; bandwidth that several replicas share. Sleep is costed as a copy of the weights to the host
(level 1); level 2 drops them and takes less.
"""

from __future__ import annotations

from dataclasses import dataclass

from swingshift.errors import ConfigError
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost

FORWARD_OPS = 2
TRAIN_OPS = 6
"""Operations per active parameter and token: forward, and forward with backward."""


def _positive(spec: object, *keys: str) -> None:
    for key in keys:
        if getattr(spec, key) <= 0.0:
            raise ConfigError(f"{key}={getattr(spec, key):g} must be above 0")


def _at_least_one(**counts: int) -> None:
    for key, value in counts.items():
        if value < 1:
            raise ConfigError(f"{key}={value} must be at least 1")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """``num_active_params`` take part in one token (all of them in a dense model)."""

    num_params: float
    num_active_params: float
    kv_bytes_per_token: float
    bytes_per_param: float = 2.0

    def __post_init__(self) -> None:
        _positive(self, "num_params", "num_active_params", "kv_bytes_per_token", "bytes_per_param")
        if self.num_active_params > self.num_params:
            raise ConfigError(
                f"num_active_params={self.num_active_params:g} is more than num_params={self.num_params:g}; "
                "a dense model has as many of either"
            )

    @property
    def weight_bytes(self) -> float:
        return self.num_params * self.bytes_per_param


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One device: dense 16-bit operations a second, bytes a second (one direction), bytes."""

    name: str
    flops: float
    memory_bandwidth: float
    memory_bytes: float
    host_bandwidth: float
    """Between the device and the host's memory."""
    link_bandwidth: float
    """Of the device's share of the network between machines."""

    def __post_init__(self) -> None:
        _positive(self, "flops", "memory_bandwidth", "memory_bytes", "host_bandwidth", "link_bandwidth")


H20 = DeviceSpec("H20", 148e12, 4.0e12, 96e9, 64e9, 50e9)
H100 = DeviceSpec("H100", 989e12, 3.35e12, 80e9, 64e9, 50e9)
A100 = DeviceSpec("A100", 312e12, 2.039e12, 80e9, 32e9, 25e9)
DEVICES = {spec.name: spec for spec in (H20, H100, A100)}
"""The makers' figures for the SXM modules (A100: 80 GB), PCIe 5 (4) × 16 to the host, a port of 400 (200) Gb/s."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peak that are reached, and what a decode step takes beside (launches, sampling)."""

    decode_bandwidth: float = 0.7
    decode_mfu: float = 0.4
    prefill_mfu: float = 0.5
    train_mfu: float = 0.35
    step_overhead_s: float = 0.002

    def __post_init__(self) -> None:
        for key in ("decode_bandwidth", "decode_mfu", "prefill_mfu", "train_mfu"):
            value = getattr(self, key)
            if not 0.0 < value <= 1.0:
                raise ConfigError(f"{key}={value:g} is a share of the peak: give a number in (0, 1]")
        if self.step_overhead_s < 0.0:
            raise ConfigError(f"step_overhead_s={self.step_overhead_s:g} is negative; give seconds from 0 up")


def kv_capacity_tokens(
    model: ModelSpec, device: DeviceSpec, devices_per_replica: int = 1, memory_fraction: float = 0.85
) -> int:
    """Tokens that fit beside the weights. Raises ConfigError if none does."""
    _at_least_one(devices_per_replica=devices_per_replica)
    if not 0.0 < memory_fraction <= 1.0:
        raise ConfigError(f"memory_fraction={memory_fraction:g} is a share of memory: give a number in (0, 1]")
    usable = devices_per_replica * device.memory_bytes * memory_fraction
    capacity = int((usable - model.weight_bytes) / model.kv_bytes_per_token)
    if capacity < 1:
        raise ConfigError(
            f"devices_per_replica={devices_per_replica}: {model.weight_bytes / 1e9:.4g} GB of weights leave no room "
            f"for a KV cache in the {usable / 1e9:.4g} GB that a replica may use; give it more devices"
        )
    return capacity


def replica_cost(
    model: ModelSpec,
    device: DeviceSpec,
    *,
    devices_per_replica: int = 1,
    efficiency: Efficiency = Efficiency(),
    memory_fraction: float = 0.85,
    max_num_seqs: int = 256,
    abort_s: float = 0.01,
    kv_cache_s: float = 0.05,
) -> ReplicaCost:
    """What one replica of ``devices_per_replica`` devices costs. Raises ConfigError if the model does not fit."""
    _at_least_one(devices_per_replica=devices_per_replica, max_num_seqs=max_num_seqs)
    bandwidth = devices_per_replica * device.memory_bandwidth * efficiency.decode_bandwidth
    flops = devices_per_replica * device.flops
    token_ops = FORWARD_OPS * model.num_active_params
    to_host_s = model.weight_bytes / (devices_per_replica * device.host_bandwidth)
    return ReplicaCost(
        step_base_s=efficiency.step_overhead_s + model.weight_bytes / bandwidth,
        step_per_sequence_s=token_ops / (flops * efficiency.decode_mfu),
        step_per_kv_token_s=model.kv_bytes_per_token / bandwidth,
        prefill_per_token_s=token_ops / (flops * efficiency.prefill_mfu),
        max_num_seqs=max_num_seqs,
        kv_capacity_tokens=kv_capacity_tokens(model, device, devices_per_replica, memory_fraction),
        abort_s=abort_s,
        sleep_s=to_host_s,
        wake_s=to_host_s,
        kv_cache_s=kv_cache_s,
    )


def trainer_cost(
    model: ModelSpec,
    device: DeviceSpec,
    *,
    num_devices: int,
    devices_per_replica: int = 1,
    efficiency: Efficiency = Efficiency(),
    base_s: float = 0.0,
    old_log_prob: bool = True,
    ref: bool = False,
    adv_per_token_s: float = 0.0,
    optimizer_bytes_per_param: float = 12.0,
) -> TrainerCost:
    """What a trainer on ``num_devices`` costs; prompts are processed too, once per response.

    ``devices_per_replica`` is that of the replicas it sends its weights to. 12 bytes a parameter are Adam's two
    moments and the 32-bit weights.
    """
    _at_least_one(num_devices=num_devices, devices_per_replica=devices_per_replica)
    active_s = model.num_active_params / (num_devices * device.flops * efficiency.train_mfu)
    state_s = model.num_params * optimizer_bytes_per_param / (num_devices * device.host_bandwidth)
    return TrainerCost(
        base_s=base_s,
        per_token_s=TRAIN_OPS * active_s,
        per_group_s=0.0,
        old_log_prob_per_token_s=FORWARD_OPS * active_s if old_log_prob else 0.0,
        ref_per_token_s=FORWARD_OPS * active_s if ref else 0.0,
        adv_per_token_s=adv_per_token_s,
        counts_prompts=True,
        offload_s=state_s,
        onload_s=state_s,
        publish_s=model.weight_bytes / (num_devices * device.link_bandwidth),
        sync_standalone_s=model.weight_bytes / (devices_per_replica * device.link_bandwidth),
        sync_hybrid_s=2 * model.weight_bytes / (devices_per_replica * device.memory_bandwidth),
    )
