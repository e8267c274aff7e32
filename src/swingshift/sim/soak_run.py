"""One soak case from its first session to its end: crashes and errors are followed by a resume from the checkpoint.

The last session meets no more faults and has to finish. What it may end with before, and what must be true of what
was trained, is in ``soak_verdict``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from swingshift.errors import DataError, SwingshiftError
from swingshift.sim.fault_plan import Fault, FaultKind, FaultPlan, FaultSchedule
from swingshift.sim.fault_ports import FaultyReward, FaultyStore, FaultyWorld
from swingshift.sim.invariants import InvariantChecker
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.soak_checks import CrashError, SessionChecks
from swingshift.sim.soak_requests import RequestChecks
from swingshift.sim.soak_verdict import Ended, check_checkpoint, check_end, may_end_with
from swingshift.sim.soak_world import SoakWorld
from swingshift.sim.world import World, build_world, rare_garbage_collection

MOST_SESSIONS = 4
"""The last one without faults."""
NUM_LAST_CALLS = 25


@dataclass(frozen=True, slots=True)
class SoakCase:
    seed: int
    world: SoakWorld
    plan: FaultPlan


@dataclass(slots=True)
class Checkpoint:
    state: dict[str, Any]
    trained: tuple[int, ...]


@dataclass(slots=True)
class CaseResult:
    """``outcomes`` of the sessions, in order; ``failure`` is empty if everything was as it should be."""

    outcomes: list[str] = field(default_factory=list)
    fired: list[tuple[str, Fault]] = field(default_factory=list)
    failure: str = ""
    waits: str = ""
    """Who waited for what when it failed."""
    last_calls: list[str] = field(default_factory=list)
    """The newest port calls, if they were asked for."""
    num_events: int = 0


def run_case(case: SoakCase, *, keep_calls: bool = False) -> CaseResult:
    """``keep_calls``: remember the newest port calls, for a trace."""
    with _quiet_logs(), rare_garbage_collection():
        return _Case(case, keep_calls).run()


class _Case:
    def __init__(self, case: SoakCase, keep_calls: bool) -> None:
        self.world = case.world
        self.schedule = FaultSchedule(case.plan)
        self._result = CaseResult(fired=self.schedule.fired)
        self.checkpoint: Checkpoint | None = None
        self.calls: deque[str] | None = deque(maxlen=NUM_LAST_CALLS) if keep_calls else None

    def run(self) -> CaseResult:
        result = self._result
        for number in range(1, MOST_SESSIONS + 1):
            is_last = number == MOST_SESSIONS
            if is_last:
                self.schedule.is_over = True
            session = _Session(self, number)
            try:
                outcome = session.run()
            # Whatever goes wrong is a finding, and what the harness is for.
            except Exception as error:
                result.failure = f"session {number}: {type(error).__name__}: {error}"
                result.waits = session.waits
                result.last_calls = list(self.calls or ())
                return result
            finally:
                result.num_events += session.num_events
            result.outcomes.append(outcome)
            if outcome == "finished":
                return result
        if not (self.world.filters and outcome == DataError.__name__):
            # Else the filter has found nothing to train on, which no resume mends.
            result.failure = f"the last session, without faults, ended with {outcome}"
        return result


class _Session:
    """One process of the control plane, from a start or a resume to its end."""

    def __init__(self, case: _Case, number: int) -> None:
        self.loop = VirtualTimeLoop()
        self.waits = ""
        self._case = case
        self._number = number
        sizes = case.world
        self._requests = RequestChecks(sizes.max_tokens, sizes.partial_rollout)
        jitter = random.Random(f"jitter {sizes.seed} {number}")
        self._ports = FaultyWorld(case.schedule, self._requests, lambda: jitter.uniform(0.0, sizes.answer_jitter_s))
        self._problems: list[str] = []
        self._is_cancelled = False
        self._num_events: int | None = None

    def run(self) -> str:
        """Its outcome. Raises AssertionError and whatever else a run must not end with."""
        try:
            return run_virtual(self._main(), self.loop)
        except CrashError:
            return "crashed"

    @property
    def num_events(self) -> int:
        return self.loop.num_callbacks if self._num_events is None else self._num_events

    async def _main(self) -> str:
        case = self._case
        sizes = case.world
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._store = FaultyStore(case.schedule, sizes.save_s, on_saved=self._saved, on_problem=self._problems.append)
        reward = FaultyReward(sizes.reward(), case.schedule)
        config = replace(sizes.config(), wrap_ports=self._ports.wrap, saver=self._store, reward=reward)
        if sizes.test_freq > 0:
            config = replace(config, validate=sizes.validator(reward))
        world = build_world(config)
        self._store.trainer = self._ports.trainer
        checks = self._watch(world)
        if case.checkpoint is not None:
            world.session.load_state_dict(json.loads(json.dumps(case.checkpoint.state)))
            world.trainer.trained = list(case.checkpoint.trained)
        self._schedule_process_faults(world, checks)
        outcome = await self._run(world)
        # Calls that are on their way are cancelled now, in any order.
        self._num_events = self.loop.num_callbacks
        return outcome

    def _watch(self, world: World) -> SessionChecks:
        """Invariants after every event, and everything that is known when it fails."""
        case = self._case
        invariants = InvariantChecker(world.session, world.standalone, world.hybrid, world.devices)
        trained = case.checkpoint.trained if case.checkpoint is not None else ()
        checks = SessionChecks(case.world, world, self._ports, self._requests, invariants, trained, self._number > 1)
        assert self._ports.trainer is not None
        self._ports.trainer.on_train = checks.on_train
        self.loop.after_events = lambda: self._look(world, checks)
        self.loop.describe_waits = lambda: world.session.board.describe(self.loop.time())
        if case.calls is not None:
            calls, number = case.calls, self._number
            case.schedule.on_call = lambda call: calls.append(f"session {number} t={self.loop.time():.3f} {call}")
        return checks

    def _look(self, world: World, checks: SessionChecks) -> None:
        try:
            checks.after_events()
            assert not self._problems, self._problems[0]
        except CrashError:
            # What the dying process still does when it is cancelled reaches no disk, and comes in any order.
            self._store.is_gone = True
            self._num_events = self.loop.num_callbacks
            raise
        except AssertionError:
            self.waits = world.session.board.describe(self.loop.time())
            raise

    async def _run(self, world: World) -> str:
        error: SwingshiftError | None = None
        try:
            outcome = await world.session.run()
        except SwingshiftError as ended:
            error, outcome = ended, type(ended).__name__
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            self._task.uncancel()
            outcome = "cancelled"
        except Exception:
            self.waits = world.session.board.describe(self.loop.time())
            raise
        assert not self._problems, self._problems[0]
        fired = self._case.schedule.fired
        ended_as = Ended(outcome, error, world, self._case.world, fired)
        if outcome != "cancelled":
            may_end_with(ended_as)
        check_end(ended_as, self._leftovers())
        return outcome

    def _leftovers(self) -> list[str]:
        """Tasks that the session left behind, other than calls that are on their way to another process."""
        known: set[asyncio.Future[Any] | None] = {asyncio.current_task(), *self._store.jobs}
        known.update(job for process in self._ports.processes for job in process.jobs)
        return [task.get_name() for task in asyncio.all_tasks() if task not in known]

    # --- what happens to whole processes ----------------------------------------------------------------------

    def _schedule_process_faults(self, world: World, checks: SessionChecks) -> None:
        for fault in self._case.schedule.timed(self._number):
            self.loop.call_at(fault.seconds, self._happen, fault, world, checks)

    def _happen(self, fault: Fault, world: World, checks: SessionChecks) -> None:
        if fault.kind is FaultKind.CRASH:
            checks.crash_at_s = self.loop.time()
        elif fault.kind is FaultKind.CANCEL:
            self._is_cancelled = True
            self._task.cancel()
        elif fault.kind is FaultKind.STOP:
            checks.is_stopping = True
            world.session.stop("stopped")
        else:
            process = self._ports.process(fault.where)
            if process is None:
                return
            if fault.kind is FaultKind.DIE:
                process.die()
            else:
                process.freeze(fault.frozen_s)
        self._case.schedule.happened(fault)

    def _saved(self, state: dict[str, Any], trained: tuple[int, ...]) -> None:
        """A checkpoint is on the disk."""
        before = self._case.checkpoint
        try:
            check_checkpoint(state, trained, before.state if before is not None else None)
        except AssertionError as error:
            self._problems.append(str(error))
        self._case.checkpoint = Checkpoint(json.loads(json.dumps(state)), trained)


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Runs that are meant to fail say so at length."""
    loggers = [logging.getLogger(name) for name in ("swingshift", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
