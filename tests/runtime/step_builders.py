"""Worlds that train in global steps, and what the tests of them share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swingshift.core.buffer import StoreRules
from swingshift.core.types import SampleGroup
from swingshift.errors import DataError
from swingshift.runtime.replay_buffer import ReplayBuffer, StepBuffer
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_loop import StepLoop
from swingshift.runtime.step_record import StepSettings
from swingshift.runtime.step_rollouter import StepRollouter
from swingshift.schedule.step_policy import EveryStepPolicy, StepOutcome, StepPolicy, SwitchDecision
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.world import World, WorldConfig

HOOKS = (
    "on_init_end",
    "on_train_begin",
    "on_step_begin",
    "prepare_step",
    "on_sample_begin",
    "on_sample_end",
    "on_step_end",
    "on_validate_begin",
    "on_validate_end",
)


def step_world(
    *,
    k: int = 2,
    warmup: int = 1,
    total: int | None = None,
    needs_warmup: bool = True,
    turns: bool = False,
    switch: dict[str, Any] | None = None,
    policy: StepPolicy | None = None,
    rules: StoreRules | None = None,
    max_refill_batches: int = 10,
    wrap: Callable[[ReplayBuffer], StepBuffer] = lambda buffer: buffer,
    **world: Any,
) -> WorldConfig:
    """``k`` mini-batches of 4 groups a step. ``switch``: options of the policy that lends. ``turns``: as in ``sync``.

    Policies learn: every run needs a world of its own.
    """
    mini_batch = world.setdefault("ppo_mini_batch_size", 4)
    batch = k * mini_batch
    if policy is None and turns:
        policy = EveryStepPolicy(batch)
    if policy is None:
        config = HybridRolloutSwitchConfig(**{"enable_switch": True, **(switch or {})})
        policy = StepSwitchPolicy(config, batch, k, standalone_share=0.5)
    mode = StepMode(
        settings=StepSettings(batch, k, warmup, total, needs_warmup),
        policy=policy,
        rules=rules or StoreRules(),
        max_refill_batches=max_refill_batches,
        wrap_buffer=wrap,
    )
    return WorldConfig(trigger_parameter_sync_step=k, staleness_threshold=float(warmup), step_mode=mode, **world)


OFF = {"enable_switch": False}
SLOW_TRAINER = TrainerCost(per_group_s=1.0)
SLOW_ROLLOUT = ReplicaCost(step_base_s=0.05)
SLOW_WAKE = ReplicaCost(wake_s=0.019)
"""A wake-up, weights and KV cache, takes 20 ms."""
FILTER = StoreRules(filter_metric="reward")


@dataclass
class ScriptedSwitch:
    """Lends after every step but the last until ``wanted`` groups are there; notes what it is told."""

    wanted: int = 4
    lends: bool = True
    gives_up: bool = False
    """Lends after no step at all; the start of the run and validation do."""
    idle_threshold_ratio: float = 0.01
    ratio: float = 0.5
    outcomes: list[StepOutcome] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    switches_s: list[tuple[str, float]] = field(default_factory=list)

    def threshold(self) -> int:
        return self.wanted

    def switched(self, *, to_rollout_s: float | None = None, to_trainer_s: float | None = None) -> None:
        if to_rollout_s is not None:
            self.switches_s.append(("to_rollout", to_rollout_s))
        if to_trainer_s is not None:
            self.switches_s.append(("to_trainer", to_trainer_s))

    def step_ended(self, outcome: StepOutcome) -> None:
        self.outcomes.append(outcome)

    def decide(self, *, sampleable_count: int, is_last: bool) -> SwitchDecision:
        self.counts.append(sampleable_count)
        lend = self.lends and not is_last and not self.gives_up
        return SwitchDecision(lend, "as scripted", sampleable_count, 0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


@dataclass(frozen=True)
class Rewards:
    """Each response of a group scores differently, except in ``useless`` groups; ``failing`` ones raise."""

    useless: Callable[[int], bool] = lambda group_id: False
    failing: Callable[[int], bool] = lambda group_id: False

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        if self.failing(group.group_id):
            raise DataError(f"the reward function failed for group {group.group_id}")
        same = self.useless(group.group_id)
        return tuple(1.0 if same else float(i) for i in range(len(group.samples)))


def sync_world(**options: Any) -> WorldConfig:
    """Mode ``sync``: no standalone replica, no warm-up, training and rollout take turns."""
    return step_world(**{"turns": True, "warmup": 0, "needs_warmup": False, "num_standalone": 0, **options})


def loop_of(world: World) -> StepLoop:
    loop = world.session.train_loop
    assert isinstance(loop, StepLoop)
    return loop


def rollouter_of(world: World) -> StepRollouter:
    rollouter = world.session.rollouter
    assert isinstance(rollouter, StepRollouter)
    return rollouter


@dataclass
class Recorder:
    """A script that notes, in order, what hooks and controller were called and what was trained and reported."""

    calls: list[str] = field(default_factory=list)
    world: World | None = None

    def __call__(self, world: World) -> None:
        self.world = world
        loop, rollouter, controller = loop_of(world), rollouter_of(world), world.session.controller
        for name in HOOKS:
            self._watch(loop, name, name)
        for name in ("activate", "deactivate", "sync_weights", "rebalance"):
            self._watch(controller, name, name)
        self._watch(rollouter, "submit", "submit")
        self._watch(world.trainer, "train", "train")

    def _watch(self, owner: Any, name: str, shown: str) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.noted(shown)
            return method(*args, **kwargs)

        setattr(owner, name, watched)

    def noted(self, call: str) -> None:
        self.calls.append(call)

    def of(self, *names: str) -> list[str]:
        """Only these calls, in order."""
        return [call for call in self.calls if call in names]

    def steps(self, *names: str) -> list[list[str]]:
        """The calls of each step, or these of them, from ``on_step_begin`` up to the next one."""
        found: list[list[str]] = []
        for call in self.calls:
            if call == "on_step_begin":
                found.append([])
            if found and (not names or call in names):
                found[-1].append(call)
        return found


def row_sum(world: World, name: str) -> float:
    return sum(row[name] for row in world.rows)


def assert_conserved(world: World, num_prompts: int) -> None:
    """Every prompt was trained once, evicted or failed; nothing is left."""
    ledger, trained = world.session.rollouter.ledger, world.trainer.trained
    assert len(set(trained)) == len(trained), "trained twice"
    assert not ledger.live and rollouter_of(world).is_over
    assert ledger.num_consumed == len(trained)
    assert len(trained) + ledger.num_failed + ledger.num_evicted == num_prompts


def trained_ages(world: World) -> list[int]:
    """Of every group when it was trained, in order. Call it before the run: it is filled in during the run."""
    ages: list[int] = []
    train = world.trainer.train

    async def noted(groups: list[SampleGroup], version: int) -> Any:
        # A step trains the version before it, and so does its submit_version say.
        ages.extend((version + 1) - (g.submit_version + 1) + 1 for g in groups)
        return await train(groups, version)

    world.trainer.train = noted  # type: ignore[method-assign,assignment]
    return ages
