"""Which device a process owns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """``rank`` is the trainer's rank, None on a standalone device. ``kind``: ``cpu`` or ``cuda``."""

    name: str
    kind: str
    core_index: int
    rank: int | None = None
    world_size: int = 1
