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
    """Seconds of the whole trainer, however many devices it spans.

    ``update_actor`` takes ``base_s + per_token_s × tokens + per_group_s × groups``, the other phases seconds a token.
    Tokens are those of the responses, and with ``counts_prompts`` also the prompt of every response. Publishing and
    the syncs of standalone replicas are for one replica each; all replicas sync at once.
    """

    base_s: float = 0.0
    per_token_s: float = 0.0
    per_group_s: float = 0.05
    old_log_prob_per_token_s: float = 0.0
    ref_per_token_s: float = 0.0
    adv_per_token_s: float = 0.0
    counts_prompts: bool = False
    offload_s: float = 0.0
    onload_s: float = 0.0
    publish_s: float = 0.0
    sync_standalone_s: float = 0.02
    sync_hybrid_s: float = 0.0

    def timings_s(self, groups: Sequence[SampleGroup]) -> dict[str, float]:
        """Seconds of one optimizer pass by phase, in order; phases that cost nothing are left out."""
        num_tokens = sum(g.num_tokens for g in groups)
        if self.counts_prompts:
            num_tokens += sum(len(g.prompt.token_ids) * len(g.samples) for g in groups)
        seconds = {
            "old_log_prob": self.old_log_prob_per_token_s * num_tokens,
            "ref": self.ref_per_token_s * num_tokens,
            "adv": self.adv_per_token_s * num_tokens,
            "update_actor": self.base_s + self.per_token_s * num_tokens + self.per_group_s * len(groups),
        }
        return {key: s for key, s in seconds.items() if s > 0.0}


class SimTrainer:
    """``trained`` keeps the ids of the groups it trained on, in order, if ``keep_trained``."""

    def __init__(
        self,
        devices: Sequence[SimDevice],
        cost: TrainerCost,
        faults: FaultHook = no_faults,
        keep_trained: bool = True,
    ) -> None:
        self.devices = tuple(d.name for d in devices)
        self.sim_devices = tuple(devices)
        self.cost = cost
        self.trained: list[int] = []
        self.published: WeightVersion = -1
        self.num_optimizer_steps = 0
        self.keep_trained = keep_trained
        self.num_calls = 0
        self._held_up_s = 0.0
        self._faults = faults
        for device in devices:
            device.training_loaded = True

    async def _called(self, verb: str) -> None:
        self.num_calls += 1
        await self._faults("trainer", verb)

    def _set_loaded(self, loaded: bool) -> None:
        for device in self.sim_devices:
            device.training_loaded = loaded
            device.check()

    async def train(self, groups: Sequence[SampleGroup], version: WeightVersion) -> TrainResult:
        await self._called("train")
        for device in self.sim_devices:
            assert device.training_loaded, f"{device.name} trains without its optimizer state"
            device.is_training = True
            device.check()
        timings_s = self.cost.timings_s(groups)
        try:
            await asyncio.sleep(sum(timings_s.values()))
            while held_up_s := self._held_up_s:
                self._held_up_s = 0.0
                await asyncio.sleep(held_up_s)
                timings_s["update_actor"] = timings_s.get("update_actor", 0.0) + held_up_s
        finally:
            for device in self.sim_devices:
                device.is_training = False
        if self.keep_trained:
            self.trained.extend(g.group_id for g in groups)
        self.num_optimizer_steps += 1
        return TrainResult(timings_s=timings_s)

    @property
    def num_cores(self) -> int:
        """Devices that compute now."""
        return sum(device.is_training for device in self.sim_devices)

    def hold_up(self, seconds: float) -> None:
        """Training under way takes so much longer."""
        self._held_up_s += seconds

    async def offload(self) -> None:
        await self._called("offload")
        await asyncio.sleep(self.cost.offload_s)
        self._set_loaded(False)

    async def onload(self) -> None:
        await self._called("onload")
        await asyncio.sleep(self.cost.onload_s)
        self._set_loaded(True)

    async def save(self, folder: Path) -> None:
        await self._called("save")

    async def load(self, folder: Path) -> None:
        await self._called("load")


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
