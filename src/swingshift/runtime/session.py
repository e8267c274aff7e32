"""The composition root: wires the control plane to its ports and runs it from start to clean stop.

::

    prompts ──▶ Rollouter ──▶ SampleQueue ──▶ TrainLoop ──▶ on_cycle
                   │                              │ asks the policy, tells
              LoadBalancer ◀──────────── DynamicResourceController
                   │                              │
               replicas                    trainer, weight sync

One TaskGroup holds every task: the first unexpected error ends the run, after what was trained is saved.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from swingshift.core.metrics import CycleMetrics
from swingshift.core.routing import RoutingTable
from swingshift.core.staleness import BudgetNumbers
from swingshift.core.timeline import DeviceSpan, Timeline
from swingshift.runtime.checkpoint import group_from_json, group_to_json, prompt_from_json, prompt_to_json
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.ports import PromptSource, Replica, RewardFn, TrainWorker, WeightSync
from swingshift.runtime.rollouter import PendingPrompt, Rollouter, RolloutSettings
from swingshift.runtime.signals import WaitBoard
from swingshift.runtime.train_loop import CycleReport, TrainLoop
from swingshift.schedule.base import DynamicSchedulePolicyBase

logger = logging.getLogger(__name__)


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
    validate: Callable[[GenerationClient, int], Awaitable[dict[str, float]]] | None = None


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
    release_kv_cache: bool = True
    save_freq: int = -1
    test_freq: int = -1
    seed: int = 0


async def _no_report(report: CycleReport) -> None:
    pass


class Session:
    """One training run. ``on_cycle`` and ``on_span`` receive what happened; ``run`` returns the exit reason."""

    def __init__(
        self,
        ports: Ports,
        settings: SessionSettings,
        policy: DynamicSchedulePolicyBase,
        *,
        on_cycle: Callable[[CycleReport], Awaitable[None]] = _no_report,
        on_span: Callable[[DeviceSpan], None] = lambda span: None,
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._on_cycle = on_cycle
        self._stop_reason: str | None = None
        self._validation: asyncio.Task[None] | None = None
        self._validation_row: dict[str, float] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._saved: tuple[int, ...] = ()
        self._clock = asyncio.get_running_loop().time
        self._started_s = self._clock()
        self._offset_s = 0.0
        self.board = WaitBoard()
        self.policy = policy
        self.timeline = Timeline(on_span)
        replicas = [*ports.standalone, *ports.hybrid]
        devices = [d for r in ports.standalone for d in r.devices] + list(ports.trainer.devices)
        self.lanes = DeviceLanes(self.timeline, self.now, devices)
        rng = random.Random(settings.seed)
        table = RoutingTable(settings.routing, settings.sticky_cache_size, rng.randrange)
        self.balancer = LoadBalancer(table, self.board, settings.replica_wait_timeout_s)
        self.client = GenerationClient(self.balancer, settings.partial_rollout)
        self.rollouter = Rollouter(
            numbers=settings.numbers,
            settings=settings.rollout,
            prompts=ports.prompts,
            client=self.client,
            reward=ports.reward,
            board=self.board,
            now=self.now,
            num_replicas=lambda: self.balancer.num_members,
        )
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
        self.metrics = CycleMetrics(len(ports.trainer.devices), sum(len(r.devices) for r in ports.standalone))
        self.train_loop = TrainLoop(
            rollouter=self.rollouter,
            controller=self.controller,
            policy=policy,
            trainer=ports.trainer,
            metrics=self.metrics,
            lanes=self.lanes,
            now=self.now,
            enable_rebalance=settings.enable_rebalance,
            train_timeout_s=settings.train_timeout_s,
            on_cycle=self._cycle_ended,
            extra_metrics=self.take_validation_row,
        )
        self.balancer.on_load = lambda replica, load: self.lanes.load_changed(replica.devices, load)
        self.balancer.on_members = self.rollouter.capacity_changed
        self.balancer.on_retired = self.client.give_up
        self.client.on_death = self.controller.replica_died
        assert len({r.id for r in replicas}) == len(replicas), "replica ids must differ"

    def now(self) -> float:
        """Seconds of this run, earlier sessions of a resumed one included."""
        return self._clock() - self._started_s + self._offset_s

    def stop(self, reason: str) -> None:
        """End the run after the collection under way: sync, report, save."""
        if self._stop_reason is None:
            self._stop_reason = reason
            logger.info("stopping: %s", reason)
        self.train_loop.stop()

    async def run(self) -> str:
        """Run to the end; returns ``finished`` or the reason given to ``stop``.

        Saves before it raises an error. Being cancelled is no error but a demand to end at once.
        """
        self._started_s = self._clock()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self.lanes.start()
                self.rollouter.start(tasks)
                await self.train_loop.run()
                await self._finish_validation()
                self.rollouter.stop()
                if not (self.rollouter.is_over and self._progress() == self._saved):
                    await self._save()
                await self.rollouter.cancel()
        except BaseExceptionGroup as group:
            error = _first_error(group)
            await self._save_after(error)
            raise error from group
        finally:
            await self.train_loop.abandon()
            self.timeline.close(self.now())
        return self._stop_reason or "finished"

    # --- checkpoints ------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All control state, as JSON values, at this moment."""
        ledger = self.rollouter.ledger
        untrained = self.train_loop.untrained()
        return {
            "version": self.train_loop.version,
            "num_cycles": self.train_loop.num_cycles,
            "time_s": self.now(),
            "next_group_id": self.rollouter.next_group_id,
            "num_consumed": ledger.num_consumed - len(untrained),
            "num_failed": ledger.num_failed,
            "queued": [group_to_json(g) for g in (*untrained, *self.rollouter.queue.peek_all())],
            "pending": [
                {"group_id": p.group_id, "prompt": prompt_to_json(p.prompt)} for p in self.rollouter.pending()
            ],
            "prompts": self._ports.prompts.state_dict(),
            "policy": self.policy.state_dict(),
            "switch_costs_s": list(self.controller.costs.round_trips_s),
            "metrics": self.metrics.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before ``run``: go on where ``state_dict`` was taken. Prompts in flight then are submitted again."""
        self.train_loop.version = state["version"]
        self.train_loop.num_cycles = state["num_cycles"]
        self._offset_s = state["time_s"]
        self._ports.prompts.load_state_dict(state["prompts"])
        self.policy.load_state_dict(state["policy"])
        self.controller.costs.round_trips_s[:] = state["switch_costs_s"]
        self.metrics.load_state_dict(state["metrics"])
        self.rollouter.restore(
            queued=[group_from_json(g) for g in state["queued"]],
            resubmit=[PendingPrompt(p["group_id"], prompt_from_json(p["prompt"])) for p in state["pending"]],
            next_group_id=state["next_group_id"],
            num_consumed=state["num_consumed"],
            num_failed=state["num_failed"],
        )

    async def _save(self) -> None:
        if self._ports.saver is not None:
            progress = self._progress()
            await self._ports.saver.save(self.train_loop.version, self.state_dict())
            self._saved = progress

    def _progress(self) -> tuple[int, ...]:
        """Equal twice: nothing was trained, submitted or given up in between."""
        ledger = self.rollouter.ledger
        return (self.train_loop.version, ledger.num_submitted, ledger.num_consumed, ledger.num_failed)

    async def _save_after(self, cause: BaseException) -> None:
        """What was trained is kept even when the run ends with an error, if the trainer still answers."""
        timeout_s = self._settings.call_timeout_s
        await self.train_loop.settle(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._save()
        except Exception as error:  # Whatever it is, it must not hide what ended the run.
            logger.error("what was trained could not be saved: %s", error)
            cause.add_note(f"and the state could not be saved: {error!r}")

    # --- the end of a cycle -----------------------------------------------------------------------------------

    async def _cycle_ended(self, report: CycleReport) -> None:
        await self._on_cycle(report)
        version, settings = report.version, self._settings
        if settings.save_freq > 0 and version % settings.save_freq == 0:
            started = self.now()
            await self._save()
            self.metrics.add_timings({"save": self.now() - started})
        if settings.test_freq > 0 and version % settings.test_freq == 0:
            self._start_validation(version)

    def _start_validation(self, version: int) -> None:
        """Validation shares the engines with training and never holds it up; one at a time."""
        if self._ports.validate is None or (self._validation is not None and not self._validation.done()):
            return
        assert self._tasks is not None, "validation before run"
        self._validation = self._tasks.create_task(self._validate(version), name="validation")

    async def _validate(self, version: int) -> None:
        assert self._ports.validate is not None
        self._validation_row = await self._ports.validate(self.client, version)

    async def _finish_validation(self) -> None:
        """Wait for a validation under way, with lent devices if nobody else is there to generate."""
        if self._validation is None or self._validation.done():
            return
        alone = self.balancer.num_members == 0
        lent = alone and self.controller.can_lend and self._stop_reason is None and await self.controller.activate()
        if self._stop_reason is not None or (alone and not lent):
            logger.warning("the validation under way is given up")
            self._validation.cancel()
        await asyncio.wait([self._validation])
        if lent:
            await self.controller.deactivate()

    def take_validation_row(self) -> dict[str, float]:
        """Metrics of validations that ended since the last cycle was reported (or this was called)."""
        row, self._validation_row = self._validation_row, {}
        return row


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the run, out of nested groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
