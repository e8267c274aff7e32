"""A simulated trainer and weight sync: time from token counts and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swingshift.core.types import SampleGroup, WeightVersion
from swingshift.runtime.ports import Replica, TrainResult
from swingshift.sim.device import SimDevice
from swingshift.sim.faults import FaultHook, no_faults
from swingshift.sim.replica import SimReplica


@dataclass(frozen=True, slots=True)
class TrainerCost:
    base_s: float = 0.0
    per_token_s: float = 0.0
    per_group_s: float = 0.05
    offload_s: float = 0.0
    onload_s: float = 0.0
    publish_s: float = 0.0
    sync_standalone_s: float = 0.02
    sync_hybrid_s: float = 0.0


class SimTrainer:
    """Keeps the ids of the groups it trained on, in order."""

    def __init__(self, devices: Sequence[SimDevice], cost: TrainerCost, faults: FaultHook = no_faults) -> None:
        self.devices = tuple(d.name for d in devices)
        self.sim_devices = tuple(devices)
        self.cost = cost
        self.trained: list[int] = []
        self.published: WeightVersion = -1
        self.num_optimizer_steps = 0
        self._faults = faults
        for device in devices:
            device.training_loaded = True

    async def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        await self._faults("trainer", "train")
        for device in self.sim_devices:
            assert device.training_loaded, f"{device.name} trains without its optimizer state"
            device.is_training = True
        num_tokens = sum(g.num_tokens for g in groups)
        cost = self.cost
        seconds = cost.base_s + cost.per_token_s * num_tokens + cost.per_group_s * len(groups)
        try:
            await asyncio.sleep(seconds)
        finally:
            for device in self.sim_devices:
                device.is_training = False
        self.trained.extend(g.group_id for g in groups)
        self.num_optimizer_steps += 1
        return TrainResult(timings_s={"update_actor": seconds})

    async def offload(self) -> None:
        await self._faults("trainer", "offload")
        await asyncio.sleep(self.cost.offload_s)
        for device in self.sim_devices:
            device.training_loaded = False

    async def onload(self) -> None:
        await self._faults("trainer", "onload")
        await asyncio.sleep(self.cost.onload_s)
        for device in self.sim_devices:
            device.training_loaded = True

    async def save(self, folder: Path) -> None:
        await self._faults("trainer", "save")

    async def load(self, folder: Path) -> None:
        await self._faults("trainer", "load")


class SimWeightSync:
    def __init__(self, trainer: SimTrainer, faults: FaultHook = no_faults) -> None:
        self._trainer = trainer
        self._faults = faults

    async def publish(self, version: WeightVersion) -> None:
        await self._faults("weight_sync", "publish")
        await asyncio.sleep(self._trainer.cost.publish_s)
        self._trainer.published = version

    async def sync_standalone(self, replica: Replica, version: WeightVersion) -> None:
        await self._faults("weight_sync", "sync_standalone")
        assert self._trainer.published == version, "wrote weights that were not published"
        await asyncio.sleep(self._trainer.cost.sync_standalone_s)
        _write(replica, version)

    async def sync_hybrid(self, replica: Replica, version: WeightVersion) -> None:
        await self._faults("weight_sync", "sync_hybrid")
        await asyncio.sleep(self._trainer.cost.sync_hybrid_s)
        _write(replica, version)


def _write(replica: Replica, version: WeightVersion) -> None:
    assert isinstance(replica, SimReplica)
    replica.write_weights(version)
