"""A whole run in the virtual world: the real control plane on simulated ports, its invariants checked always."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from swingshift.core.staleness import BudgetNumbers
from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import ReplicaKind, SamplingParams
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.cycle_report import CycleReport
from swingshift.runtime.group_runner import RolloutSettings
from swingshift.runtime.ports import Replica, RewardFn
from swingshift.runtime.restarts import RestartSettings
from swingshift.runtime.session import Session
from swingshift.runtime.session_parts import Ports, Saver, SessionSettings, StepMode
from swingshift.schedule.base import DynamicSchedulePolicyBase, build_policy
from swingshift.sim.cores import SharedCores, Worker
from swingshift.sim.device import SimDevice
from swingshift.sim.faults import FaultHook, no_faults
from swingshift.sim.invariants import InvariantChecker
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.replica import ReplicaCost, SimReplica
from swingshift.sim.responses import Pauses, no_pauses
from swingshift.sim.trainer import SimTrainer, SimWeightSync, TrainerCost
from swingshift.sim.workload import SimPrompts, SimReward, constant_lengths


def _ignore(item: object) -> None:
    pass


def _as_they_are(ports: Ports) -> Ports:
    return ports


@dataclass(slots=True)
class WorldConfig:
    """Everything that defines a simulated run. Replicas span ``devices_per_replica`` devices each.

    ``num_standalone`` and ``num_hybrid`` count replicas: the trainer has ``num_hybrid × devices_per_replica``
    devices, also where nothing is lent.
    """

    num_standalone: int = 1
    num_hybrid: int = 1
    devices_per_replica: int = 1
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
    pauses: Pauses | None = None
    """Tool calls of multi-turn responses; None: none."""
    prompt_length: int = 16
    seed: int = 0
    """Of routing; the workload's functions have their own."""
    replica_cost: ReplicaCost = ReplicaCost()
    hybrid_replica_cost: ReplicaCost | None = None
    """None: hybrid replicas cost what standalone ones do."""
    trainer_cost: TrainerCost = TrainerCost()
    reward: RewardFn = SimReward()
    shared_cores: int = 0
    """Cores that the devices share with the control process, if any."""
    control_per_request_s: float = 0.0
    max_sample_retries: int = 2
    max_failed_ratio: float = 0.1
    enable_rebalance: bool = True
    partial_rollout: bool = True
    routing: str = "least_inflight"
    release_kv_cache: bool = True
    save_freq: int = -1
    test_freq: int = -1
    call_timeout_s: float = 600.0
    train_timeout_s: float = 7200.0
    replica_wait_timeout_s: float = 3600.0
    restart_s: float | None = None
    """How long restarting a replica takes; None: those that fail stay out."""
    restarts: RestartSettings = RestartSettings()
    health_check_interval_s: float | None = None
    watchdog_timeout_s: float | None = None
    faults: FaultHook = no_faults
    wrap_ports: Callable[[Ports], Ports] = _as_they_are
    """Puts something in front of the simulated ports (see ``fault_ports``)."""
    saver: Saver | None = None
    validate: Callable[[GenerationClient, int], Awaitable[dict[str, float]]] | None = None
    policy_object: DynamicSchedulePolicyBase | None = None
    step_mode: StepMode | None = None
    """Train in global steps instead of fully asynchronously; its policy says whether anything is lent."""
    on_report: Callable[[CycleReport], None] = _ignore
    on_span: Callable[[DeviceSpan], None] = _ignore
    keep_history: bool = True
    """False: the world keeps no reports, spans or trained ids, and memory does not grow with the run."""
    full_check_every: int | None = None
    """Check all replicas after every nth batch of events (else those touched); None: 1 in a small world."""

    @property
    def numbers(self) -> BudgetNumbers:
        return BudgetNumbers(
            ppo_mini_batch_size=self.ppo_mini_batch_size,
            require_batches=self.require_batches,
            trigger_parameter_sync_step=self.trigger_parameter_sync_step,
            staleness_threshold=self.staleness_threshold,
            concurrent_samples_per_replica=self.concurrent_samples_per_replica,
        )


@dataclass(slots=True, repr=False)
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
    span = config.devices_per_replica
    assert span >= 1, "a replica spans at least one device"
    rollout_devices = [SimDevice(f"standalone-{i}") for i in range(config.num_standalone * span)]
    train_devices = [SimDevice(f"hybrid-{i}") for i in range(config.num_hybrid * span)]
    standalone = _replicas(config, ReplicaKind.STANDALONE, rollout_devices, config.replica_cost)
    hybrid_cost = config.hybrid_replica_cost or config.replica_cost
    hybrid = _replicas(config, ReplicaKind.HYBRID, train_devices, hybrid_cost) if config.lend else []
    trainer = SimTrainer(train_devices, config.trainer_cost, config.faults, config.keep_history)
    ports = Ports(
        trainer=trainer,
        standalone=standalone,
        hybrid=hybrid,
        weight_sync=SimWeightSync(trainer, config.faults),
        prompts=SimPrompts(config.num_prompts, config.prompt_length),
        reward=config.reward,
        saver=config.saver,
        starter=None if config.restart_s is None else SimStarter((standalone, hybrid), config.restart_s),
        validate=config.validate,
    )
    world: World

    async def on_cycle(report: CycleReport) -> None:
        config.on_report(report)
        if config.keep_history:
            world.reports.append(report)

    def on_span(span: DeviceSpan) -> None:
        config.on_span(span)
        if config.keep_history:
            world.spans.append(span)

    mode = config.step_mode or _policy(config)
    session = Session(config.wrap_ports(ports), _settings(config), mode, on_cycle=on_cycle, on_span=on_span)
    world = World(session, trainer, standalone, hybrid, rollout_devices + train_devices)
    if config.shared_cores:
        _share_cores(config, world)
    return world


def _share_cores(config: WorldConfig, world: World) -> None:
    def workers() -> list[Worker]:
        return [*world.standalone, *world.hybrid, world.trainer]

    cores = SharedCores(config.shared_cores, config.control_per_request_s, workers)
    for replica in (*world.standalone, *world.hybrid):
        replica.on_answer = cores.answered
    world.session.metrics.engines.watch_cpu(lambda: cores.total_s, config.shared_cores)


class SimStarter:
    """Puts another replica in the place of one that failed, in the ``replicas`` of its kind too."""

    def __init__(self, replicas: tuple[list[SimReplica], ...], seconds: float) -> None:
        self._replicas = replicas
        self._seconds = seconds

    async def restart(self, replica: Replica) -> Replica:
        [(group, index)] = [(g, i) for g in self._replicas for i, r in enumerate(g) if r.id == replica.id]
        if not group[index].is_dead:
            group[index].die()
        await asyncio.sleep(self._seconds)
        another = group[index] = group[index].another()
        return another


def _replicas(
    config: WorldConfig, kind: ReplicaKind, devices: list[SimDevice], cost: ReplicaCost
) -> list[SimReplica]:
    """One replica on each ``devices_per_replica`` neighbouring devices."""
    span = config.devices_per_replica
    return [
        SimReplica(
            f"{kind.value}-{i}",
            kind,
            devices[i * span : (i + 1) * span],
            cost,
            config.lengths,
            config.faults,
            config.pauses or no_pauses,
        )
        for i in range(len(devices) // span)
    ]


def _policy(config: WorldConfig) -> DynamicSchedulePolicyBase:
    return config.policy_object or build_policy(
        config.policy if config.lend else "static_fully_async",
        deactivate_ratio=config.deactivate_ratio,
        only_hybrid=config.num_standalone == 0,
    )


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
        train_timeout_s=config.train_timeout_s,
        replica_wait_timeout_s=config.replica_wait_timeout_s,
        restarts=config.restarts,
        health_check_interval_s=config.health_check_interval_s,
        watchdog_timeout_s=config.watchdog_timeout_s,
        seed=config.seed,
    )


def simulate(config: WorldConfig, script: Callable[[World], None] | None = None) -> World:
    """Run to the end, invariants checked after every batch of events (see ``invariants``).

    ``script(world)`` runs before the session starts: it may schedule deaths, stops or restores on the loop.
    Whatever ends the run early is raised.
    """
    loop = VirtualTimeLoop()

    async def main() -> World:
        world = build_world(config)
        checker = InvariantChecker(
            world.session, world.standalone, world.hybrid, world.devices, config.full_check_every
        )
        loop.after_events = checker.after_events
        loop.describe_waits = lambda: world.session.board.describe(loop.time())
        if script is not None:
            script(world)
        world.exit_reason = await world.session.run()
        world.wall_s = asyncio.get_running_loop().time()
        checker.check_all()
        return world

    with rare_garbage_collection():
        return run_virtual(main(), loop)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """A simulation makes many objects and hardly any cycles: looking for those less often saves a tenth."""
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
