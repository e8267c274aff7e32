"""What a session is made of: its ports, its settings, and how it trains in global steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swingshift.core.buffer import StoreRules
from swingshift.core.staleness import BudgetNumbers
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.group_runner import RolloutSettings
from swingshift.runtime.ports import PromptSource, Replica, ReplicaStarter, RewardFn, TrainWorker, WeightSync
from swingshift.runtime.replay_buffer import ReplayBuffer, StepBuffer
from swingshift.runtime.restarts import RestartSettings
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_policy import StepPolicy


class Saver(Protocol):
    """Where control state is saved (``runtime.checkpoint.CheckpointStore``)."""

    async def save(self, step: int, state: Mapping[str, Any]) -> object: ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world of one run."""

    trainer: TrainWorker
    standalone: Sequence[Replica]
    hybrid: Sequence[Replica]
    weight_sync: WeightSync
    prompts: PromptSource
    reward: RewardFn
    saver: Saver | None = None
    starter: ReplicaStarter | None = None
    """Restarts standalone replicas; None: those that die stay out."""
    validate: Callable[[GenerationClient, int], Awaitable[dict[str, float]]] | None = None


@dataclass(frozen=True, slots=True)
class StepMode:
    """Training in global steps instead of fully asynchronously: how, with which policy, over which buffer."""

    settings: StepSettings
    policy: StepPolicy
    rules: StoreRules = StoreRules()
    max_refill_batches: int = 10
    """Batches evicted in a row, without one group that survived, after which the run ends."""
    wrap_buffer: Callable[[ReplayBuffer], StepBuffer] = lambda buffer: buffer
    """Puts a user's own replay buffer around ours."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    numbers: BudgetNumbers
    rollout: RolloutSettings
    enable_rebalance: bool = True
    partial_rollout: bool = True
    routing: str = "least_inflight"
    sticky_cache_size: int = 10_000
    replica_wait_timeout_s: float = 3600.0
    call_timeout_s: float = 600.0
    train_timeout_s: float = 7200.0
    restarts: RestartSettings = RestartSettings()
    health_check_interval_s: float | None = None
    """Seconds between health checks of serving replicas; None: none."""
    watchdog_timeout_s: float | None = None
    """The run ends if nothing moves for so long; None: it may wait for ever."""
    release_kv_cache: bool = True
    save_freq: int = -1
    test_freq: int = -1
    seed: int = 0
