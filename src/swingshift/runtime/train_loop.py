"""The fully-asynchronous train loop: collections, sync cycles, and the questions a policy is asked.

One collection, in order: give lent devices back once enough is buffered; take ``required_samples`` groups; train
on them. After ``trigger_parameter_sync_step`` collections: new version, sync, perhaps lend again, reset the
staleness budget, let the policy learn, report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swingshift.core.metrics import CycleMetrics, LendingCycle
from swingshift.core.types import DeviceState, SampleGroup, WeightVersion
from swingshift.errors import NoReplicaError, TrainerError
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.ports import TrainResult, TrainWorker
from swingshift.runtime.rollouter import Buffered, Rollouter
from swingshift.runtime.stopwatch import Stopwatch
from swingshift.schedule.base import DynamicScheduleContext, DynamicSchedulePolicyBase

logger = logging.getLogger(__name__)

WHO = "train loop"


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What the session tells the outside at the end of a sync cycle."""

    row: dict[str, float]
    groups: tuple[SampleGroup, ...]
    """The groups of the cycle's last collection."""
    version: WeightVersion
    state: str
    decision: str


@dataclass(slots=True)
class _Waits:
    """Per collection of one cycle: seconds waited and groups really waited for."""

    times_s: list[float]
    samples: list[int]


class TrainLoop:
    """Drives one run. ``on_cycle`` is awaited after every sync cycle, ``extra_metrics`` joins its row."""

    def __init__(
        self,
        *,
        rollouter: Rollouter,
        controller: DynamicResourceController,
        policy: DynamicSchedulePolicyBase,
        trainer: TrainWorker,
        metrics: CycleMetrics,
        lanes: DeviceLanes,
        now: Callable[[], float],
        enable_rebalance: bool,
        train_timeout_s: float = 7200.0,
        on_cycle: Callable[[CycleReport], Awaitable[None]],
        extra_metrics: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.version: WeightVersion = 0
        self.num_cycles = 0
        self.metrics = metrics
        self._rollouter = rollouter
        self._numbers = rollouter.numbers
        self._controller = controller
        self._policy = policy
        self._trainer = trainer
        self._lanes = lanes
        self._now = now
        self._enable_rebalance = enable_rebalance
        self._train_timeout_s = train_timeout_s
        self._on_cycle = on_cycle
        self._extra_metrics = extra_metrics
        self._waits = _Waits([], [])
        self._expected = 0
        self._groups: list[SampleGroup] = []
        self._stopped = False
        self._has_generated_alone = False
        self._decision = ""
        self._training: tuple[list[SampleGroup], asyncio.Future[TrainResult]] | None = None
        self._reported_switches = (0, 0)

    def stop(self) -> None:
        """Finish the collection under way, then end the run (synced and reported)."""
        self._stopped = True
        self._rollouter.stop()

    async def run(self) -> None:
        """Train until the data set ends or ``stop`` is called."""
        await self._begin()
        while not self._stopped and await self._cycle():
            pass
        if self._controller.is_hybrid_active:
            await self._controller.deactivate()

    async def _begin(self) -> None:
        """The first sync comes before any training, so that every replica holds the starting version."""
        self._expected = self._rollouter.ledger.num_consumed
        await self._controller.sync_weights(self.version)
        self._rollouter.version = self.version
        if not self._stopped and not self._rollouter.is_over and self._wants_lending():
            await self._lend()

    async def _cycle(self) -> bool:
        """One sync cycle; False if nothing was left to train on."""
        self._waits = _Waits([], [])
        self._expected = self._rollouter.ledger.num_consumed + self._numbers.step_required_samples
        for index in range(self._numbers.trigger_parameter_sync_step):
            if self._stopped or not await self._collect(index):
                break
        if not self._waits.samples:
            return False
        await self._end_cycle()
        return not self._rollouter.is_over

    # --- one collection ---------------------------------------------------------------------------------------

    async def _collect(self, index: int) -> bool:
        """Wait for groups, train on them; False if there was nothing to take."""
        watch = Stopwatch(self._now)
        with watch.time("step"):
            await self._take_devices_back(watch)
            turn_started = self._now()
            num_queued = len(self._rollouter.queue)
            with watch.time("gen"):
                groups = await self._obtain(index)
            result = await self._train(groups) if groups else TrainResult()
            turn_s = self._now() - turn_started
        watch.add(result.timings_s)
        if not groups:
            self.metrics.add_timings(watch.seconds)
            return False
        wait_s, num_waited = watch.seconds["gen"], max(0, self._numbers.required_samples - num_queued)
        self._waits.times_s.append(wait_s)
        self._waits.samples.append(num_waited)
        self._groups = groups
        queued = len(self._rollouter.queue)
        self.metrics.add_allocated(turn_s)
        self.metrics.add_collection(watch.seconds, groups, self.version, wait_s, num_waited, queued, result.metrics)
        return True

    async def _take_devices_back(self, watch: Stopwatch) -> None:
        """Training needs the devices: whatever the policy wants, they are not lent when it starts."""
        active = self._controller.is_hybrid_active
        if not active:
            return
        ctx = self._context()
        if self._policy.should_deactivate(self.version, active, ctx):
            wanted = self._policy.deactivate_wait_samples(ctx)
            with watch.time("wait_for_enough_samples"):
                await self._wait_for_enough(wanted)
        else:
            logger.warning("policy kept the hybrid replicas active, but training needs their devices now")
        with watch.time("deactivate"):
            await self._controller.deactivate()

    async def _wait_for_enough(self, wanted: int) -> None:
        limit = self._numbers.max_required_samples
        if wanted > limit:
            logger.warning("the policy waits for %d groups; the staleness budget allows %d", wanted, limit)
        outcome = await self._rollouter.wait_buffered(min(wanted, limit), who=WHO)
        if outcome is not Buffered.ENOUGH:
            logger.info("took the devices back with fewer groups than the policy wanted (%s)", outcome)

    async def _obtain(self, index: int) -> list[SampleGroup]:
        """The next collection's groups; fewer than required only at the end of the run."""
        required = self._numbers.required_samples
        while await self._rollouter.wait_buffered(required, who=WHO) is Buffered.NO_REPLICA:
            remaining = required * (self._numbers.trigger_parameter_sync_step - index)
            await self._generate_alone(remaining)
        if self._stopped:
            return []
        return self._rollouter.take(min(required, len(self._rollouter.queue)))

    async def _generate_alone(self, num_groups: int) -> None:
        """Nobody else can generate any more: let the hybrid replicas do it, then take them back."""
        if not self._controller.can_lend:
            dead = "; ".join(f"{r}: {why}" for r, why in self._controller.failures) or "none is configured"
            raise NoReplicaError(f"no replica can generate the next samples ({dead})")
        # Once is news; the cycles after it say the same again and again.
        level = logging.INFO if self._has_generated_alone else logging.WARNING
        self._has_generated_alone = True
        logger.log(level, "no standalone replica generates; lending the trainer's devices for %d groups", num_groups)
        if await self._controller.activate():
            await self._rollouter.wait_buffered(num_groups, who=WHO)
            await self._controller.deactivate()
        else:
            raise NoReplicaError("no standalone replica is left and no hybrid one could be woken")

    async def _train(self, groups: list[SampleGroup]) -> TrainResult:
        """An optimizer pass cannot be taken back: if this task is cancelled the call goes on, see ``settle``."""
        with self._lanes.phase(self._trainer.devices, DeviceState.TRAIN):
            call = asyncio.ensure_future(self._trainer.train(groups, self.version))
            self._training = (groups, call)
            try:
                async with asyncio.timeout(self._train_timeout_s):
                    result = await asyncio.shield(call)
            except TimeoutError:
                call.cancel()
                raise TrainerError(
                    f"training on {len(groups)} groups did not end within {self._train_timeout_s:g} s "
                    "(async_training.train_timeout_s)"
                ) from None
            self._training = None
            return result

    def untrained(self) -> list[SampleGroup]:
        """Groups taken from the queue whose training has not succeeded (yet)."""
        if self._training is None:
            return []
        groups, call = self._training
        succeeded = call.done() and not call.cancelled() and call.exception() is None
        return [] if succeeded else list(groups)

    async def settle(self, timeout_s: float) -> None:
        """After an error elsewhere: let training under way finish, so that it is known what was trained."""
        if self._training is not None:
            await asyncio.wait([self._training[1]], timeout=timeout_s)
            num_untrained = len(self.untrained())
            if num_untrained:
                logger.error("the training of %d groups did not succeed; they count as not consumed", num_untrained)

    async def abandon(self) -> None:
        """Leave no call behind."""
        if self._training is not None and not self._training[1].done():
            self._training[1].cancel()
            await asyncio.wait([self._training[1]])

    # --- the end of a cycle -----------------------------------------------------------------------------------

    async def _end_cycle(self) -> None:
        watch = Stopwatch(self._now)
        is_last = self._stopped or self._rollouter.is_over
        self.version += 1
        self._decision = "the last cycle: nothing is left to lend for" if is_last else self._decision
        with watch.time("step"):
            lend = not is_last and self._wants_lending()
            with watch.time("param_sync"), self._lanes.phase(self._trainer.devices, DeviceState.SYNCING):
                await self._controller.sync_weights(self.version)
            if lend and not self._stopped:
                await self._lend(watch)
        self.metrics.add_timings(watch.seconds)
        self.metrics.add_allocated(watch.seconds["step"])
        rollout = self._rollouter.reset_staleness(self.version)
        self._policy.update_after_step(self.version, self._context())
        self.num_cycles += 1
        costs = self._controller.costs
        counts, self._reported_switches = self._reported_switches, (costs.num_activations, costs.num_deactivations)
        lending = LendingCycle(
            num_activations=costs.num_activations - counts[0],
            num_deactivations=costs.num_deactivations - counts[1],
            activate_s=costs.last_activate_s,
            deactivate_s=costs.last_deactivate_s,
            switch_cost_s=costs.round_trips_s[-1] if costs.round_trips_s else 0.0,
            deactivate_ratio=float(getattr(self._policy, "deactivate_ratio", 0.0)),
        )
        row = self.metrics.row(
            now=self._now(),
            global_step=self.version,
            rollout=rollout,
            lending=lending,
            extra=self._extra_metrics(),
        )
        await self._on_cycle(
            CycleReport(row, tuple(self._groups), self.version, self._controller.state.value, self._decision)
        )

    def _wants_lending(self) -> bool:
        if not self._controller.can_lend:
            return False
        wanted = self._policy.should_activate_after_step(self.version, False, self._context())
        self._decision = self._policy.decision or ("lend" if wanted else "keep")
        logger.debug("version %d: %s", self.version, self._decision)
        return wanted

    async def _lend(self, watch: Stopwatch | None = None) -> None:
        watch = watch or Stopwatch(self._now)
        with watch.time("activate"):
            lent = await self._controller.activate()
        if lent and self._enable_rebalance:
            kind = self._policy.request_rebalance(self.version, self._context())
            if kind is not None:
                with watch.time("rebalance"):
                    await self._controller.rebalance(kind)

    def _context(self) -> DynamicScheduleContext:
        costs = self._controller.costs
        return DynamicScheduleContext(
            required_samples=self._numbers.required_samples,
            trigger_parameter_sync_step=self._numbers.trigger_parameter_sync_step,
            total_generated_samples=self._rollouter.ledger.num_generated,
            expected_samples=self._expected,
            buffer_samples=self._numbers.buffer_samples,
            step_wait_times=list(self._waits.times_s),
            step_wait_samples=list(self._waits.samples),
            only_hybrid=self._controller.only_hybrid,
            last_activate_duration_s=costs.last_activate_s,
            last_deactivate_duration_s=costs.last_deactivate_s,
            switch_costs_s=tuple(costs.round_trips_s),
            max_required_samples=self._numbers.max_required_samples,
        )
