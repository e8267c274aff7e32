"""The composition root: wires the control plane to its ports and runs it from start to clean stop.

::

    prompts ──▶ Rollouter ──▶ SampleQueue ──▶ TrainLoop ──▶ on_cycle
                   │                              │ asks the policy, tells
              LoadBalancer ◀──────────── DynamicResourceController
                   │                              │
               replicas                    trainer, weight sync

Where training goes in global steps the first row is StepRollouter ──▶ ReplayBuffer ──▶ StepLoop.

One TaskGroup holds every task: the first unexpected error ends the run, after what was trained is saved.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from swingshift.core.metrics import CycleMetrics
from swingshift.core.routing import RoutingTable
from swingshift.core.timeline import DeviceSpan, Timeline
from swingshift.core.types import DeviceState, ReplicaKind
from swingshift.errors import SwingshiftError
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.control_state import ControlState
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.cycle_report import CycleReport
from swingshift.runtime.group_feeder import FeederParts
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.replay_buffer import ReplayBuffer
from swingshift.runtime.restarts import ReplicaRestarts
from swingshift.runtime.rollouter import Rollouter
from swingshift.runtime.saving import Saving
from swingshift.runtime.session_parts import Ports, SessionSettings, StepMode
from swingshift.runtime.signals import WaitBoard
from swingshift.runtime.step_loop import StepLoop
from swingshift.runtime.step_rollouter import StepRollouter
from swingshift.runtime.train_loop import TrainLoop
from swingshift.runtime.training_call import OnTrained, TrainingCall
from swingshift.runtime.validations import Validations
from swingshift.runtime.watch import HealthChecks, Watchdog
from swingshift.schedule.base import DynamicSchedulePolicyBase

logger = logging.getLogger(__name__)


async def _no_report(report: CycleReport) -> None:
    pass


class Session:
    """One training run. The callbacks ``on_…`` receive what happened; ``run`` returns the exit reason."""

    def __init__(
        self,
        ports: Ports,
        settings: SessionSettings,
        policy: DynamicSchedulePolicyBase | StepMode,
        *,
        on_cycle: Callable[[CycleReport], Awaitable[None]] = _no_report,
        on_span: Callable[[DeviceSpan], None] = lambda span: None,
        on_trained: OnTrained = lambda groups, version: None,
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._on_cycle = on_cycle
        self._stop_reason: str | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._clock = asyncio.get_running_loop().time
        self._started_s = self._clock()
        self._offset_s = 0.0
        self.board = WaitBoard()
        self.policy = policy.policy if isinstance(policy, StepMode) else policy
        self.timeline = Timeline(on_span)
        replicas = [*ports.standalone, *ports.hybrid]
        devices = [d for r in ports.standalone for d in r.devices] + list(ports.trainer.devices)
        self.lanes = DeviceLanes(self.timeline, self.now, devices)
        rng = random.Random(settings.seed)
        table = RoutingTable(settings.routing, settings.sticky_cache_size, rng.randrange)
        self.balancer = LoadBalancer(table, self.board, settings.replica_wait_timeout_s)
        self.client = GenerationClient(self.balancer, settings.partial_rollout)
        self.controller = DynamicResourceController(
            standalone=ports.standalone,
            hybrid=ports.hybrid,
            balancer=self.balancer,
            trainer=ports.trainer,
            weight_sync=ports.weight_sync,
            lanes=self.lanes,
            now=self.now,
            call_timeout_s=settings.call_timeout_s,
            release_kv_cache=settings.release_kv_cache,
        )
        self.restarts = ReplicaRestarts(
            ports.starter, settings.restarts, self.board, self.controller.join, self.controller.rejoin
        )
        self.controller.on_lost = self.restarts.lost
        self.controller.on_survived = self.restarts.survived
        self.controller.expects_replicas = lambda: self.restarts.is_pending
        self.metrics = CycleMetrics(len(ports.trainer.devices), sum(len(r.devices) for r in ports.standalone))
        self._training = TrainingCall(ports.trainer, self.lanes, settings.train_timeout_s, on_trained)
        self.validations = Validations(
            ports.validate,
            settings.test_freq,
            self.client,
            self.balancer,
            self.controller,
            self.restarts.wait,
        )
        self.rollouter: Rollouter | StepRollouter
        self.train_loop: TrainLoop | StepLoop
        if isinstance(policy, StepMode):
            self._build_steps(policy)
        else:
            self._build_fully_async(policy)
        self._state = ControlState(
            train_loop=self.train_loop,
            rollouter=self.rollouter,
            prompts=ports.prompts,
            policy=self.policy,
            costs=self.controller.costs,
            metrics=self.metrics,
            training=self._training,
        )
        self._saving = Saving(ports.saver, self._state, self.state_dict, self.controller, self.client, settings)
        self.balancer.on_load = lambda replica, load: self.lanes.load_changed(replica.devices, load)
        self.balancer.on_members = self.rollouter.capacity_changed
        self.balancer.on_retired = self.client.give_up
        self.client.on_death = self.controller.replica_died
        self.client.meter = self.metrics.engines
        self.metrics.engines.read_busy_s = self._rollout_s
        self.metrics.devices.read = lambda: self.timeline.totals(self.now())
        assert len({r.id for r in replicas}) == len(replicas), "replica ids must differ"

    def _build_fully_async(self, policy: DynamicSchedulePolicyBase) -> None:
        self.rollouter = Rollouter(self._feeder_parts())
        self.train_loop = TrainLoop(
            rollouter=self.rollouter,
            controller=self.controller,
            policy=policy,
            training=self._training,
            metrics=self.metrics,
            lanes=self.lanes,
            now=self.now,
            enable_rebalance=self._settings.enable_rebalance,
            wait_for_replica=self.restarts.wait,
            on_cycle=self._cycle_ended,
            extra_metrics=self.validations.take_row,
        )

    def _build_steps(self, mode: StepMode) -> None:
        self.rollouter = StepRollouter(self._feeder_parts(), mode.rules)
        buffer = ReplayBuffer(self.rollouter, mode.max_refill_batches * mode.settings.train_batch_size)
        self.train_loop = StepLoop(
            settings=mode.settings,
            rollouter=self.rollouter,
            buffer=mode.wrap_buffer(buffer),
            controller=self.controller,
            policy=mode.policy,
            training=self._training,
            metrics=self.metrics,
            lanes=self.lanes,
            now=self.now,
            wait_for_replica=self.restarts.wait,
            on_cycle=self._cycle_ended,
            is_validation_due=self.validations.is_due,
            validate=self.validations.run,
            extra_metrics=self.validations.take_row,
        )

    def _feeder_parts(self) -> FeederParts:
        return FeederParts(
            numbers=self._settings.numbers,
            settings=self._settings.rollout,
            prompts=self._ports.prompts,
            client=self.client,
            reward=self._ports.reward,
            board=self.board,
            now=self.now,
            num_replicas=lambda: self.balancer.num_members,
        )

    def now(self) -> float:
        """Seconds of this run, earlier sessions of a resumed one included."""
        return self._clock() - self._started_s + self._offset_s

    def _rollout_s(self) -> dict[ReplicaKind, float]:
        """Device-seconds of rollout since the start."""
        totals = self.timeline.totals(self.now())
        standalone = [device for replica in self._ports.standalone for device in replica.devices]
        devices = {ReplicaKind.STANDALONE: standalone, ReplicaKind.HYBRID: self._ports.trainer.devices}
        return {kind: sum(totals[d][DeviceState.ROLLOUT] for d in names) for kind, names in devices.items()}

    def stop(self, reason: str) -> None:
        """End the run after the collection under way: sync, report, save."""
        if self._stop_reason is None:
            self._stop_reason = reason
            logger.info("stopping: %s", reason)
        self.train_loop.stop()
        self.restarts.stop()

    async def run(self) -> str:
        """Run to the end; returns ``finished`` or the reason given to ``stop``.

        Saves before it raises an error. Being cancelled is no error but a demand to end at once.
        """
        self._started_s = self._clock()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self.lanes.start()
                self.restarts.start(tasks)
                watchers = [tasks.create_task(w.run(), name=type(w).__name__) for w in self._watchers()]
                self.rollouter.start(tasks)
                await self.train_loop.run()
                await self.validations.finish(lambda: self._stop_reason is not None)
                await self.restarts.cancel()
                for watcher in watchers:
                    watcher.cancel()
                self.rollouter.stop()
                await self._saving.save_at_the_end()
                await self.rollouter.cancel()
        except BaseExceptionGroup as group:
            error = _first_error(group)
            if isinstance(error, SwingshiftError):
                error.ended_a_run = True
            await self._saving.save_after(error)
            raise error from group
        finally:
            await self._training.abandon()
            await self._saving.abandon()
            self.timeline.close(self.now())
        return self._stop_reason or "finished"

    def _watchers(self) -> list[HealthChecks | Watchdog]:
        settings, found = self._settings, list[HealthChecks | Watchdog]()
        if settings.health_check_interval_s is not None:
            found.append(
                HealthChecks(
                    self.balancer.members,
                    self.controller.replica_died,
                    interval_s=settings.health_check_interval_s,
                    timeout_s=settings.call_timeout_s,
                )
            )
        if settings.watchdog_timeout_s is not None:
            found.append(
                Watchdog(
                    lambda: (self.rollouter.counts(), self.controller.version, self.controller.state),
                    lambda: self._training.is_under_way or self._saving.is_under_way,
                    self.board,
                    timeout_s=settings.watchdog_timeout_s,
                )
            )
        return found

    # --- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All control state, as JSON values, at this moment."""
        return self._state.read(self.now())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before ``run``: go on where ``state_dict`` was taken. Prompts in flight then are submitted again."""
        self._state.restore(state)
        self._offset_s = state["time_s"]

    # --- the end of a cycle -----------------------------------------------------------------------------------

    async def _cycle_ended(self, report: CycleReport) -> None:
        await self._on_cycle(report)
        version, settings = report.version, self._settings
        if settings.save_freq > 0 and version % settings.save_freq == 0:
            started = self.now()
            await self._saving.save()
            self.metrics.add_timings({"save": self.now() - started})
        if isinstance(self.train_loop, TrainLoop) and self.validations.is_due(version):
            # Cycles end while the run is under way.
            assert self._tasks is not None
            self.validations.start(self._tasks, version)

    def closing_row(self) -> dict[str, float]:
        """After ``run``, however it ended: what came after the last cycle and has no row to tell it."""
        row = self.validations.take_row()
        if isinstance(self.train_loop, StepLoop):
            row |= self.train_loop.take_validation_cost()
        return row


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the run, out of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
