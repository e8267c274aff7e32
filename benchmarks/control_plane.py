"""How much work the control plane itself costs: routing, queue, decisions, checkpoints, whole groups per second.

Nothing here generates or trains: replicas, trainer and rewards answer at once, so what is left is ours. Prints a
table with the figures measured for the published implementation beside; ``--json FILE`` writes the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from swingshift.core.routing import RoutingTable
from swingshift.core.staleness import BudgetNumbers
from swingshift.core.types import (
    FinishReason,
    GenerationRequest,
    Prompt,
    ReplicaKind,
    Sample,
    SampleGroup,
    SamplingParams,
    TokenOutput,
)
from swingshift.runtime.checkpoint import CheckpointStore, group_to_json
from swingshift.runtime.client import GenerationClient
from swingshift.runtime.group_feeder import FeederParts
from swingshift.runtime.group_runner import RolloutSettings
from swingshift.runtime.load_balancer import LoadBalancer
from swingshift.runtime.queue import SampleQueue
from swingshift.runtime.rollouter import Rollouter
from swingshift.runtime.signals import Signal, WaitBoard
from swingshift.schedule import DynamicScheduleContext, build_policy

# Measured on a machine like this one; noisy, only ratios within one run mean much.
PUBLISHED = {
    "balancer, 4 replicas, new ids": "400k pairs/s in process, 449–862 as an actor",
    "balancer, 16 replicas, new ids": "285–412k pairs/s in process",
    "balancer, 128 replicas, new ids": "124–148k pairs/s in process",
    "balancer, 4 replicas, sticky": "1.2–1.4M pairs/s in process",
    "queue, put + take": "484–636 puts/s, 545–671 gets/s (10 KB a group, remote)",
    "hand-off to a waiting consumer": "p50 2.3 ms",
    "policy decision": "6.8 + 3.8 µs",
    "groups through the whole control plane": "target: at least 2,000/s",
}


def best_rate(num_operations: int, body: Callable[[], None], repeats: int = 5) -> float:
    """Operations per second of the fastest repeat: the machine's noise only ever slows things down."""
    fastest = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        body()
        fastest = min(fastest, time.perf_counter() - started)
    return num_operations / fastest


def balancer_rate(num_replicas: int, sticky: bool, num_pairs: int = 50_000) -> float:
    """Acquire + release pairs per second, with as many requests in flight as 16 a replica."""
    table = RoutingTable()
    for i in range(num_replicas):
        table.add(f"replica-{i}")
    for i in range(16 * num_replicas):
        table.acquire(f"background-{i}")
    ids = ["same"] * num_pairs if sticky else [f"request-{i}" for i in range(num_pairs)]

    def body() -> None:
        acquire, release = table.acquire, table.release
        for request_id in ids:
            lease = acquire(request_id)
            assert lease is not None
            release(lease)

    return best_rate(num_pairs, body)


def make_group(group_id: int, num_tokens: int = 300) -> SampleGroup:
    sample = Sample(tuple(range(num_tokens)), (-1.0,) * num_tokens, ((0, num_tokens),), FinishReason.STOP, reward=1.0)
    return SampleGroup(group_id, Prompt(str(group_id), (0,) * 16), (sample,) * 8, 0)


def queue_rate(num_groups: int = 100_000) -> float:
    group, queue = make_group(0), SampleQueue(num_groups)

    def body() -> None:
        for _ in range(num_groups):
            queue.put(group)
        for _ in range(num_groups // 100):
            queue.take(100)

    return best_rate(num_groups, body)


async def hand_off_s(num_groups: int = 2_000) -> float:
    """Median time from a put to the moment the waiting consumer has the group."""
    queue, changed, group = SampleQueue(10), Signal(WaitBoard()), make_group(0)
    put_at, latencies = 0.0, []

    async def consume() -> None:
        for _ in range(num_groups):
            await changed.until(lambda: len(queue) > 0, who="consumer", what=lambda: "a group")
            queue.take(1)
            latencies.append(time.perf_counter() - put_at)

    consumer = asyncio.create_task(consume())
    while not consumer.done():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        put_at = time.perf_counter()
        queue.put(group)
        changed.notify()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return statistics.median(latencies)


class NoTrainer:
    """Writes nothing of its own into a checkpoint."""

    async def save(self, folder: Path) -> None: ...


async def checkpoint_stall_s(num_groups: int = 512) -> float:
    """Longest time for which the loop does not get round to a beat every 5 ms while 1.2M queued tokens are saved."""
    groups, longest_s = [make_group(i) for i in range(num_groups)], 0.0

    async def beat() -> None:
        nonlocal longest_s
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, time.perf_counter() - started - 0.005)

    heart = asyncio.create_task(beat())
    await asyncio.sleep(0.1)
    longest_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        state = {"queued": [group_to_json(group) for group in groups]}
        await CheckpointStore(Path(folder), NoTrainer()).save(1, state)  # type: ignore[arg-type]
    heart.cancel()
    return longest_s


def decision_s(num_decisions: int = 20_000) -> float:
    """One cycle's questions to the default policy: the gate and the adaptation."""
    policy = build_policy("default", deactivate_ratio=0.6)
    ctx = DynamicScheduleContext(
        required_samples=64,
        trigger_parameter_sync_step=4,
        total_generated_samples=1000,
        expected_samples=900,
        step_wait_times=[0.1, 0.2, 0.0, 0.3],
        step_wait_samples=[3, 9, 0, 12],
        switch_costs_s=(10.0, 11.0, 12.0),
    )

    def body() -> None:
        for step in range(1, num_decisions + 1):
            policy.should_activate_after_step(step, False, ctx)
            policy.update_after_step(step, ctx)

    return 1.0 / best_rate(num_decisions, body)


class InstantReplica:
    """Answers in the next turn of the event loop."""

    kind = ReplicaKind.STANDALONE

    def __init__(self, name: str, num_tokens: int) -> None:
        self.id = name
        self.devices: tuple[str, ...] = (name,)
        tokens = tuple(range(num_tokens))
        self._output = TokenOutput(tokens, (-1.0,) * num_tokens, ((0, num_tokens),), FinishReason.STOP)

    async def generate(self, request: GenerationRequest) -> tuple[TokenOutput, ...]:
        await asyncio.sleep(0)
        return (self._output,) * request.num_responses


class InstantReward:
    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        await asyncio.sleep(0)
        return (1.0,) * len(group.samples)


class EndlessPrompts:
    def __init__(self) -> None:
        self._prompt = Prompt("p", (0,) * 16)

    def next(self) -> Prompt:
        return self._prompt

    def remaining(self) -> int:
        return 1_000_000_000

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: object) -> None: ...


async def groups_per_second(num_replicas: int, seconds: float) -> float:
    """Groups of 8 responses through rollouter, client, balancer and queue, taken by a consumer in batches."""
    numbers = BudgetNumbers(64, 1, 4, 1.0, 16)
    board = WaitBoard()
    balancer = LoadBalancer(RoutingTable(), board, 60.0)
    parts = FeederParts(
        numbers=numbers,
        settings=RolloutSettings(num_responses=8, sampling=SamplingParams(max_tokens=64)),
        prompts=EndlessPrompts(),
        client=GenerationClient(balancer),
        reward=InstantReward(),
        board=board,
        now=time.perf_counter,
        num_replicas=lambda: balancer.num_members,
    )
    rollouter = Rollouter(parts)
    balancer.on_members = rollouter.capacity_changed
    balancer.add([InstantReplica(f"replica-{i}", 64) for i in range(num_replicas)])  # type: ignore[misc]
    consumed, started = 0, time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        rollouter.start(tasks)
        version = 0
        while time.perf_counter() - started < seconds:
            for _ in range(numbers.trigger_parameter_sync_step):
                await rollouter.wait_buffered(numbers.required_samples, who="consumer")
                consumed += len(rollouter.take(numbers.required_samples))
            version += 1
            rollouter.reset_staleness(version)
        elapsed_s = time.perf_counter() - started
        await rollouter.cancel()
    return consumed / elapsed_s


def measure(seconds: float) -> dict[str, tuple[float, str]]:
    """Name → value and unit."""
    results: dict[str, tuple[float, str]] = {}
    for num_replicas in (4, 16, 128):
        for sticky in (False, True):
            name = f"balancer, {num_replicas} replicas, {'sticky' if sticky else 'new ids'}"
            results[name] = (balancer_rate(num_replicas, sticky), "pairs/s")
    results["queue, put + take"] = (queue_rate(), "groups/s")
    results["hand-off to a waiting consumer"] = (asyncio.run(hand_off_s()) * 1e6, "µs")
    results["policy decision"] = (decision_s() * 1e6, "µs")
    results["longest stall while a checkpoint is saved"] = (
        min(asyncio.run(checkpoint_stall_s()) for _ in range(3)) * 1e3,
        "ms",
    )
    rates = [asyncio.run(groups_per_second(n, seconds)) for n in (16, 16, 16)]
    results["groups through the whole control plane"] = (max(rates), "groups/s")
    results["groups, 128 replicas"] = (asyncio.run(groups_per_second(128, seconds)), "groups/s")
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each whole-plane run")
    options = parser.parse_args(arguments)
    results = measure(options.seconds)
    print(f"{'part':<42} {'here':>18}   published")
    for name, (value, unit) in results.items():
        print(f"{name:<42} {value:>12,.1f} {unit:<9} {PUBLISHED.get(name, '')}")
    if options.json is not None:
        machine = {"python": platform.python_version(), "cpus": os.cpu_count(), "machine": platform.machine()}
        numbers = {name: {"value": value, "unit": unit} for name, (value, unit) in results.items()}
        options.json.write_text(json.dumps({"machine": machine, "results": numbers}, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
