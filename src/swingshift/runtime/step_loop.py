"""The step loop: training in global steps over a replay buffer, the devices lent between steps.

::

    on_init_end ▸ on_train_begin ▸ ┌ on_step_begin ▸ prepare_step ▸ K × (on_sample_begin ▸ sample ▸ on_sample_end
                                   │ ▸ train) ▸ on_step_end ▸ report and save ▸ on_validate_begin ▸ validate
                                   └ ▸ on_validate_end ▸ next step

The hooks are methods here, in the order in which a step calls them. ``sync`` and ``colocate_async`` are the same
loop with a policy that takes turns. The devices switch in ``step_switches``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from swingshift.core.buffer import Evictions
from swingshift.core.metrics import CycleMetrics
from swingshift.core.step_metrics import step_metrics
from swingshift.core.types import DeviceState, SampleGroup, WeightVersion
from swingshift.errors import ConfigError, NoReplicaError
from swingshift.runtime.controller import DynamicResourceController
from swingshift.runtime.cycle_report import CycleReport, LendingCounter
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.observations import Question
from swingshift.runtime.replay_buffer import StepBuffer
from swingshift.runtime.rollouter import Buffered
from swingshift.runtime.step_record import StepRecord, StepSettings
from swingshift.runtime.step_rollouter import StepRollouter
from swingshift.runtime.step_switches import StepSwitches
from swingshift.runtime.step_validation import StepValidation
from swingshift.runtime.stopwatch import Stopwatch
from swingshift.runtime.training_call import TrainingCall
from swingshift.schedule.step_policy import StepPolicy, SwitchDecision

logger = logging.getLogger(__name__)


class StepLoop:
    """Drives one run. ``on_cycle`` is awaited after every step, ``validate`` where one is due."""

    def __init__(
        self,
        *,
        settings: StepSettings,
        rollouter: StepRollouter,
        buffer: StepBuffer,
        controller: DynamicResourceController,
        policy: StepPolicy,
        training: TrainingCall,
        metrics: CycleMetrics,
        lanes: DeviceLanes,
        now: Callable[[], float],
        wait_for_replica: Callable[[], Awaitable[bool]],
        on_cycle: Callable[[CycleReport], Awaitable[None]],
        is_validation_due: Callable[[WeightVersion], bool],
        validate: Callable[[WeightVersion], Coroutine[Any, Any, None]],
        extra_metrics: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self.version: WeightVersion = 0
        self.num_cycles = 0
        self.metrics = metrics
        self._settings = settings
        self._rollouter = rollouter
        self._buffer = buffer
        self._controller = controller
        self._policy = policy
        self._training = training
        self._lanes = lanes
        self._now = now
        self._wait_for_replica = wait_for_replica
        self._on_cycle = on_cycle
        self._is_validation_due = is_validation_due
        self._extra_metrics = extra_metrics
        self._switches = StepSwitches(controller, policy, buffer, rollouter.ledger, now)
        self._validation = StepValidation(validate, rollouter, wait_for_replica, now)
        self._lending = LendingCounter(controller.costs)
        self._stopped = False
        self._borrowed = False
        self._num_ahead = 0
        """Groups outstanding when a step begins, as long as there are prompts."""
        self._step = StepRecord(Stopwatch(now), now())

    # --- life -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Finish the mini-batch under way, then end the run (synced and reported). Validation is given up."""
        self._stopped = True
        self._validation.stop()
        self._rollouter.stop()

    async def run(self) -> None:
        """Train until the steps or the data end, or ``stop`` is called."""
        await self.on_init_end()
        self._switches.restart_rates()
        await self.on_train_begin()
        while self._goes_on(self.version) and await self._run_step(self.version + 1):
            pass
        if self._controller.is_hybrid_active:
            await self._controller.deactivate()

    def take_validation_cost(self) -> dict[str, float]:
        """Of a validation after the last step, which no step's row has told of; else empty."""
        seconds, num_groups = self._validation.take_cost()
        cost = {"seconds": seconds, "generated_samples": float(num_groups)} if seconds else {}
        return {f"separate_async/validate/{name}": value for name, value in cost.items()}

    def _goes_on(self, num_done: int) -> bool:
        """Is there a step after ``num_done`` of them?"""
        total = self._settings.total_training_steps
        return not self._stopped and not self._rollouter.is_over and (total is None or num_done < total)

    async def _run_step(self, step: int) -> bool:
        """One global step; False if nothing was left to train on."""
        self._step = StepRecord(Stopwatch(self._now), self._now())
        num_trained = 0
        with self._step.watch.time("step"):
            await self.on_step_begin(step)
            await self.prepare_step(step)
            while num_trained < self._settings.parameter_sync_step:
                if self._stopped or not await self._mini_batch(step, num_trained):
                    break
                num_trained += 1
            if num_trained == 0:
                self.metrics.add_timings(self._step.watch.seconds)
                return False
            decision = await self.on_step_end(step)
        await self._report(decision)
        if not self._stopped and self._is_validation_due(step):
            await self._validation.run(step, self.on_validate_begin, self.on_validate_end)
            self._switches.restart_rates()
        return True

    # --- hooks, in order --------------------------------------------------------------------------------------

    async def on_init_end(self) -> None:
        """Every replica holds the starting version; whoever lends begins with the devices in rollout."""
        await self._controller.sync_weights(self.version)
        self._rollouter.version = self.version
        if self._goes_on(self.version) and self._policy.lends and self._controller.can_lend:
            reason = "the run begins with the devices in rollout"
            self._switches.note(self.version, Question.LEND, True, reason, {})
            await self._controller.activate()

    async def on_train_begin(self) -> None:
        """Warm-up: generation gets a head start. What a checkpoint brought back counts."""
        settings = self._settings
        missing = settings.at_most_needed(settings.num_warmup, self.version) - self._rollouter.num_outstanding
        if missing > 0:
            self._rollouter.submit(missing, self.version + 1)
        # With a warm-up of 0 a run goes on with what its checkpoint had in flight.
        restored = self._rollouter.num_outstanding if settings.needs_warmup else 0
        self._num_ahead = settings.num_warmup or restored
        if self._goes_on(self.version) and settings.needs_warmup and self._rollouter.num_outstanding == 0:
            raise ConfigError(
                f"trainer.v1.num_warmup_batches={settings.num_warmup_batches}: nothing is in flight when the "
                "first step begins, so training and rollout would take turns; give at least 1, or use "
                "trainer.v1.trainer_mode=sync"
            )

    async def on_step_begin(self, step: int) -> None:
        """Take the devices back at once if the inventory is ready (or if lending is switched off)."""
        threshold = self._step.threshold = self._policy.threshold()
        if self._controller.is_hybrid_active and self._buffer.get_sampleable_count(step) >= threshold:
            await self._switches.take_back(self._step, step, threshold, "at once")

    async def prepare_step(self, step: int) -> None:
        """Submit the step's prompts; devices still lent generate until enough can be sampled."""
        num_wanted = self._settings.num_wanted(step, self._num_ahead, len(self._rollouter.store))
        self._rollouter.submit(num_wanted, step)
        if not self._controller.is_hybrid_active:
            return
        logger.debug("step %d: lent until %d groups are sampleable", step, self._step.threshold)
        with self._step.watch.time("wait_for_enough_samples"):
            found = await self._buffer.wait_for_sampleable(step, self._step.threshold)
        self._step.evictions.add(found.evictions)
        if found.outcome is not Buffered.ENOUGH:
            logger.info("took the devices back with fewer groups than wanted (%s)", found.outcome)
        await self._switches.take_back(self._step, step, self._step.threshold, f"after a wait: {found.outcome}")

    def on_sample_begin(self, step: int) -> float:
        """A mini-batch is wanted: from now on waiting is starvation."""
        self._step.wait_samples += self._num_missing(step)
        return self._now()

    def on_sample_end(self, began_s: float, evictions: Evictions) -> None:
        self._step.sample_wait_s += self._now() - began_s
        self._step.evictions.add(evictions)

    async def on_step_end(self, step: int) -> SwitchDecision:
        """Adapt, decide, sync the weights, perhaps lend."""
        current, watch = self._step, self._step.watch
        self._switches.mark_rates(current)
        is_last = not self._goes_on(step)
        outcome = current.outcome(self._now())
        current.is_idle = outcome.sample_wait_s > self._policy.idle_threshold_ratio * outcome.duration_s
        self._policy.step_ended(outcome)
        self.version = step
        decision = self._policy.decide(sampleable_count=self._buffer.get_sampleable_count(step + 1), is_last=is_last)
        if decision.lend and not self._controller.can_lend:
            decision = replace(decision, lend=False, reason="keep: no hybrid replica is left to lend")
        logger.debug("step %d: %s", step, decision.reason)
        if self._policy.lends:
            self._switches.note(step, Question.LEND, decision.lend, decision.reason, decision.numbers())
        turn_started = self._now()
        with watch.time("param_sync"), self._lanes.phase(self._training.devices, DeviceState.SYNCING):
            await self._controller.sync_weights(self.version)
        if decision.lend and self._controller.can_lend and not self._stopped:
            await self._switches.lend(current)
        self.metrics.add_allocated(self._now() - turn_started)
        current.num_left = self._buffer.get_sampleable_count(step + 1)
        return decision

    async def on_validate_begin(self) -> None:
        """Validation borrows the devices if they are not lent anyway."""
        wanted = self._policy.lends or self._rollouter.num_replicas == 0
        self._borrowed = wanted and self._controller.can_lend and await self._controller.activate()

    async def on_validate_end(self) -> None:
        """What was borrowed is given back; what was lent before stays lent."""
        if self._borrowed:
            self._borrowed = False
            await self._controller.deactivate()

    # --- one mini-batch ---------------------------------------------------------------------------------------

    async def _mini_batch(self, step: int, index: int) -> bool:
        """Sample, train; False if there was nothing to sample."""
        current, watch = self._step, self._step.watch
        turn_started, lent_before_s = self._now(), current.lent_s
        gen_before_s, waited_before = watch.seconds.get("gen", 0.0), current.wait_samples
        groups = await self._sample(step, index)
        if not groups:
            return False
        result = await self._training.run(groups, self.version)
        watch.add(result.timings_s)
        current.groups = groups
        self.metrics.add_allocated(self._now() - turn_started - (current.lent_s - lent_before_s))
        wait_s, num_waited = watch.seconds["gen"] - gen_before_s, current.wait_samples - waited_before
        self.metrics.add_collection({}, groups, self.version, wait_s, num_waited, result.metrics)
        return True

    async def _sample(self, step: int, index: int) -> list[SampleGroup]:
        size, watch = self._settings.mini_batch_size, self._step.watch
        while True:
            began_s = self.on_sample_begin(step)
            with watch.time("gen"):
                found = await self._buffer.wait_for_sampleable(step, size)
            if found.outcome is not Buffered.NO_REPLICA:
                break
            # What is missing now was not waited for: it will come while the devices are lent.
            self._step.wait_samples -= self._num_missing(step)
            self.on_sample_end(began_s, found.evictions)
            if self._controller.can_lend:
                num_groups = size * (self._settings.parameter_sync_step - index)
                await self._switches.generate_alone(self._step, step, num_groups)
            else:
                await self._wait_for_any_replica()
        with watch.time("gen"):
            groups, more = ([], Evictions()) if self._stopped else await self._buffer.sample(step, size)
        found.evictions.add(more)
        self.on_sample_end(began_s, found.evictions)
        return groups

    def _num_missing(self, step: int) -> int:
        """Groups that a mini-batch lacks; at the end of the data fewer can come than that."""
        missing = self._settings.mini_batch_size - self._buffer.get_sampleable_count(step)
        return min(max(0, missing), self._rollouter.store.num_unfinished)

    async def _wait_for_any_replica(self) -> None:
        """No replica generates and none can be lent."""
        began_s = self._now()
        with self._step.watch.time("gen"):
            is_back = await self._wait_for_replica()
        self._step.sample_wait_s += self._now() - began_s
        if not is_back and not self._stopped:
            raise NoReplicaError(f"no replica can generate the next samples ({self._controller.why_retired()})")

    # --- the end of a step ------------------------------------------------------------------------------------

    async def _report(self, decision: SwitchDecision) -> None:
        current = self._step
        self.metrics.add_timings(current.watch.seconds)
        rollout = self._rollouter.reset_staleness(self.version)
        self.num_cycles += 1
        figures = current.figures(decision, self._policy.ratio, *self._validation.take_cost())
        row = self.metrics.row(
            now=self._now(),
            global_step=self.version,
            rollout=rollout,
            mq_size=current.num_left,
            lending=self._lending.cycle(self._policy.ratio),
            extra={**step_metrics(figures), **self._extra_metrics()},
        )
        state, decisions = self._controller.state.value, self._switches.take_decisions()
        await self._on_cycle(CycleReport(row, tuple(current.groups), self.version, state, decision.reason, decisions))
