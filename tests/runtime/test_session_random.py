"""Random worlds with random faults: a run always ends, breaks no invariant and trains every group at most once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from runtime_builders import MemorySaver

from swingshift.core.routing import STRATEGIES
from swingshift.errors import (
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
from swingshift.sim.workload import SimReward, lognormal_lengths, tool_pauses
from swingshift.sim.world import World, WorldConfig, simulate

PROFILE = settings(max_examples=120, deadline=None, derandomize=True)
# Calls to a replica take effect in the order they were made, so generate is never delayed past a later abort.
VERBS = ["abort", "abort_requests", "resume_generation", "release_kv_cache", "resume_kv_cache", "sleep", "wake_up"]
NAMES = [f"{kind}-{i}" for kind in ("standalone", "hybrid") for i in range(3)]


@st.composite
def worlds(draw: st.DrawFn) -> WorldConfig:
    num_standalone = draw(st.integers(0, 3))
    return WorldConfig(
        num_standalone=num_standalone,
        num_hybrid=draw(st.integers(1, 3)),
        devices_per_replica=draw(st.integers(1, 2)),
        pauses=draw(st.sampled_from([None, None, tool_pauses(3, 0.1)])),
        lend=num_standalone == 0 or draw(st.booleans()),
        policy=draw(st.sampled_from(["default", "fixed_ratio", "static_fully_async"])),
        deactivate_ratio=draw(st.sampled_from([0.1, 0.3, 0.6, 1.0])),
        ppo_mini_batch_size=draw(st.integers(1, 5)),
        require_batches=draw(st.integers(1, 2)),
        trigger_parameter_sync_step=draw(st.integers(1, 4)),
        staleness_threshold=draw(st.sampled_from([0.0, 0.1, 0.5, 2.0])),
        concurrent_samples_per_replica=draw(st.integers(1, 8)),
        num_responses=draw(st.integers(1, 3)),
        num_prompts=draw(st.integers(0, 50)),
        max_tokens=draw(st.sampled_from([1, 50, 100])),
        lengths=lognormal_lengths(draw(st.sampled_from([1, 20, 60])), draw(st.sampled_from([0.0, 1.0])), 500),
        replica_cost=ReplicaCost(
            step_per_sequence_s=draw(st.sampled_from([0.0, 0.002])),
            prefill_per_token_s=draw(st.sampled_from([0.0, 1e-4])),
            step_per_kv_token_s=draw(st.sampled_from([0.0, 1e-5])),
            max_num_seqs=draw(st.sampled_from([1, 4, 16])),
            kv_capacity_tokens=draw(st.sampled_from([None, None, 30, 300])),
        ),
        trainer_cost=TrainerCost(per_group_s=draw(st.sampled_from([0.0, 0.05, 0.5]))),
        reward=SimReward(seconds=draw(st.sampled_from([0.0, 0.3]))),
        max_failed_ratio=1.0,
        enable_rebalance=draw(st.booleans()),
        partial_rollout=draw(st.booleans()),
        release_kv_cache=draw(st.booleans()),
        routing=draw(st.sampled_from(sorted(STRATEGIES))),
        call_timeout_s=5.0,
    )


@st.composite
def faults(draw: st.DrawFn) -> PlannedFaults:
    error = st.sampled_from([ReplicaError, ReplicaDiedError, NotAcceptingError]).map(lambda e: e("injected"))
    call = st.tuples(st.sampled_from(NAMES), st.sampled_from(["generate", *VERBS]), st.integers(1, 5))
    errors: dict[tuple[str, str, int], Exception] = dict(draw(st.lists(st.tuples(call, error), max_size=4)))
    syncs = st.tuples(st.sampled_from(["sync_standalone", "sync_hybrid"]), st.integers(1, 5))
    for verb, nth in draw(st.lists(syncs, max_size=1)):
        errors["weight_sync", verb, nth] = ReplicaError("injected")
    slow = st.tuples(st.sampled_from(NAMES), st.sampled_from(VERBS))
    delay = st.sampled_from([0.001, 0.1, 1.0, 50.0])
    return PlannedFaults(errors=errors, delays_s=dict(draw(st.lists(st.tuples(slow, delay), max_size=3))))


TIMES = st.floats(0.0, 10.0)


@PROFILE
@given(worlds(), st.lists(st.tuples(st.sampled_from(NAMES), TIMES), max_size=4), faults())
def test_a_run_ends_and_loses_nothing_whatever_fails(
    config: WorldConfig, deaths: list[tuple[str, float]], planned: PlannedFaults
) -> None:
    built: list[World] = []

    def script(world: World) -> None:
        built.append(world)
        for replica in (*world.standalone, *world.hybrid):
            for name, when in deaths:
                if replica.id == name:
                    asyncio.get_running_loop().call_at(when, replica.die)

    saver = MemorySaver()
    outcome = "finished"
    try:
        simulate(replace(config, faults=planned, saver=saver), script)
    except (NoReplicaError, TransitionError) as error:
        outcome = type(error).__name__
    event(outcome)
    world = built[0]
    trained, ledger = world.trainer.trained, world.session.rollouter.ledger
    assert len(set(trained)) == len(trained), "a group was trained twice"
    state = saver.last
    assert state["num_consumed"] == len(trained) and state["num_failed"] == ledger.num_failed
    unfinished = {g["group_id"] for g in state["queued"]} | {p["group_id"] for p in state["pending"]}
    assert len(trained) + ledger.num_failed + len(unfinished) == state["next_group_id"]
    if outcome == "finished":
        assert len(trained) + ledger.num_failed == config.num_prompts
    elif outcome == "NoReplicaError":
        assert world.session.controller.failures


@PROFILE
@given(worlds(), st.lists(TIMES, min_size=1, max_size=3))
def test_stopping_and_resuming_trains_every_group_once(config: WorldConfig, stops: list[float]) -> None:
    trained: list[int] = []
    state: dict[str, Any] | None = None
    for when in [*stops, None]:

        def script(world: World, state: dict[str, Any] | None = state, when: float | None = when) -> None:
            if state is not None:
                world.session.load_state_dict(state)
            if when is not None:
                asyncio.get_running_loop().call_at(when, world.session.stop, "stopped")

        saver = MemorySaver()
        world = simulate(replace(config, saver=saver), script)
        trained += world.trainer.trained
        state = json.loads(json.dumps(saver.last))
    assert sorted(trained) == list(range(config.num_prompts))


@settings(PROFILE, max_examples=40)
@given(worlds(), faults())
def test_the_same_world_gives_the_same_trace(config: WorldConfig, planned: PlannedFaults) -> None:
    traces = []
    for _ in range(2):
        fresh = PlannedFaults(errors=dict(planned.errors), delays_s=dict(planned.delays_s))
        built: list[World] = []
        try:
            simulate(replace(config, faults=fresh), built.append)
        except SwingshiftError as error:
            assert not isinstance(error, DeadlockError)
        world = built[0]
        spans = [(s.device, s.state, s.start_s, s.end_s) for s in world.spans]
        traces.append((world.rows, spans, world.trainer.trained, fresh.log))
    assert traces[0] == traces[1]
