"""Placing device processes: one placement group for the trainer's nodes, one for the standalone ones."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from swingshift.cluster.device_actor import DeviceActor, DeviceSpec
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError

logger = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Device processes of one kind and the placement group that holds their devices."""

    names: tuple[str, ...]
    actors: tuple[Any, ...]
    group: PlacementGroup | None

    def kill(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        if self.group is not None:
            remove_placement_group(self.group)


def start_ray(config: SwingshiftConfig, device_kind: str) -> bool:
    """Connect to the cluster RAY_ADDRESS names, else start one on loopback. True if it is ours to shut down.

    A device on a machine without GPUs is one CPU as Ray counts them.
    """
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(**common)
        return False
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    num_devices = config.trainer.num_devices + config.rollout.num_devices
    ray.init(
        address="local",
        num_cpus=num_devices if device_kind == "cpu" else None,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        **common,
    )
    return True


async def place_trainer(config: SwingshiftConfig, device_kind: str, run_id: str) -> Pool:
    trainer = config.trainer
    key = "trainer.nnodes × trainer.n_gpus_per_node"
    group = await _reserve(trainer.nnodes, trainer.n_gpus_per_node, device_kind, f"{run_id}-train", key)
    specs = [
        DeviceSpec(f"hybrid-{i}", device_kind, i, rank=i, world_size=trainer.num_devices)
        for i in range(trainer.num_devices)
    ]
    return _start_pool(config, specs, trainer.n_gpus_per_node, group)


async def place_standalone(config: SwingshiftConfig, device_kind: str, run_id: str) -> Pool:
    rollout = config.rollout
    if rollout.nnodes == 0:
        return Pool((), (), None)
    key = "rollout.nnodes × rollout.n_gpus_per_node"
    group = await _reserve(rollout.nnodes, rollout.n_gpus_per_node, device_kind, f"{run_id}-rollout", key)
    first_core = config.trainer.num_devices
    specs = [DeviceSpec(f"standalone-{i}", device_kind, first_core + i) for i in range(rollout.num_devices)]
    return _start_pool(config, specs, rollout.n_gpus_per_node, group)


async def _reserve(num_nodes: int, per_node: int, device_kind: str, name: str, key: str) -> PlacementGroup:
    resource = "GPU" if device_kind == "cuda" else "CPU"
    bundle = {"CPU": float(per_node), resource: float(per_node)}
    strategy = "STRICT_SPREAD" if num_nodes > 1 else "PACK"
    group: PlacementGroup = placement_group([bundle] * num_nodes, strategy=strategy, name=name)
    try:
        async with asyncio.timeout(PLACEMENT_TIMEOUT_S):
            await group.ready()
    except TimeoutError:
        remove_placement_group(group)
        have = {k: v for k, v in ray.cluster_resources().items() if k in ("CPU", "GPU")}
        raise ConfigError(
            f"{key}: the cluster cannot place {num_nodes} node(s) with {per_node} {resource} each within "
            f"{PLACEMENT_TIMEOUT_S:g} s; it has {len(ray.nodes())} node(s) with {have} in all. "
            "Ask for less, or free devices"
        ) from None
    return group


def _start_pool(config: SwingshiftConfig, specs: list[DeviceSpec], per_node: int, group: PlacementGroup) -> Pool:
    remote_class = ray.remote(DeviceActor)
    actors = []
    for index, spec in enumerate(specs):
        on_node = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index // per_node)
        options = {"num_cpus": 1, "num_gpus": 1 if spec.kind == "cuda" else 0, "scheduling_strategy": on_node}
        # A group in flight holds one call for as long as it generates.
        calls = 2 * config.async_training.concurrent_samples_per_replica + 1000
        actors.append(remote_class.options(max_concurrency=calls, **options).remote(config, spec))
    return Pool(tuple(s.name for s in specs), tuple(actors), group)
