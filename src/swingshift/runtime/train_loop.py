"""The fully-asynchronous train loop: collections, sync cycles, and the questions a policy is asked.

One collection, in order: give lent devices back once enough is buffered; take ``required_samples`` groups; train
on them. After ``trigger_parameter_sync_step`` collections: new version, sync, perhaps lend again, reset the
staleness budget, let the policy learn, report.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swingshift.core.metrics import CycleMetrics
from swingshift.core.types import DeviceState, SampleGroup, WeightVersion
from swingshift.errors import NoReplicaError
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.cycle_report import CycleReport, LendingCounter
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.observations import Decision, Question, decision_numbers
from swingshift.runtime.ports import TrainResult
from swingshift.runtime.rollouter import Buffered, Rollouter
from swingshift.runtime.stopwatch import Stopwatch
from swingshift.runtime.training_call import TrainingCall
from swingshift.schedule.base import DynamicScheduleContext, DynamicSchedulePolicyBase
from swingshift.schedule.questions import PolicyQuestions

logger = logging.getLogger(__name__)

WHO = "train loop"


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
        training: TrainingCall,
        metrics: CycleMetrics,
        lanes: DeviceLanes,
        now: Callable[[], float],
        enable_rebalance: bool,
        wait_for_replica: Callable[[], Awaitable[bool]],
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
        self._ask = PolicyQuestions(policy)
        self._training = training
        self._lanes = lanes
        self._now = now
        self._enable_rebalance = enable_rebalance
        self._wait_for_replica = wait_for_replica
        self._on_cycle = on_cycle
        self._extra_metrics = extra_metrics
        self._waits = _Waits([], [])
        self._expected = 0
        self._groups: list[SampleGroup] = []
        self._stopped = False
        self._has_generated_alone = False
        self._decision = ""
        self._decisions: list[Decision] = []
        self._switches = LendingCounter(controller.costs)

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
            turn_started, lent_before_s = self._now(), _lent_s(watch)
            groups, num_waited = await self._obtain(index, watch)
            result = await self._training.run(groups, self.version) if groups else TrainResult()
            turn_s = self._now() - turn_started - (_lent_s(watch) - lent_before_s)
        watch.add(result.timings_s)
        if not groups:
            self.metrics.add_timings(watch.seconds)
            return False
        wait_s = watch.seconds["gen"]
        self._waits.times_s.append(wait_s)
        self._waits.samples.append(num_waited)
        self._groups = groups
        self.metrics.add_allocated(turn_s)
        self.metrics.add_collection(watch.seconds, groups, self.version, wait_s, num_waited, result.metrics)
        return True

    async def _take_devices_back(self, watch: Stopwatch) -> None:
        """Training needs the devices: whatever the policy wants, they are not lent when it starts."""
        active = self._controller.is_hybrid_active
        if not active:
            return
        ctx = self._context()
        if self._ask.should_deactivate(self.version, active, ctx):
            wanted, asked_s = self._ask.deactivate_wait_samples(ctx), self._now()
            with watch.time("wait_for_enough_samples"):
                outcome = await self._wait_for_enough(wanted)
            wait_s = self._now() - asked_s
            reason = f"{len(self._rollouter.queue)} of {wanted} groups queued after {wait_s:.2f} s: {outcome}"
            self._decided(Question.TAKE_BACK, "yes", reason, ctx, wanted_samples=wanted, lent_wait_s=wait_s)
        else:
            self._decided(Question.TAKE_BACK, "no", "overruled: training needs the devices now", ctx)
            logger.warning("policy kept the hybrid replicas active, but training needs their devices now")
        with watch.time("deactivate"):
            await self._controller.deactivate()

    async def _wait_for_enough(self, wanted: int) -> Buffered:
        limit = self._numbers.max_required_samples
        if wanted > limit:
            logger.warning("the policy waits for %d groups; the staleness budget allows %d", wanted, limit)
        outcome = await self._rollouter.wait_buffered(min(wanted, limit), who=WHO)
        if outcome is not Buffered.ENOUGH:
            logger.info("took the devices back with fewer groups than the policy wanted (%s)", outcome)
        return outcome

    async def _obtain(self, index: int, watch: Stopwatch) -> tuple[list[SampleGroup], int]:
        """The next collection's groups, fewer than required only at the end of the run; and how many were waited for.

        Waited for are those that came while the devices were not lent.
        """
        required, num_waited = self._numbers.required_samples, 0
        while True:
            num_queued = len(self._rollouter.queue)
            with watch.time("gen"):
                outcome = await self._rollouter.wait_buffered(required, who=WHO)
            if outcome is not Buffered.NO_REPLICA:
                break
            num_waited += len(self._rollouter.queue) - num_queued
            await self._generate_alone(required * (self._numbers.trigger_parameter_sync_step - index), watch)
        num_waited += max(0, required - num_queued)
        if self._stopped:
            return [], num_waited
        return self._rollouter.take(min(required, len(self._rollouter.queue))), num_waited

    async def _generate_alone(self, num_groups: int, watch: Stopwatch) -> None:
        """Nobody else can generate any more: let the hybrid replicas do it, then take them back."""
        if not self._controller.can_lend:
            with watch.time("gen"):
                is_back = await self._wait_for_replica()
            if is_back or self._stopped:
                return
            raise NoReplicaError(f"no replica can generate the next samples ({self._controller.why_retired()})")
        reason = f"no standalone replica generates; lending the trainer's devices for {num_groups} groups"
        # Once is news; the cycles after it say the same again and again.
        logger.log(logging.INFO if self._has_generated_alone else logging.WARNING, "%s", reason)
        self._has_generated_alone = True
        self._decided(Question.LEND, "yes", reason, self._context())
        with watch.time("activate"):
            is_lent = await self._controller.activate()
        if is_lent:
            with watch.time("wait_for_enough_samples"):
                outcome = await self._rollouter.wait_buffered(num_groups, who=WHO)
            reason = f"{len(self._rollouter.queue)} of {num_groups} groups queued: {outcome}"
            self._decided(Question.TAKE_BACK, "yes", reason, self._context(), wanted_samples=num_groups)
            with watch.time("deactivate"):
                await self._controller.deactivate()
        elif not self._controller.expects_replicas():
            raise NoReplicaError(
                f"no standalone replica is left and no hybrid one could be woken ({self._controller.why_retired()})"
            )

    # --- the end of a cycle -----------------------------------------------------------------------------------

    async def _end_cycle(self) -> None:
        watch = Stopwatch(self._now)
        is_last = self._stopped or self._rollouter.is_over
        self.version += 1
        with watch.time("step"):
            lend = self._wants_lending(is_last=is_last)
            with watch.time("param_sync"), self._lanes.phase(self._training.devices, DeviceState.SYNCING):
                await self._controller.sync_weights(self.version)
            if lend and not self._stopped:
                await self._lend(watch)
        num_queued = len(self._rollouter.queue)
        self.metrics.add_timings(watch.seconds)
        self.metrics.add_allocated(watch.seconds["step"])
        rollout = self._rollouter.reset_staleness(self.version)
        self._ask.update_after_step(self.version, self._context())
        self.num_cycles += 1
        lending = self._switches.cycle(float(getattr(self._policy, "deactivate_ratio", 0.0)))
        row = self.metrics.row(
            now=self._now(),
            global_step=self.version,
            rollout=rollout,
            mq_size=num_queued,
            lending=lending,
            extra=self._extra_metrics(),
        )
        decisions, self._decisions = tuple(self._decisions), []
        state = self._controller.state.value
        await self._on_cycle(CycleReport(row, tuple(self._groups), self.version, state, self._decision, decisions))

    def _wants_lending(self, *, is_last: bool = False) -> bool:
        if not self._controller.can_lend:
            return False
        ctx = self._context()
        if is_last:
            wanted, self._decision = False, "the last cycle: nothing is left to lend for"
        else:
            wanted = self._ask.should_activate_after_step(self.version, False, ctx)
            self._decision = self._policy.decision or ("lend" if wanted else "keep")
        self._decided(Question.LEND, "yes" if wanted else "no", self._decision, ctx)
        logger.debug("version %d: %s", self.version, self._decision)
        return wanted

    async def _lend(self, watch: Stopwatch | None = None) -> None:
        watch = watch or Stopwatch(self._now)
        with watch.time("activate"):
            lent = await self._controller.activate()
        if lent and self._enable_rebalance:
            ctx = self._context()
            kind = self._ask.request_rebalance(self.version, ctx)
            reason = "the policy asks for none" if kind is None else "requests in flight use the lent replicas too"
            self._decided(Question.REBALANCE, str(kind or "no"), reason, ctx)
            if kind is not None:
                with watch.time("rebalance"):
                    await self._controller.rebalance(kind)

    def _decided(
        self, question: Question, answer: str, reason: str, ctx: DynamicScheduleContext, **numbers: float
    ) -> None:
        numbers["queued_samples"] = len(self._rollouter.queue)
        seen = decision_numbers(ctx, self._ask.state(), **numbers)
        self._decisions.append(Decision(self._now(), self.version, question, answer, reason, seen))

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


def _lent_s(watch: Stopwatch) -> float:
    """Seconds of a collection that are not the trainer's turn: its devices were lent, or given back."""
    return watch.seconds.get("wait_for_enough_samples", 0.0) + watch.seconds.get("deactivate", 0.0)
