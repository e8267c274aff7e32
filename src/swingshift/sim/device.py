"""A simulated device: who holds its memory. Rollout and training may never hold it at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SimDevice:
    name: str
    rollout_awake: bool = False
    training_loaded: bool = False
    is_training: bool = False

    def check(self) -> None:
        assert not (self.rollout_awake and self.training_loaded), f"{self.name} holds rollout and training memory"
        assert not (self.rollout_awake and self.is_training), f"{self.name} trains while rollout is awake on it"
