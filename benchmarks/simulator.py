"""How fast the simulator is: events, tokens and groups a second, large worlds, memory, and SimPy beside it.

An *event* is a callback that the event loop ran (a timer that fired or a task that went on), or a response that
joined a batch or left it; decode steps, which cost nothing one by one, are not counted. Rates are per second of one
core's CPU time, other times are by the clock. Every world runs with its invariants checked. ``--json FILE`` writes
the numbers, ``--quick`` runs small worlds only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import json
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simpy_replica import COST, SimpyReplica, SimpySteps
from swingshift.core.types import GenerationRequest, ReplicaKind, SamplingParams
from swingshift.runtime.cycle_report import CycleReport
from swingshift.sim.device import SimDevice
from swingshift.sim.hardware import H20, Efficiency, ModelSpec, replica_cost, trainer_cost
from swingshift.sim.loop import VirtualTimeLoop, run_virtual
from swingshift.sim.replica import SimReplica
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

MODEL = ModelSpec(num_params=35e9, num_active_params=3e9, kv_bytes_per_token=40e3)
MINI_BATCH, CYCLE = 16, 4


def world(num_devices: int, num_cycles: int, *, devices_per_replica: int = 2, scale: int = 1) -> WorldConfig:
    """Half of the devices train; ``scale`` multiplies the mini-batch of 16."""
    num_replicas = num_devices // 2 // devices_per_replica
    efficiency = Efficiency()
    return WorldConfig(
        num_standalone=num_replicas,
        num_hybrid=num_replicas,
        devices_per_replica=devices_per_replica,
        ppo_mini_batch_size=MINI_BATCH * scale,
        trigger_parameter_sync_step=CYCLE,
        staleness_threshold=0.5,
        concurrent_samples_per_replica=16,
        num_responses=8,
        num_prompts=MINI_BATCH * scale * CYCLE * num_cycles,
        prompt_length=256,
        max_tokens=20_480,
        lengths=lognormal_lengths(4000, 0.8, 20_480),
        replica_cost=replica_cost(
            MODEL, H20, devices_per_replica=devices_per_replica, efficiency=efficiency, memory_fraction=0.9
        ),
        trainer_cost=trainer_cost(
            MODEL, H20, num_devices=num_devices // 2, devices_per_replica=devices_per_replica, efficiency=efficiency
        ),
        keep_history=False,
    )


@dataclass
class Run:
    """A simulated run and what it cost."""

    config: WorldConfig
    world: World
    loop: VirtualTimeLoop
    wall_s: float
    cpu_s: float

    @property
    def replicas(self) -> list[SimReplica]:
        return [*self.world.standalone, *self.world.hybrid]

    @property
    def num_events(self) -> int:
        moves = sum(r.serving.num_joins + r.serving.num_leaves for r in self.replicas)
        return self.loop.num_callbacks + moves

    @property
    def num_tokens(self) -> int:
        return sum(r.serving.num_decoded_tokens for r in self.replicas)


def run(config: WorldConfig) -> Run:
    loops: list[VirtualTimeLoop] = []

    def keep_loop(world: World) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loops.append(loop)

    started, cpu_started = time.perf_counter(), time.process_time()
    finished = simulate(config, keep_loop)
    return Run(config, finished, loops[0], time.perf_counter() - started, time.process_time() - cpu_started)


def speed(num_cycles: int, repeats: int) -> dict[str, tuple[float, str]]:
    """32 devices; the fastest repeat, for noise only ever slows things down."""
    best = min((run(world(32, num_cycles)) for _ in range(repeats)), key=lambda r: r.cpu_s)
    name = f"32 devices, {num_cycles} cycles"
    return {
        "events": (best.num_events / best.cpu_s, "events/s"),
        "of these timers": (best.loop.num_timers / best.cpu_s, "timers/s"),
        "of these responses in or out": (
            sum(r.serving.num_joins + r.serving.num_leaves for r in best.replicas) / best.cpu_s,
            "moves/s",
        ),
        "generated tokens": (best.num_tokens / best.cpu_s, "tokens/s"),
        "groups": (best.config.num_prompts / best.cpu_s, "groups/s"),
        name: (best.wall_s, "s"),
        f"{name}, simulated": (best.world.wall_s / 3600, "h"),
    }


def large(num_devices: int, num_cycles: int) -> dict[str, tuple[float, str]]:
    """As many replicas as devices, and work for all of them."""
    result = run(world(num_devices, num_cycles, devices_per_replica=1, scale=num_devices // 16))
    name = f"{num_devices} devices, {num_cycles} cycles"
    return {
        name: (result.wall_s, "s"),
        f"{name}, events": (result.num_events / result.cpu_s, "events/s"),
        f"{name}, groups": (result.config.num_prompts / result.cpu_s, "groups/s"),
    }


def used_bytes(num_cycles: int) -> tuple[int, int]:
    """Python memory that a run holds before its last cycle, and the most it had (with garbage) until then."""
    config = world(8, num_cycles, devices_per_replica=1)
    used = []

    def measure(report: CycleReport) -> None:
        if report.version == num_cycles - 1:
            peak = tracemalloc.get_traced_memory()[1]
            gc.collect()
            used.append((tracemalloc.get_traced_memory()[0], peak))

    config.on_report = measure
    tracemalloc.start()
    simulate(config)
    tracemalloc.stop()
    return used[0]


def memory(few: int, many: int) -> dict[str, tuple[float, str]]:
    used_bytes(3)  # Imports and caches are not what a run holds.
    first, second = used_bytes(few), used_bytes(many)
    return {
        f"memory held, {few} cycles": (first[0] / 1e6, "MB"),
        f"memory held, {many} cycles": (second[0] / 1e6, "MB"),
        f"most memory, {few} cycles": (first[1] / 1e6, "MB"),
        f"most memory, {many} cycles": (second[1] / 1e6, "MB"),
        "growth of the most": (second[1] / first[1], "×"),
    }


# --- one replica, here and in SimPy -------------------------------------------------------------------------------

NUM_CLIENTS = 96


def request(client: int, number: int) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=8192)
    return GenerationRequest(f"{client}/{number}", (0,) * 64, ((),), (8192,), sampling)


def here(num_requests: int, lengths: Callable[[str, int], int]) -> float:
    """96 clients, each with one request after the other; returns when the last one is answered."""

    async def main() -> float:
        replica = SimReplica("r", ReplicaKind.STANDALONE, [SimDevice("d")], COST, lengths)
        replica.write_weights(0)
        await replica.resume_generation()

        async def client(index: int) -> None:
            for number in range(num_requests // NUM_CLIENTS):
                await replica.generate(request(index, number))

        async with asyncio.TaskGroup() as tasks:
            for index in range(NUM_CLIENTS):
                tasks.create_task(client(index))
        return asyncio.get_running_loop().time()

    return run_virtual(main())


def in_simpy(kind: type[SimpyReplica | SimpySteps], num_requests: int, lengths: Callable[[str, int], int]) -> float:
    env = importlib.import_module("simpy").Environment()
    replica = kind(env, lengths)

    def client(index: int) -> Any:
        for number in range(num_requests // NUM_CLIENTS):
            yield replica.generate(request(index, number))

    clients = [env.process(client(index)) for index in range(NUM_CLIENTS)]
    env.run(until=env.all_of(clients))
    return float(env.now)


def replicas(num_requests: int, repeats: int) -> dict[str, tuple[float, str]]:
    lengths = lognormal_lengths(1000, 0.8, 8192)

    def measure(body: Callable[[int], float], count: int) -> tuple[float, float]:
        seconds, end_s = float("inf"), 0.0
        for _ in range(repeats):
            started = time.process_time()
            end_s = body(count)
            seconds = min(seconds, time.process_time() - started)
        return count / seconds, end_s

    ours, our_end = measure(lambda n: here(n, lengths), num_requests)
    same, same_end = measure(lambda n: in_simpy(SimpyReplica, n, lengths), num_requests)
    assert abs(our_end - same_end) < 1e-6 * our_end, "the two simulate different things"
    few = max(NUM_CLIENTS, num_requests // 20)
    steps, steps_end = measure(lambda n: in_simpy(SimpySteps, n, lengths), few)
    assert abs(here(few, lengths) - steps_end) < 0.02 * steps_end, "the two simulate different things"
    return {
        "one replica, here": (ours, "responses/s"),
        "one replica, SimPy, same model": (same, "responses/s"),
        "one replica, SimPy, an event a decode step": (steps, "responses/s"),
        "here against SimPy, same model": (ours / same, "×"),
        "here against SimPy, an event a decode step": (ours / steps, "×"),
    }


TARGETS = {
    "events": "at least 100,000",
    "32 devices, 60 cycles": "under 30",
    "1024 devices, 20 cycles": "under 180",
    "growth of the most": "flat: about 1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="small worlds only: seconds instead of minutes")
    options = parser.parse_args(arguments)
    results = speed(10 if options.quick else 60, 1 if options.quick else 5)
    results |= large(128, 3) if options.quick else large(1024, 20)
    results |= memory(5, 20) if options.quick else memory(50, 200)
    results |= replicas(960 if options.quick else 19_200, 1 if options.quick else 3)
    print(f"{'part':<46} {'here':>16}")
    for name, (value, unit) in results.items():
        print(f"{name:<46} {value:>16,.2f} {unit:<12} {TARGETS.get(name, '')}")
    if options.json is not None:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
        numbers = {name: {"value": value, "unit": unit} for name, (value, unit) in results.items()}
        options.json.write_text(json.dumps({"machine": machine, "results": numbers}, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
