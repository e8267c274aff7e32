"""Random worlds in global steps with random faults: a run ends, breaks no invariant, trains no group twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from runtime_builders import MemorySaver
from step_builders import Rewards, rollouter_of, step_world

from swingshift.core.buffer import OffPolicyStrategy, StoreRules
from swingshift.core.routing import STRATEGIES
from swingshift.core.types import Prompt, SamplingParams
from swingshift.errors import (
    DataError,
    DeadlockError,
    NoReplicaError,
    NotAcceptingError,
    ReplicaDiedError,
    ReplicaError,
    SwingshiftError,
    TransitionError,
)
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

PROFILE = settings(max_examples=100, deadline=None, derandomize=True)
# Calls to a replica take effect in the order they were made, so generate is never delayed past a later abort.
VERBS = ["abort", "abort_requests", "resume_generation", "release_kv_cache", "resume_kv_cache", "sleep", "wake_up"]
NAMES = [f"{kind}-{i}" for kind in ("standalone", "hybrid") for i in range(3)]
MakeWorld = Callable[[], WorldConfig]


async def _validate(client: Any, version: int) -> dict[str, float]:
    await client.generate(f"val-{version}", Prompt("v", (0,)), 1, SamplingParams(max_tokens=50))
    return {"val/version": float(version)}


def _nth(every: int | None, offset: int) -> Callable[[int], bool]:
    return lambda group_id: every is not None and group_id % every == offset


@st.composite
def rules(draw: st.DrawFn) -> StoreRules:
    return StoreRules(
        draw(st.sampled_from([None, 1, 2, 3, 8])),
        draw(st.sampled_from(OffPolicyStrategy)),
        draw(st.sampled_from([None, "reward", "response_length"])),
    )


@st.composite
def switches(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "enable_switch": draw(st.booleans()) or draw(st.booleans()),
        "switch_threshold_ratio": draw(st.sampled_from([0.1, 0.5, 1.0])),
        "adaptive_switch_threshold": draw(st.booleans()),
        "switch_threshold_release_steps": draw(st.integers(1, 3)),
        "per_sample_time_decay": draw(st.sampled_from([0.0, 0.5])),
        "measure_scaling_factor": draw(st.booleans()),
        "benefit_margin": draw(st.sampled_from([0.0, 1.0])),
    }


@st.composite
def worlds(draw: st.DrawFn) -> MakeWorld:
    """A function that makes the same world anew each time: policies learn."""
    num_standalone = draw(st.integers(0, 3))
    turns = num_standalone == 0 or draw(st.integers(0, 3)) == 0
    switch = draw(switches())
    rewards = Rewards(
        useless=_nth(draw(st.sampled_from([None, 2, 5])), 1), failing=_nth(draw(st.sampled_from([None, None, 4])), 2)
    )
    options: dict[str, Any] = {
        "k": draw(st.integers(1, 4)),
        "warmup": draw(st.integers(0 if turns else 1, 3)),
        "needs_warmup": not turns,
        "total": draw(st.sampled_from([None, None, 2, 5])),
        "rules": draw(rules()),
        "reward": rewards,
        "max_refill_batches": draw(st.sampled_from([1, 10])),
        "ppo_mini_batch_size": draw(st.integers(1, 5)),
        "num_standalone": num_standalone,
        "num_hybrid": draw(st.integers(1, 3)),
        "lend": turns or switch["enable_switch"],
        "concurrent_samples_per_replica": draw(st.integers(1, 8)),
        "num_responses": draw(st.integers(2, 3)),
        "num_prompts": draw(st.integers(0, 60)),
        "max_tokens": draw(st.sampled_from([1, 50, 100])),
        "lengths": lognormal_lengths(draw(st.sampled_from([1, 20, 60])), draw(st.sampled_from([0.0, 1.0])), 500),
        "replica_cost": ReplicaCost(
            step_per_sequence_s=draw(st.sampled_from([0.0, 0.002])),
            max_num_seqs=draw(st.sampled_from([1, 4, 16])),
            kv_capacity_tokens=draw(st.sampled_from([None, None, 300])),
        ),
        "trainer_cost": TrainerCost(per_group_s=draw(st.sampled_from([0.0, 0.05, 0.5]))),
        "max_failed_ratio": 1.0,
        "partial_rollout": draw(st.booleans()),
        "release_kv_cache": draw(st.booleans()),
        "routing": draw(st.sampled_from(sorted(STRATEGIES))),
        "test_freq": draw(st.sampled_from([-1, 1, 2])),
        "validate": _validate,
        "call_timeout_s": 5.0,
        "replica_wait_timeout_s": 200.0,
    }
    return lambda: step_world(turns=turns, switch=switch, **options)


@st.composite
def faults(draw: st.DrawFn) -> PlannedFaults:
    error = st.sampled_from([ReplicaError, ReplicaDiedError, NotAcceptingError]).map(lambda e: e("injected"))
    call = st.tuples(st.sampled_from(NAMES), st.sampled_from(["generate", *VERBS]), st.integers(1, 5))
    errors: dict[tuple[str, str, int], Exception] = dict(draw(st.lists(st.tuples(call, error), max_size=4)))
    for verb, nth in draw(
        st.lists(st.tuples(st.sampled_from(["sync_standalone", "sync_hybrid"]), st.integers(1, 5)), max_size=1)
    ):
        errors["weight_sync", verb, nth] = ReplicaError("injected")
    slow = st.tuples(st.sampled_from(NAMES), st.sampled_from(VERBS))
    delay = st.sampled_from([0.001, 0.1, 1.0, 50.0])
    return PlannedFaults(errors=errors, delays_s=dict(draw(st.lists(st.tuples(slow, delay), max_size=3))))


TIMES = st.floats(0.0, 10.0)


def check_total(config: WorldConfig, world: World) -> None:
    """A run that finished trained all that it could."""
    ledger, rollouter = world.session.rollouter.ledger, rollouter_of(world)
    ended = ledger.num_consumed + ledger.num_failed + ledger.num_evicted
    assert config.step_mode is not None
    total = config.step_mode.settings.total_training_steps
    if total is None or len(world.rows) < total:
        assert ended == config.num_prompts and rollouter.is_over
    else:
        assert len(world.rows) == total


@PROFILE
@given(worlds(), st.lists(st.tuples(st.sampled_from(NAMES), TIMES), max_size=4), faults())
def test_a_run_ends_and_loses_nothing_whatever_fails(
    make: MakeWorld, deaths: list[tuple[str, float]], planned: PlannedFaults
) -> None:
    built: list[World] = []

    def script(world: World) -> None:
        built.append(world)
        for replica in (*world.standalone, *world.hybrid):
            for name, when in deaths:
                if replica.id == name:
                    asyncio.get_running_loop().call_at(when, replica.die)

    saver, outcome = MemorySaver(), "finished"
    config = replace(make(), faults=planned, saver=saver)
    try:
        simulate(config, script)
    except (NoReplicaError, TransitionError, DataError) as error:
        outcome = type(error).__name__
    event(outcome)
    world = built[0]
    trained, ledger, state = world.trainer.trained, world.session.rollouter.ledger, saver.last
    assert len(set(trained)) == len(trained), "a group was trained twice"
    assert state["num_consumed"] == len(trained)
    assert (state["num_failed"], state["num_evicted"]) == (ledger.num_failed, ledger.num_evicted)
    unfinished = {g["group_id"] for g in state["queued"]} | {p["group_id"] for p in state["pending"]}
    ended = len(trained) + ledger.num_failed + ledger.num_evicted
    assert ended + len(unfinished) == state["next_group_id"]
    if outcome == "finished":
        check_total(config, world)
    elif outcome == "NoReplicaError":
        assert world.session.controller.failures


@PROFILE
@given(worlds())
def test_an_undisturbed_run_keeps_its_promises(make: MakeWorld) -> None:
    config = make()
    mode = config.step_mode
    assert mode is not None
    ahead: list[int] = []
    ages: list[int] = []

    def script(world: World) -> None:
        submit, train = rollouter_of(world).submit, world.trainer.train

        def noted(num_prompts: int, step: int) -> int:
            count = submit(num_prompts, step)
            ahead.append(len(rollouter_of(world).store))
            return count

        async def seen(groups: Any, version: int) -> Any:
            ages.extend(version + 1 - g.submit_version for g in groups)
            assert len(groups) <= mode.settings.mini_batch_size
            return await train(groups, version)

        rollouter_of(world).submit = noted  # type: ignore[method-assign]
        world.trainer.train = seen  # type: ignore[method-assign]

    try:
        world = simulate(config, script)
    except DataError:
        event("in vain")
        return
    event("finished")
    check_total(config, world)
    batch = mode.settings.train_batch_size
    assert max(ahead, default=0) <= (mode.settings.num_warmup_batches + 1) * batch
    if mode.rules.max_off_policy_strategy is OffPolicyStrategy.DROP and mode.rules.max_off_policy_threshold:
        assert max(ages, default=0) <= mode.rules.max_off_policy_threshold
    for row in world.rows:
        assert row["replay_buffer/refilled_samples"] <= row["replay_buffer/evicted_samples"]
        assert row["dynamic_resource/num_activations"] <= 2 + (config.test_freq > 0) + (row is world.rows[0])
    if not mode.policy.lends:
        assert world.session.controller.costs.num_activations == 0
    lent = [row["separate_async/decision/should_switch_to_rollout"] for row in world.rows]
    ledger = rollouter_of(world).ledger
    # What was left may have turned out to be of no use.
    assert not lent or not lent[-1] or ledger.num_evicted or ledger.num_failed, "the last step lent"


def session_of(
    make: MakeWorld, state: dict[str, Any] | None, stop_after_s: float | None
) -> tuple[World, dict[str, Any]]:
    """One session of a run that is perhaps resumed, and what it saved at its end."""
    built: list[World] = []

    def script(world: World) -> None:
        built.append(world)
        if state is not None:
            world.session.load_state_dict(state)
        if stop_after_s is not None:
            asyncio.get_running_loop().call_at(stop_after_s, world.session.stop, "stopped")

    saver = MemorySaver()
    try:
        simulate(replace(make(), saver=saver), script)
    except DataError:
        event("in vain")
    return built[0], saver.last


@PROFILE
@given(worlds(), st.lists(TIMES, min_size=1, max_size=3))
def test_stopping_and_resuming_trains_evicts_or_fails_every_group_once(make: MakeWorld, stops: list[float]) -> None:
    trained: list[int] = []
    state: dict[str, Any] | None = None
    config = make()
    assert config.step_mode is not None
    for when in [*stops, None]:
        world, state = session_of(make, state, when)
        trained += world.trainer.trained
        left = {g["group_id"] for g in state["queued"]} | {p["group_id"] for p in state["pending"]}
        ended = len(trained) + state["num_failed"] + state["num_evicted"]
        assert ended + len(left) == state["next_group_id"] and not left & set(trained)
        if world.exit_reason == "finished" and config.step_mode.settings.total_training_steps is None:
            assert ended == config.num_prompts
    assert len(set(trained)) == len(trained)


@settings(PROFILE, max_examples=40)
@given(worlds(), faults())
def test_the_same_world_gives_the_same_trace(make: MakeWorld, planned: PlannedFaults) -> None:
    traces = []
    for _ in range(2):
        fresh = PlannedFaults(errors=dict(planned.errors), delays_s=dict(planned.delays_s))
        built: list[World] = []
        try:
            simulate(replace(make(), faults=fresh), built.append)
        except SwingshiftError as error:
            assert not isinstance(error, DeadlockError)
        world = built[0]
        # Sorted: where an error ends the run, the task group cancels its tasks in no order.
        spans = sorted((s.device, s.state, s.start_s, s.end_s) for s in world.spans)
        traces.append((world.rows, spans, world.trainer.trained, fresh.log))
    assert traces[0] == traces[1]
