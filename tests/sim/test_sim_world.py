"""Whole simulated runs: the same trace everywhere, nothing kept that need not be, invariants that notice."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swingshift.core.timeline import DeviceSpan
from swingshift.runtime.cycle_report import CycleReport
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.workload import (
    BernoulliReward,
    drifting_lengths,
    empirical_lengths,
    heavy_tailed_lengths,
    lognormal_lengths,
    tool_pauses,
)
from swingshift.sim.world import World, WorldConfig, simulate

COST = ReplicaCost(
    step_base_s=0.01,
    step_per_sequence_s=0.002,
    step_per_kv_token_s=1e-6,
    prefill_per_token_s=1e-5,
    max_num_seqs=4,
    kv_capacity_tokens=700,
)


def base(**changes: Any) -> WorldConfig:
    config = WorldConfig(
        num_prompts=61,
        num_standalone=3,
        num_hybrid=2,
        lengths=lognormal_lengths(60, 0.8, 300),
        max_tokens=300,
        replica_cost=COST,
    )
    return replace(config, **changes)


WORKLOADS: dict[str, Callable[[], WorldConfig]] = {
    "lognormal, random routing": lambda: base(routing="power_of_two", seed=3),
    "heavy-tailed": lambda: base(lengths=heavy_tailed_lengths(40, 0.5, 300)),
    "drifting, large replicas": lambda: base(lengths=drifting_lengths(20, 120, 60, 0.5, 300), devices_per_replica=4),
    "empirical, drawn rewards": lambda: base(
        lengths=empirical_lengths([5, 50, 290]), reward=BernoulliReward(0.4, 0.3, seconds=0.1)
    ),
    "tools, colocated": lambda: base(pauses=tool_pauses(3, 0.5), num_standalone=0),
    "tools, start over": lambda: base(pauses=tool_pauses(4, 0.2), partial_rollout=False),
}


def trace(config: WorldConfig) -> str:
    """Everything a run reports, byte by byte."""
    world = simulate(config)
    spans = [[s.device, s.state.value, s.start_s, s.end_s] for s in world.spans]
    return json.dumps([world.rows, spans, world.trainer.trained, world.wall_s])


REPLAY = """
import sys
sys.path.insert(0, sys.argv[1])
from test_sim_world import WORKLOADS, trace
for name in WORKLOADS:
    print(trace(WORKLOADS[name]()))
"""


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    here = [trace(make()) for make in WORKLOADS.values()]
    assert len(set(here)) == len(here)
    assert all(len(json.loads(t)[0]) == 8 and len(json.loads(t)[1]) > 50 for t in here)
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", REPLAY, str(Path(__file__).parent)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        assert done.stdout.splitlines() == here


def test_another_seed_gives_another_trace() -> None:
    assert trace(base(routing="power_of_two", seed=1)) != trace(base(routing="power_of_two", seed=2))
    assert trace(base(lengths=lognormal_lengths(60, 0.8, 300, seed=1))) != trace(base())


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_trains_every_group_once_with_exact_tokens(name: str) -> None:
    config = WORKLOADS[name]()
    world = simulate(config)
    assert sorted(world.trainer.trained) == list(range(61))
    for report in world.reports:
        for group in report.groups:
            for index, sample in enumerate(group.samples):
                wanted = min(config.max_tokens, config.lengths(str(group.group_id), index))
                assert tuple(sample.token_ids) == tuple(range(wanted))


def test_waiting_for_tools_takes_time_but_no_tokens() -> None:
    quiet, busy = simulate(base()), simulate(base(pauses=tool_pauses(3, 1.0)))
    assert busy.wall_s > quiet.wall_s + 1.0
    quiet_tokens, busy_tokens = (sum(row["perf/tokens"] for row in world.rows) for world in (quiet, busy))
    assert quiet_tokens == busy_tokens


# --- history and memory -------------------------------------------------------------------------------------------


def test_history_goes_to_the_hooks_and_need_not_be_kept() -> None:
    reports: list[CycleReport] = []
    spans: list[DeviceSpan] = []
    kept = simulate(base())
    config = base(keep_history=False, on_report=reports.append, on_span=spans.append)
    world = simulate(config)
    assert world.reports == [] and world.spans == [] and world.trainer.trained == []
    assert [r.row for r in reports] == kept.rows and spans == kept.spans
    assert world.wall_s == kept.wall_s


def test_memory_does_not_grow_with_the_number_of_cycles() -> None:
    def held_bytes(num_cycles: int) -> int:
        worlds: list[World] = []
        held: list[int] = []

        def measure(report: CycleReport) -> None:
            if report.version == num_cycles - 1:
                # Of many recent requests it is remembered who served them; that is bounded, but by more than this.
                worlds[0].session.balancer.table.clear_sticky()
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])

        config = base(keep_history=False, num_prompts=2 * num_cycles, ppo_mini_batch_size=1, on_report=measure)
        tracemalloc.start()
        try:
            simulate(config, worlds.append)
        finally:
            tracemalloc.stop()
        return held[0]

    held_bytes(5)
    assert held_bytes(80) < held_bytes(20) + 50_000


def test_a_run_leaves_nothing_to_the_garbage_collector() -> None:
    """Cycles of objects would pile up between its rare visits: hundreds a group if one were made for each."""
    found: list[int] = []

    def collect(report: CycleReport) -> None:
        found.append(gc.collect())

    gc.disable()
    try:
        simulate(base(keep_history=False, on_report=collect, pauses=tool_pauses(3, 0.1)))
    finally:
        gc.enable()
    assert len(found) == 8 and max(found[1:]) < 50


def test_what_ends_is_described_shortly() -> None:
    """Python describes the task that ran the world when it restores its signal handler."""
    assert len(repr(simulate(base()))) < 200


# --- invariants ---------------------------------------------------------------------------------------------------


def damage(world: World, when: float, what: Callable[[World], None]) -> None:
    asyncio.get_running_loop().call_at(when, what, world)


def lose_weights(world: World) -> None:
    world.standalone[0].has_weights = False


def old_version(world: World) -> None:
    world.standalone[0].serving.version = -1


def lose_group(world: World) -> None:
    world.session.rollouter.ledger.live.popitem()


def wake_while_training(world: World) -> None:
    world.hybrid[0].sim_devices[-1].rollout_awake = True
    world.hybrid[0].touched[world.hybrid[0]] = None


def unrouted_request(world: World) -> None:
    replica = world.standalone[0]
    for lease in list(world.session.balancer.table._lives[replica.id].leases.values()):
        world.session.balancer.table.release(lease)


DAMAGE = [
    (lose_weights, 0.25),
    (old_version, 0.25),
    (unrouted_request, 0.25),
    (lose_group, 0.25),
    (wake_while_training, 1.7),
]


@pytest.mark.parametrize(("what", "when"), DAMAGE)
@pytest.mark.parametrize("every", [1, None, 10**9])
def test_damage_is_noticed_in_small_and_large_worlds(
    what: Callable[[World], None], when: float, every: int | None
) -> None:
    """A large world looks at a replica only when something happens to it; then it must see the same."""
    config = WorldConfig(
        num_standalone=12,
        num_hybrid=2,
        ppo_mini_batch_size=24,
        num_prompts=400,
        lengths=lognormal_lengths(60, 0.8, 100),
        trainer_cost=TrainerCost(per_group_s=0.05, offload_s=0.1, onload_s=0.1),
        policy="static_fully_async",
        full_check_every=every,
    )
    with pytest.raises(AssertionError):
        simulate(config, lambda world: damage(world, when, what))


def test_checking_less_often_changes_nothing() -> None:
    traces = {trace(base(full_check_every=every)) for every in (1, 7, None, 10**9)}
    assert len(traces) == 1
