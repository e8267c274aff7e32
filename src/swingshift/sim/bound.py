"""The work-conserving bound: the shortest time that any schedule could need, and how near a run came to it.

With ``a`` hybrid and ``b`` standalone devices, training work ``W_t`` and rollout work ``W_r`` in device-seconds
(rollout at its best batch):

* a static split needs at least ``max(W_t / a, W_r / b)``;
* with lending, ``T* = max(W_t / a, (η·W_t + W_r) / (η·a + b))``, where η is the speed of a hybrid device at rollout
  relative to a standalone one (1: equal speeds).

The second term of ``T*``: training occupies ``W_t`` of the ``a·T`` hybrid device-seconds, the rest of them does
rollout at speed η, so ``η·(a·T − W_t) + b·T ≥ W_r``.

``T*`` leaves out what no schedule can avoid entirely: switching and weight syncs, the tail of a batch in which
replicas run at less than their best batch, and pauses that the staleness budget forces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Device-seconds of a whole run."""

    train_s: float
    rollout_s: float

    def __post_init__(self) -> None:
        assert self.train_s >= 0.0 and self.rollout_s >= 0.0


@dataclass(frozen=True, slots=True)
class Split:
    """Devices that train and may be lent, devices that only generate, and the hybrid ones' speed at rollout."""

    num_hybrid: int
    num_standalone: int
    hybrid_speed: float = 1.0

    def __post_init__(self) -> None:
        assert self.num_hybrid >= 1 and self.num_standalone >= 0 and self.hybrid_speed > 0.0


def static_bound_s(work: Work, split: Split) -> float:
    """No lending; infinite without standalone devices."""
    if work.rollout_s > 0.0 and split.num_standalone == 0:
        return math.inf
    rollout_s = work.rollout_s / split.num_standalone if split.num_standalone else 0.0
    return max(work.train_s / split.num_hybrid, rollout_s)


def lending_bound_s(work: Work, split: Split) -> float:
    """``T*``."""
    eta = split.hybrid_speed
    shared = (eta * work.train_s + work.rollout_s) / (eta * split.num_hybrid + split.num_standalone)
    return max(work.train_s / split.num_hybrid, shared)


def binding_term(work: Work, split: Split) -> str:
    """``training`` if the trainer alone fills ``T*``, else ``all devices``."""
    return "training" if lending_bound_s(work, split) <= work.train_s / split.num_hybrid else "all devices"


def efficiency(work: Work, split: Split, wall_s: float) -> float:
    """``T* / T``: 1 is a schedule that no other can beat."""
    assert wall_s > 0.0
    return lending_bound_s(work, split) / wall_s
