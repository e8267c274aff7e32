"""A whole run in the virtual world: the real control plane on simulated ports, its invariants checked always."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from swingshift.core.staleness import BudgetNumbers
from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import ReplicaKind, SamplingParams
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.rollouter import RolloutSettings
from swingshift.runtime.session import Ports, Saver, Session, SessionSettings
from swingshift.runtime.train_loop import CycleReport
from swingshift.schedule.base import DynamicSchedulePolicyBase, build_policy
from swingshift.sim.device import SimDevice
from swingshift.sim.faults import FaultHook, no_faults
from swingshift.sim.invariants import check_invariants
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.replica import ReplicaCost, SimReplica
from swingshift.sim.trainer import SimTrainer, SimWeightSync, TrainerCost
from swingshift.sim.workload import SimPrompts, SimReward, constant_lengths


@dataclass(slots=True)
class WorldConfig:
    """Everything that defines a simulated run."""

    num_standalone: int = 1
    num_hybrid: int = 1
    lend: bool = True
    policy: str = "default"
    deactivate_ratio: float = 0.6
    ppo_mini_batch_size: int = 4
    require_batches: int = 1
    trigger_parameter_sync_step: int = 2
    staleness_threshold: float = 0.5
    concurrent_samples_per_replica: int = 4
    num_responses: int = 2
    max_tokens: int = 100
    num_prompts: int = 64
    lengths: Callable[[str, int], int] = constant_lengths(50)
    replica_cost: ReplicaCost = ReplicaCost()
    trainer_cost: TrainerCost = TrainerCost()
    reward: SimReward = SimReward()
    max_sample_retries: int = 2
    max_failed_ratio: float = 0.1
    enable_rebalance: bool = True
    partial_rollout: bool = True
    routing: str = "least_inflight"
    release_kv_cache: bool = True
    save_freq: int = -1
    test_freq: int = -1
    call_timeout_s: float = 600.0
    replica_wait_timeout_s: float = 3600.0
    faults: FaultHook = no_faults
    saver: Saver | None = None
    validate: Callable[[GenerationClient, int], Awaitable[dict[str, float]]] | None = None
    policy_object: DynamicSchedulePolicyBase | None = None

    @property
    def numbers(self) -> BudgetNumbers:
        return BudgetNumbers(
            ppo_mini_batch_size=self.ppo_mini_batch_size,
            require_batches=self.require_batches,
            trigger_parameter_sync_step=self.trigger_parameter_sync_step,
            staleness_threshold=self.staleness_threshold,
            concurrent_samples_per_replica=self.concurrent_samples_per_replica,
        )


@dataclass(slots=True)
class World:
    """A built run: its session and the simulated things around it."""

    session: Session
    trainer: SimTrainer
    standalone: list[SimReplica]
    hybrid: list[SimReplica]
    devices: list[SimDevice]
    reports: list[CycleReport] = field(default_factory=list)
    spans: list[DeviceSpan] = field(default_factory=list)
    exit_reason: str = ""
    wall_s: float = 0.0

    @property
    def rows(self) -> list[dict[str, float]]:
        return [report.row for report in self.reports]


def build_world(config: WorldConfig) -> World:
    """Inside a running virtual-time loop."""
    rollout_devices = [SimDevice(f"standalone-{i}") for i in range(config.num_standalone)]
    train_devices = [SimDevice(f"hybrid-{i}") for i in range(config.num_hybrid)]

    def replica(device: SimDevice, kind: ReplicaKind) -> SimReplica:
        return SimReplica(device.name, kind, device, config.replica_cost, config.lengths, config.faults)

    standalone = [replica(d, ReplicaKind.STANDALONE) for d in rollout_devices]
    hybrid = [replica(d, ReplicaKind.HYBRID) for d in train_devices] if config.lend else []
    trainer = SimTrainer(train_devices, config.trainer_cost, config.faults)
    policy = config.policy_object or build_policy(
        config.policy if config.lend else "static_fully_async",
        deactivate_ratio=config.deactivate_ratio,
        only_hybrid=config.num_standalone == 0,
    )
    world: World
    ports = Ports(
        trainer=trainer,
        standalone=standalone,
        hybrid=hybrid,
        weight_sync=SimWeightSync(trainer, config.faults),
        prompts=SimPrompts(config.num_prompts),
        reward=config.reward,
        saver=config.saver,
        validate=config.validate,
    )

    async def on_cycle(report: CycleReport) -> None:
        world.reports.append(report)

    session = Session(
        ports, _settings(config), policy, on_cycle=on_cycle, on_span=lambda span: world.spans.append(span)
    )
    world = World(session, trainer, standalone, hybrid, rollout_devices + train_devices)
    return world


def _settings(config: WorldConfig) -> SessionSettings:
    return SessionSettings(
        numbers=config.numbers,
        rollout=RolloutSettings(
            num_responses=config.num_responses,
            sampling=SamplingParams(max_tokens=config.max_tokens),
            max_sample_retries=config.max_sample_retries,
            max_failed_ratio=config.max_failed_ratio,
        ),
        enable_rebalance=config.enable_rebalance,
        partial_rollout=config.partial_rollout,
        routing=config.routing,
        release_kv_cache=config.release_kv_cache,
        save_freq=config.save_freq,
        test_freq=config.test_freq,
        call_timeout_s=config.call_timeout_s,
        replica_wait_timeout_s=config.replica_wait_timeout_s,
    )


def simulate(config: WorldConfig, script: Callable[[World], None] | None = None) -> World:
    """Run to the end, invariants checked after every batch of events.

    ``script(world)`` runs before the session starts: it may schedule deaths, stops or restores on the loop.
    Whatever ends the run early is raised.
    """
    loop = VirtualTimeLoop()

    async def main() -> World:
        world = build_world(config)
        loop.after_events = lambda: check_invariants(world.session, world.standalone, world.hybrid, world.devices)
        loop.describe_waits = lambda: world.session.board.describe(loop.time())
        if script is not None:
            script(world)
        world.exit_reason = await world.session.run()
        world.wall_s = asyncio.get_running_loop().time()
        loop.after_events()
        return world

    return run_virtual(main(), loop)
