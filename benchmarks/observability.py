"""What observing a live run costs: metrics, lanes, event files, sinks and the live view, as a share of its time.

Feeds everything that watches a run with the events of one sync cycle, again and again, and takes the CPU time of each
part: the median of many cycles, since other work on the machine only ever adds. Beside it, the wall-clock of a cycle
of the demo: from ``--run DIR`` (``metrics.jsonl`` of a run of ``make demo``), else what such a run took on two cores.
Prints each part a cycle, a group and as a share of that, then the memory held along 100,000 cycles. Event files are
costed before they thin out. TensorBoard works in a thread of its own, whose time counts here too.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console as RichConsole

from swingshift.core.metrics import CycleMetrics, RolloutCycle
from swingshift.core.timeline import DeviceSpan, Timeline
from swingshift.core.types import (
    DeviceState,
    FinishReason,
    GenerationRequest,
    Prompt,
    ReplicaKind,
    Sample,
    SampleGroup,
    SamplingParams,
    TokenOutput,
)
from swingshift.observe.console import Console
from swingshift.observe.event_files import AttemptLog, EventFiles
from swingshift.observe.live_file import LiveFile
from swingshift.observe.live_state import LiveProbe
from swingshift.observe.prometheus_server import PrometheusExporter
from swingshift.observe.samples import SampleLog
from swingshift.observe.sinks import FanOut, JsonlSink
from swingshift.observe.summary import RunTotals
from swingshift.runtime.group_runner import RolloutMeter
from swingshift.runtime.lanes import DeviceLanes
from swingshift.runtime.observations import Decision, Outcome, Question, attempt_of, decision_numbers
from swingshift.runtime.stopwatch import Stopwatch
from swingshift.schedule.base import DynamicScheduleContext
from swingshift.sim.world import WorldConfig, simulate
from swingshift.tasks.char_tokenizer import char_tokenizer

DEMO_CYCLE_S = 0.33
"""Mean of the 120 cycles of ``make demo`` on two otherwise idle cores."""
FILES = ("metrics.jsonl", "samples.jsonl", "timeline.jsonl", "decisions.jsonl", "levels.jsonl", "attempts.jsonl")
WORKER_ROW = {f"actor/metric_{i}": 0.5 for i in range(20)}
TICK = "a tick (once a second)"
NOT_IN_THE_DEMO = ("Prometheus", "TensorBoard")


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a sync cycle; as many standalone as hybrid devices."""

    num_groups: int = 32
    num_responses: int = 16
    num_tokens: int = 7
    num_pairs: int = 1
    num_collections: int = 4


class Terminal(io.StringIO):
    """One that nobody keeps."""

    def write(self, text: str) -> int:
        return len(text)


class Watchers:
    """Everything that watches a run, writing into ``folder``; ``parts`` are a cycle's events for each."""

    def __init__(self, folder: Path, shape: Shape, decode: Callable[..., str]) -> None:
        self.shape, self.cycle, self.now_s = shape, 0, 0.0
        self.standalone = [f"standalone-{i}" for i in range(shape.num_pairs)]
        self.hybrid = [f"hybrid-{i}" for i in range(shape.num_pairs)]
        world = WorldConfig(num_standalone=shape.num_pairs, num_hybrid=shape.num_pairs, keep_history=False)
        self.session = simulate(world).session
        rich = RichConsole(file=Terminal(), width=120, height=40, force_terminal=True, color_system="truecolor")
        self.console = Console(rich, title="benchmark")
        self.events = EventFiles(folder)
        self.events.watch(self.session)
        self.attempts = AttemptLog(folder / "attempts.jsonl")
        self.samples = SampleLog(folder / "samples.jsonl", decode)
        self.sinks, self.totals = FanOut([JsonlSink(folder / "metrics.jsonl")]), RunTotals()
        self.exporter = PrometheusExporter(folder, "127.0.0.1", 0, {"project": "p", "experiment": "e"})
        self.probe, self.live_file = LiveProbe(self.session), LiveFile(folder, 100)
        self.metrics = CycleMetrics(shape.num_pairs, shape.num_pairs)
        self.timeline = Timeline(self._on_span)
        self.metrics.devices.read = lambda: self.timeline.totals(self.now_s)
        self.lanes = DeviceLanes(self.timeline, self._now, self.standalone + self.hybrid)
        self.lanes.start()
        self.meter = RolloutMeter(self._now, self.session.rollouter.ledger)
        self.row: dict[str, float] = {}
        self.rollout = RolloutCycle(1.0, 1.0, 1.0, 1.0, shape.num_groups, 0, 0)
        self._make_groups()
        self.parts: dict[str, Callable[[], object]] = {
            "attempts of groups": self._attempts,
            "work of engines": self._engine_work,
            "rollout utilization": self._utilization,
            "levels": self._levels,
            "lanes and spans": self._lanes,
            "phase timings": self._timings,
            "metrics row": self._metrics,
            "decisions": self._decisions,
            "metrics.jsonl, totals": self._write_row,
            "samples.jsonl": lambda: self.samples.log(self.cycle, self.groups),
            "terminal": self._show,
            "Prometheus": lambda: self.exporter.show_row(self.row),
            "flush": self.events.flush,
        }
        if find_spec("tensorboardX") is not None and not (folder / "metrics.jsonl").is_symlink():
            from swingshift.observe.tensorboard_sink import TensorBoardSink

            board = TensorBoardSink(folder / "tensorboard")
            self.parts["TensorBoard"] = lambda: board.log(self.cycle, self.row)

    def _now(self) -> float:
        self.now_s += 0.001
        return self.now_s

    def _on_span(self, span: DeviceSpan) -> None:
        self.events.spans(span)
        self.console.on_span(span)

    def _make_groups(self) -> None:
        """The same groups every cycle, of the version before."""
        shape = self.shape
        tokens, log_probs = (5,) * shape.num_tokens, (-0.5,) * shape.num_tokens
        sample = Sample(tokens, log_probs, ((0, shape.num_tokens),), FinishReason.STOP, reward=0.5)
        prompt = Prompt("p", (7,) * 16)
        self.groups = [SampleGroup(i, prompt, (sample,) * shape.num_responses, 0) for i in range(shape.num_groups)]
        responses = range(shape.num_responses)
        empty, budgets = tuple(() for _ in responses), (shape.num_tokens,) * shape.num_responses
        self.request = GenerationRequest("17", prompt.token_ids, empty, budgets, SamplingParams(shape.num_tokens))
        output = TokenOutput(tokens, log_probs, ((0, shape.num_tokens),), FinishReason.STOP)
        self.outputs = (output,) * shape.num_responses

    # --- a cycle's events of each part ------------------------------------------------------------------------

    def _attempts(self) -> None:
        for i in range(self.shape.num_groups + self.shape.num_groups // 8):
            where, now = self.standalone[i % self.shape.num_pairs], self._now()
            self.attempts.write(attempt_of(self.request, where, now - 0.1, now, self.outputs, Outcome.REFUSED))

    def _engine_work(self) -> None:
        for _ in range(self.shape.num_groups):
            self.metrics.engines.add(ReplicaKind.STANDALONE, self.request, self.outputs)

    def _utilization(self) -> None:
        for _ in range(2 * self.shape.num_groups):
            self.meter.record(capacity=8, is_paused=False)
        self.meter.close(staleness_samples=0)

    def _levels(self) -> None:
        for _ in range(2 * self.shape.num_groups + self.shape.num_collections + 1):
            self.session.rollouter.on_levels()

    def _lanes(self) -> None:
        """Requests come and go, four collections train, the devices are lent and taken back, weights are synced."""
        lanes, both = self.lanes, self.standalone + self.hybrid
        for i in range(self.shape.num_groups):
            device = both[i % len(both)]
            lanes.load_changed([device], 2)
            lanes.load_changed([device], 1)
        for _ in range(self.shape.num_collections):
            with lanes.phase(self.hybrid, DeviceState.TRAIN):
                pass
        with lanes.phase(both, DeviceState.SYNCING):
            pass
        for _ in range(2):
            with lanes.phase(self.hybrid, DeviceState.SWITCHING):
                pass
            for device in both:
                lanes.load_changed([device], 0)
                lanes.load_changed([device], 1)

    def _timings(self) -> None:
        watch = Stopwatch(self._now)
        for _ in range(4 * self.shape.num_collections + 4):
            with watch.time("step"):
                pass

    def _metrics(self) -> None:
        collections, timings = self.shape.num_collections, {"step": 0.1, "gen": 0.01, "update_actor": 0.05}
        share = len(self.groups) // collections
        for i in range(collections):
            groups = self.groups[i * share : (i + 1) * share]
            self.metrics.add_allocated(0.1)
            self.metrics.add_collection(timings, groups, 1, 0.01, 2, WORKER_ROW)
        self.row = self.metrics.row(now=self.now_s, global_step=self.cycle, rollout=self.rollout)

    def _decisions(self) -> None:
        ctx = DynamicScheduleContext(8, 4, 1000, 900, 10, [0.1] * 4, [3] * 4, switch_costs_s=(0.1, 0.1, 0.1))
        for question in Question:
            numbers = decision_numbers(ctx, {"ratio": 0.5, "per_sample_time_s": 0.01}, queued_samples=5)
            self.events.decided([Decision(self.now_s, self.cycle, question, "yes", "because it pays", numbers)])

    def _write_row(self) -> None:
        self.totals.add(self.row)
        self.sinks.log(self.cycle, self.row)

    def _show(self) -> None:
        self.console.update(self.row, state="HYBRID_ACTIVE", num_cycles=100_000, decision="lend: because it pays")

    def tick(self) -> None:
        live = self.probe()
        self.events.flush()
        self.live_file.write(live)
        self.exporter.show_live(live)
        self.console.tick(live)

    def close(self) -> None:
        self.console.close()
        self.events.close()
        self.exporter.close()


@contextmanager
def watchers(shape: Shape, *, keep_files: bool) -> Iterator[Watchers]:
    """In a folder that is thrown away; without ``keep_files`` what grows goes nowhere to begin with."""
    tokenizer = char_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in () if keep_files else FILES:
            (folder / file).symlink_to("/dev/null")
        watching = Watchers(folder, shape, lambda ids: str(tokenizer.decode(list(ids))))
        yield watching
        watching.close()


def costs_us(shape: Shape, num_cycles: int) -> dict[str, float]:
    """Microseconds of CPU that a cycle takes in each part; the last entry is that of one tick."""
    with watchers(shape, keep_files=True) as watching:
        times: dict[str, list[float]] = {name: [] for name in (*watching.parts, TICK)}
        for watching.cycle in range(1, num_cycles + 1):
            for name, part in (*watching.parts.items(), (TICK, watching.tick)):
                started = time.process_time()
                part()
                times[name].append(time.process_time() - started)
    return {name: 1e6 * statistics.median(values) for name, values in times.items()}


def print_costs(shape: Shape, num_cycles: int, cycle_s: float | None) -> dict[str, float]:
    costs = costs_us(shape, num_cycles)
    rate = cycle_s or 1.0
    costs[TICK] *= rate
    devices = 2 * shape.num_pairs
    print(f"\n{shape.num_groups} groups of {shape.num_responses} a cycle on {devices} devices", end="")
    print(f", cycle of {cycle_s:.3f} s" if cycle_s else "")
    print(f"{'part':<26}{'µs a cycle':>12}{'µs a group':>12}{'share':>9}")
    more = sum(costs.get(name, 0.0) for name in NOT_IN_THE_DEMO)
    costs |= {"as the demo runs": sum(costs.values()) - more, "with all of these": sum(costs.values())}
    for name, us in costs.items():
        share = f"{us / 1e4 / cycle_s:>8.3f}%" if cycle_s else ""
        print(f"{name:<26}{us:>12.1f}{us / shape.num_groups:>12.2f}{share}")
    print(f"all of these are under 1% of a cycle longer than {costs['with all of these'] / 1e4:.2f} s")
    return costs


def rss_kib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def print_memory(num_cycles: int) -> list[tuple[int, int, float]]:
    """After each tenth of the cycles: their number, Python's memory blocks in use, KiB of the process.

    The cycles are small: how many groups there are leaves nothing behind. In the first tenths rich fills its memory
    of how wide texts are, 4,096 of them at most.
    """
    shape, found = Shape(num_groups=4, num_responses=2), list[tuple[int, int, float]]()
    print(f"\n{'cycles':>10}{'blocks in use':>16}{'process, MiB':>15}")
    with watchers(shape, keep_files=False) as watching:
        for watching.cycle in range(1, num_cycles + 1):
            for part in watching.parts.values():
                part()
            if watching.cycle % 10 == 0:
                watching.tick()
            if watching.cycle % max(1, num_cycles // 10) == 0:
                gc.collect()
                found.append((watching.cycle, sys.getallocatedblocks(), rss_kib()))
                print(f"{watching.cycle:>10,}{found[-1][1]:>16,}{found[-1][2] / 1024:>15.2f}", flush=True)
    half = len(found) // 2
    grown = 1024 * (found[-1][2] - found[half][2]) / max(1, found[-1][0] - found[half][0])
    print(f"{grown:.1f} bytes a cycle in the second half; the rewards kept for the summary are 8")
    return found


def cycle_seconds(run: Path | None) -> float:
    """Mean wall-clock of a cycle: of a run, else of the demo as it was measured."""
    rows = run / "metrics.jsonl" if run is not None else Path("runs/demo/metrics.jsonl")
    if run is None and not rows.exists():
        return DEMO_CYCLE_S
    lines = rows.read_text(encoding="utf-8").splitlines()
    return statistics.mean(json.loads(line)["fully_async/rollouter/version_time_s"] for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run directory of the demo (default: runs/demo, if it is there)")
    parser.add_argument("--repeats", type=int, default=300, help="cycles that times are the median of")
    parser.add_argument("--cycles", type=int, default=100_000, help="cycles along which memory is watched; 0: none")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    cycle_s = cycle_seconds(options.run)
    found: dict[str, object] = {"cycle_s": cycle_s, "demo_us": print_costs(Shape(), options.repeats, cycle_s)}
    large = Shape(num_groups=1024, num_responses=16, num_tokens=1000, num_pairs=64)
    found["large_us"] = print_costs(large, max(3, options.repeats // 30), None)
    if options.cycles:
        found["memory"] = print_memory(options.cycles)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
