"""The order of calls in each transition and sync is what keeps requests and memory safe."""

from __future__ import annotations

import asyncio

import pytest
from runtime_builders import ScriptedPolicy

from swingshift.core.lifecycle import ACTIVATE_STEPS, DEACTIVATE_STEPS, Step
from swingshift.schedule import Rebalance
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.world import World, WorldConfig, simulate

STEP_OF_CALL = {
    ("trainer", "offload"): Step.OFFLOAD_TRAINER,
    ("weight_sync", "sync_hybrid"): Step.SYNC_WEIGHTS,
    ("hybrid-0", "resume_generation"): Step.RESUME_GENERATION,
    ("hybrid-0", "abort"): Step.ABORT,
    ("hybrid-0", "sleep"): Step.SLEEP,
    ("trainer", "onload"): Step.ONLOAD_TRAINER,
    ("balancer", "add"): Step.ADD_TO_ROUTING,
    ("balancer", "remove"): Step.REMOVE_FROM_ROUTING,
}


def logged_run(**settings: object) -> list[tuple[str, str]]:
    """All port calls in order, with what happens to the hybrid replica's routing among them."""
    faults = PlannedFaults()

    def watch(world: World) -> None:
        table = world.session.balancer.table
        add, remove = table.add, table.remove

        def logged_add(replica_id: str) -> None:
            if replica_id == "hybrid-0":
                faults.log.append(("balancer", "add"))
            add(replica_id)

        def logged_remove(replica_id: str) -> bool:
            if replica_id == "hybrid-0":
                faults.log.append(("balancer", "remove"))
            return remove(replica_id)

        table.add, table.remove = logged_add, logged_remove  # type: ignore[method-assign]

    simulate(WorldConfig(faults=faults, **settings), watch)  # type: ignore[arg-type]
    return faults.log


def hybrid_steps(log: list[tuple[str, str]]) -> list[Step]:
    steps = []
    for call in log:
        if call == ("hybrid-0", "wake_up"):
            woken = Step.WAKE_WEIGHTS in steps[-2:]
            steps.append(Step.WAKE_KV_CACHE if woken else Step.WAKE_WEIGHTS)
        elif call in STEP_OF_CALL:
            steps.append(STEP_OF_CALL[call])
    return steps


@pytest.mark.parametrize("num_standalone", [0, 1])
def test_lending_follows_the_table_of_steps(num_standalone: int) -> None:
    log = logged_run(num_standalone=num_standalone, policy_object=ScriptedPolicy(wait=4), num_prompts=32)
    steps = hybrid_steps(log)
    round_trip = [*ACTIVATE_STEPS, *DEACTIVATE_STEPS]
    num_trips = len(steps) // len(round_trip)
    assert num_trips >= 3 and steps == round_trip * num_trips


def test_a_standalone_sync_pauses_frees_writes_restores_and_resumes() -> None:
    log = logged_run(lend=False, num_prompts=8)
    calls = [call for call in log if call[0] in ("standalone-0", "weight_sync") and call[1] != "generate"]
    sync = ["abort", "release_kv_cache", "sync_standalone", "resume_kv_cache", "resume_generation"]
    verbs = [verb for _, verb in calls if verb != "publish"]
    assert verbs == sync * 2
    published = [i for i, call in enumerate(calls) if call[1] == "publish"]
    written = [i for i, call in enumerate(calls) if call[1] == "sync_standalone"]
    assert all(p < w for p, w in zip(published, written, strict=True))


def test_a_kept_kv_cache_is_not_freed_but_its_prefixes_are_forgotten() -> None:
    log = logged_run(lend=False, num_prompts=8, release_kv_cache=False)
    verbs = [verb for name, verb in log if name == "standalone-0" and verb != "generate"]
    assert verbs == ["abort", "resume_kv_cache", "resume_generation"] * 2


def test_weights_do_not_go_to_replicas_that_stay_asleep() -> None:
    log = logged_run(policy="static_fully_async")
    assert not any(name == "hybrid-0" or verb == "sync_hybrid" for name, verb in log)


def test_rebalance_follows_activation_only_where_it_is_wanted() -> None:
    def num_aborts(**settings: object) -> int:
        log = logged_run(num_prompts=32, **settings)
        return sum(call == ("standalone-0", "abort") for call in log)

    syncs = 5  # the first and one a cycle
    full = ScriptedPolicy(rebalance=Rebalance.FULL)
    assert num_aborts(policy_object=full) == syncs + 4, "after each activation"
    assert num_aborts(policy_object=full, enable_rebalance=False) == syncs
    assert num_aborts(policy_object=ScriptedPolicy(rebalance=None)) == syncs


def test_requests_wait_for_the_slowest_replica_of_a_sync_and_then_spread() -> None:
    """All replicas are routed to again together: the first one ready must not get everything."""
    loads: list[list[int]] = []

    def watch(world: World) -> None:
        def look() -> None:
            loads.append(sorted(world.session.balancer.table.loads().values()))

        asyncio.get_running_loop().call_at(0.6, look)

    faults = PlannedFaults(delays_s={("standalone-0", "resume_kv_cache"): 0.5})
    simulate(WorldConfig(num_standalone=2, lend=False, faults=faults, num_prompts=8), watch)
    assert loads == [[4, 4]]


@pytest.mark.parametrize(("verb", "seconds"), [("publish", 2.021), ("sync_standalone", 2.023)])
def test_syncs_are_timed_as_such(verb: str, seconds: float) -> None:
    """Publishing goes on while the replicas abort and free their caches."""
    faults = PlannedFaults(delays_s={("weight_sync", verb): 2.0})
    world = simulate(WorldConfig(lend=False, faults=faults, num_prompts=16))
    assert all(row["timing_s/param_sync"] == pytest.approx(seconds) for row in world.rows)
    assert all(row["timing_s/activate"] == 0.0 for row in world.rows)
