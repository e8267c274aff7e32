"""Placing device processes: one placement group for the trainer's nodes, one for the standalone ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from swingshift.cluster.device_actor import DeviceActor
from swingshift.cluster.specs import DeviceSpec
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError

logger = logging.getLogger(__name__)

PLACEMENT_TIMEOUT_S = 60.0
PATIENCE_S = 3.0
"""After this long people are told what is waited for."""


@dataclass(slots=True)
class Pool:
    """Device processes of one kind and the placement group that holds their devices.

    ``make(i)`` starts the process of the i-th device.
    """

    names: tuple[str, ...]
    actors: list[Any]
    group: PlacementGroup | None
    make: Callable[[int], Any]

    def replace(self, name: str) -> Any:
        """End what is left of a process and start another on its device; returns the new one, not ready yet."""
        index = self.names.index(name)
        ray.kill(self.actors[index])
        self.actors[index] = self.make(index)
        return self.actors[index]

    def kill(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        if self.group is not None:
            remove_placement_group(self.group)


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
        return Pool((), [], None, lambda index: None)
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
            ready = asyncio.ensure_future(group.ready())
            done, _ = await asyncio.wait([ready], timeout=PATIENCE_S)
            if not done:
                logger.warning("waiting for %d × %d free %ss: others use the cluster", num_nodes, per_node, resource)
            await ready
    except TimeoutError:
        remove_placement_group(group)
        free = ray.available_resources().get(resource, 0)
        raise ConfigError(
            f"{key}: others use the cluster; {num_nodes} × {per_node} {resource}s did not become free within "
            f"{PLACEMENT_TIMEOUT_S:g} s ({free:g} are now). Ask for less, or try again later"
        ) from None
    return group


def _start_pool(config: SwingshiftConfig, specs: list[DeviceSpec], per_node: int, group: PlacementGroup) -> Pool:
    remote_class = ray.remote(DeviceActor)

    def make(index: int) -> Any:
        spec = specs[index]
        on_node = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index // per_node)
        options = {"num_cpus": 1, "num_gpus": 1 if spec.kind == "cuda" else 0, "scheduling_strategy": on_node}
        # A group in flight holds one call for as long as it generates.
        calls = 2 * config.async_training.concurrent_samples_per_replica + 1000
        return remote_class.options(max_concurrency=calls, **options).remote(config, spec)

    return Pool(tuple(s.name for s in specs), [make(i) for i in range(len(specs))], group, make)
