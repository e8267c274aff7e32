"""A made-up run that lends: every file of a run directory, in the shape a real run has."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

from swingshift.core.metrics import CycleMetrics, LendingCycle, RolloutCycle, RolloutUtilization
from swingshift.core.timeline import Timeline
from swingshift.core.types import DeviceState as S
from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.observe.sinks import JsonlSink
from swingshift.observe.span_log import SpanLog

COLLECTIONS = 4


def make_group(group_id: int, version: int, reward: float, length: int = 8) -> SampleGroup:
    good = Sample((3,) * length, (-0.1,) * length, ((version, length),), FinishReason.STOP, reward=reward)
    return SampleGroup(group_id, Prompt(f"p{group_id}", (1, 2, 3)), (good, good), version)


class FakeRun:
    """Plays cycles on a clock of its own: lend until enough is queued, train four times, sync, lend again."""

    def __init__(self, run_dir: Path, num_hybrid: int = 1, num_standalone: int = 1, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.spans = SpanLog(run_dir / "timeline.jsonl")
        self.sink = JsonlSink(run_dir / "metrics.jsonl", clock=lambda: self.now)
        self.timeline = Timeline(self.spans)
        self.cycle = CycleMetrics(num_hybrid, num_standalone)
        self.rollout = RolloutUtilization()
        self.hybrid = [f"hybrid-{i}" for i in range(num_hybrid)]
        self.standalone = [f"standalone-{i}" for i in range(num_standalone)]
        self.rows: list[dict[str, float]] = []
        self.set(self.standalone, S.ROLLOUT)
        self.set(self.hybrid, S.IDLE)
        self.rollout.record(0.0, 16, 16)

    def set(self, devices: list[str], state: S) -> None:
        for device in devices:
            self.timeline.set_state(device, state, self.now)

    def spend(self, seconds: float) -> float:
        seconds *= self.rng.uniform(0.8, 1.25)
        self.now += seconds
        return seconds

    def play(self, num_cycles: int) -> None:
        for version in range(num_cycles):
            lend = version > 0 and self.rng.random() < 0.8
            self._cycle(version, num_cycles, lend)
        self.timeline.close(self.now)
        self.spans.close()
        self.sink.close()

    def _cycle(self, version: int, num_cycles: int, lend: bool) -> None:
        start = self.now
        switched: dict[str, float] = {}
        if lend:
            self.set(self.hybrid, S.SWITCHING)
            switched["activate"] = self.spend(0.12)
            self.set(self.hybrid, S.ROLLOUT)
            self.rollout.record(self.now, 32, 32)
            switched["wait_for_enough_samples"] = self.spend(1.6)
            self.set(self.hybrid, S.SWITCHING)
            self.rollout.record(self.now, 16, 16)
            switched["deactivate"] = self.spend(0.08)
        reward = 0.2 + 0.65 * (1 - math.exp(-3 * version / max(1, num_cycles))) + self.rng.gauss(0, 0.035)
        queue = int(self.rng.triangular(0, 24, 9 if lend else 3))
        for i in range(COLLECTIONS):
            self._collection(version, i, reward, queue, switched)
            switched = {}
        before = self.now
        self.set(self.standalone + self.hybrid, S.SYNCING)
        self.cycle.add_timings({"param_sync": self.spend(0.1), "step": self.now - before})
        self.set(self.standalone, S.ROLLOUT)
        self.set(self.hybrid, S.IDLE)
        busy, capacity = self.rollout.close(self.now)
        rollout = RolloutCycle(busy, capacity, self.now - start, self.now - start, 32, 32 * (version + 1), queue)
        lending = LendingCycle(int(lend), int(lend), 0.12, 0.08, 0.2, 0.2, 0.3) if lend else LendingCycle()
        row = self.cycle.row(now=self.now, global_step=version + 1, rollout=rollout, mq_size=queue, lending=lending)
        self.sink.log(version + 1, row)
        self.rows.append(row)

    def _collection(self, version: int, i: int, reward: float, queue: int, before: dict[str, float]) -> None:
        self.set(self.hybrid, S.IDLE)
        gen = self.spend(0.05 if i < 2 else 0.3)
        self.set(self.hybrid, S.TRAIN)
        train = self.spend(0.45)
        timings = {**before, "gen": gen, "update_actor": train, "step": sum(before.values()) + gen + train}
        first = (version * COLLECTIONS + i) * 8
        groups = [make_group(first + j, max(0, version - j % 2), reward) for j in range(8)]
        self.cycle.add_collection(timings, groups, version, gen, 8 if gen > 0.1 else 0)
