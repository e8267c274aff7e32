"""What it costs to watch a run: the live view, ``live.json``, Prometheus and the lanes, in time and memory.

A tick comes once a second and does everything; spans and rows cost when they come. Prints milliseconds and the share
of a second that one tick takes, for runs of several sizes, and the memory held after 10,000 and after 100,000 cycles.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from rich.console import Console as RichConsole

from swingshift.core.metric_table import METRICS
from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState
from swingshift.observe.console import Console
from swingshift.observe.event_files import EventFiles
from swingshift.observe.live_file import LiveFile
from swingshift.observe.live_state import LiveProbe, LiveState
from swingshift.observe.prometheus_server import PrometheusExporter
from swingshift.observe.sinks import JsonlSink
from swingshift.sim.world import World, WorldConfig, simulate

STATES = tuple(DeviceState)


class Forgetful(io.StringIO):
    """A terminal that nobody keeps."""

    def write(self, text: str) -> int:
        return len(text)


def console_of(width: int, height: int) -> Console:
    rich = RichConsole(file=Forgetful(), width=width, height=height, force_terminal=True, color_system="truecolor")
    return Console(rich, title="benchmark")


def world_of(num_replicas: int) -> World:
    """A short simulated run; what counts is the session it leaves."""
    half = num_replicas // 2
    config = WorldConfig(num_standalone=half, num_hybrid=half, num_prompts=16, keep_history=False)
    return simulate(config)


def best_ms(body: Callable[[], object], repeats: int = 20) -> float:
    """The fastest of several: the machine's noise only ever slows things down."""
    fastest = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        body()
        fastest = min(fastest, time.perf_counter() - started)
    return 1e3 * fastest


def row_of(cycle: int) -> dict[str, float]:
    row = dict.fromkeys(METRICS, 1.5)
    return row | {"training/global_step": float(cycle), "fully_async/rollouter/version_time_s": 1.0}


def spans_of(cycle: int, devices: list[str]) -> list[DeviceSpan]:
    """Ten state changes of each device in a cycle of one second."""
    return [
        DeviceSpan(device, STATES[i % len(STATES)], cycle + 0.1 * i, cycle + 0.1 * (i + 1))
        for device in devices
        for i in range(10)
    ]


def tick_costs(num_replicas: int, folder: Path) -> dict[str, float]:
    """Milliseconds of each part of a tick, of one scrape, and of what a cycle with ten spans a device brings."""
    session = world_of(num_replicas).session
    probe, file, events = LiveProbe(session), LiveFile(folder, 100), EventFiles(folder)
    exporter = PrometheusExporter(folder, "127.0.0.1", 0, {"project": "p", "experiment": "e"})
    live, devices, console = probe(), list(session.timeline.devices), console_of(120, 40)
    live_devices = dict.fromkeys(devices, DeviceState.ROLLOUT.value)
    live = LiveState(**{name: getattr(live, name) for name in LiveState.__slots__} | {"devices": live_devices})
    for cycle in range(15):
        console.update(row_of(cycle), state="HYBRID_ACTIVE", num_cycles=100, decision="lend: because")
        for span in spans_of(cycle, devices):
            console.on_span(span)
    sink = JsonlSink(folder / "metrics.jsonl")
    spans = spans_of(15, devices)

    def see_spans() -> None:
        for span in spans:
            events.spans(span)
            console.on_span(span)

    def see_row() -> None:
        sink.log(1, row_of(1))
        exporter.show_row(row_of(1))

    def scrape() -> None:
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(exporter._collector)
        generate_latest(registry)

    parts = {
        "look": best_ms(probe),
        "live.json": best_ms(lambda: file.write(live)),
        "Prometheus": best_ms(lambda: exporter.show_live(live)),
        "view": best_ms(lambda: console.tick(live)),
    }
    others = {"row": best_ms(see_row), "scrape": best_ms(scrape, 5), "spans": best_ms(see_spans, 5)}
    console.close()
    events.close()
    exporter.close()
    return {**parts, "tick": sum(parts.values()), **others}


def memory_kib(num_cycles: int, folder: Path) -> float:
    """What watching holds on to after so many cycles of two devices, files apart."""
    tracemalloc.start()
    console, devices = console_of(120, 40), ["standalone-0", "hybrid-0"]
    exporter = PrometheusExporter(folder, "127.0.0.1", 0, {})
    for cycle in range(num_cycles):
        row = row_of(cycle)
        console.update(row, state="HYBRID_ACTIVE", num_cycles=num_cycles, decision="lend: because")
        exporter.show_row(row)
        for span in spans_of(cycle, devices):
            console.on_span(span)
    held = tracemalloc.get_traced_memory()[0] / 1024
    tracemalloc.stop()
    console.close()
    exporter.close()
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--replicas", type=int, nargs="*", default=[2, 64, 1024])
    parser.add_argument("--cycles", type=int, nargs="*", default=[10_000, 100_000])
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {"ms": {}, "KiB": {}}
    for num_replicas in args.replicas:
        with tempfile.TemporaryDirectory() as folder:
            costs = tick_costs(num_replicas, Path(folder))
        print(f"{num_replicas} replicas, ms: " + ", ".join(f"{name} {ms:.2f}" for name, ms in costs.items()))
        print(f"  a tick a second: {costs['tick'] / 10:.2f}% of the control process")
        found["ms"] |= {f"{num_replicas} {name}": ms for name, ms in costs.items()}
    for num_cycles in args.cycles:
        with tempfile.TemporaryDirectory() as folder:
            held = memory_kib(num_cycles, Path(folder))
        print(f"after {num_cycles:,} cycles: {held:,.0f} KiB held")
        found["KiB"][str(num_cycles)] = held
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
