"""``swingshift trace``: a run in Chrome's trace format, for Perfetto.

A track per device (what it did), one per cycle and decision, counters, and for every replica as many tracks as it
had attempts side by side. A flow leads from an attempt that was aborted to the one that went on with its tokens.
"""

from __future__ import annotations

import heapq
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from swingshift.errors import ConfigError
from swingshift.observe.output_file import output_file
from swingshift.observe.run_reader import Attempt, RunFolder
from swingshift.observe.spans import STATES, Lane, lane_order

Event = dict[str, Any]

_CONTROL, _DEVICES, _FIRST_REPLICA = 1, 2, 10
_CYCLES, _DECISIONS = 1, 2
_SHOWN_METRICS = (
    "critic/rewards/mean",
    "dynamic_resource/mq_size",
    "dynamic_resource/resource_utilization",
    "dynamic_resource/train_resource_utilization",
    "dynamic_resource/rollout_resource_utilization",
    "fully_async/staleness/mean",
    "timing_s/step",
)
_COUNTERS = {"queued": "queue", "in_flight": "in flight", "staleness_samples": "staleness budget used"}
_GOES_ON = ("aborted", "refused")


@dataclass(frozen=True, slots=True)
class TraceSize:
    """What a trace holds."""

    num_spans: int
    num_attempts: int
    num_flows: int
    every: int
    """At the end of the run only every so many-th group was followed."""

    def __str__(self) -> str:
        some = f" (at last of one group in {self.every})" if self.every > 1 else ""
        return f"{self.num_spans:,} device spans, {self.num_attempts:,} attempts{some}, {self.num_flows:,} flows"


def write_trace(folder: Path, out: Path) -> TraceSize:
    """Raises ConfigError if the folder is not a run's or has no spans, or a file cannot be read or written."""
    run = RunFolder(folder)
    lanes = run.lanes()
    if not lanes:
        raise ConfigError(f"{folder}: has no device spans (timeline.jsonl) yet; trace it once its run has begun")
    placed = _place(run.attempts())
    flows = list(_flows(placed))
    # Validations are thinned by themselves.
    every = max((place.attempt.every for place in placed if place.attempt.request.isdigit()), default=1)
    size = TraceSize(sum(len(lane.start_s) for lane in lanes), len(placed), len(flows) // 2, every)
    events = _all_events(run, lanes, placed, flows)
    about = {"run": run.name, "simulated": run.is_simulated, **asdict(size)}
    with output_file(out) as file:
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n')
        separator = ""
        for event in events:
            file.write(separator + json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]}\n")
    return size


def _all_events(
    run: RunFolder, lanes: Sequence[Lane], placed: Sequence[_Placed], flows: Iterable[Event]
) -> Iterator[Event]:
    yield from _process(_CONTROL, "control")
    yield _thread(_CONTROL, _CYCLES, "cycles")
    yield _thread(_CONTROL, _DECISIONS, "decisions")
    yield from _cycles(run)
    yield from _decisions(run)
    yield from _counters(run)
    yield from _process(_DEVICES, "devices")
    yield from _spans(lanes)
    yield from _attempts(placed)
    yield from flows


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _us(seconds: float) -> int:
    """The files have microseconds."""
    return round(seconds * 1e6)


def _slice(pid: int, tid: int, name: str, start_us: int, end_us: int, category: str, **args: Any) -> Event:
    event = {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": category,
        "ts": start_us,
        "dur": end_us - start_us,
    }
    return {**event, "args": args} if args else event


# --- the control process ------------------------------------------------------------------------------------------


def _cycles(run: RunFolder) -> Iterator[Event]:
    columns = run.cycles(("training/time_s", *_SHOWN_METRICS))
    start_us = 0
    for i, number in enumerate(columns["step"]):
        end_s = columns["training/time_s"][i]
        if math.isnan(end_s):
            continue
        values = {name: float(columns[name][i]) for name in _SHOWN_METRICS if not math.isnan(columns[name][i])}
        yield _slice(_CONTROL, _CYCLES, f"cycle {number:.0f}", start_us, _us(end_s), "cycle", **values)
        start_us = _us(end_s)


def _decisions(run: RunFolder) -> Iterator[Event]:
    for record in run.decisions():
        name = f"{record.pop('question')}: {record.pop('answer')}"
        ts = _us(record.pop("time_s"))
        yield {
            "ph": "i", "s": "t", "pid": _CONTROL, "tid": _DECISIONS, "name": name, "cat": "decision", "ts": ts,
            "args": record,
        }  # fmt: skip


def _counters(run: RunFolder) -> Iterator[Event]:
    """Levels where the run has them, else the queue after each cycle."""
    levels = run.levels()
    for column, name in _COUNTERS.items():
        for time_s, value in zip(levels["time_s"], levels[column], strict=True):
            yield _counter(name, time_s, value)
    if not len(levels["time_s"]):
        cycles = run.cycles(("training/time_s", "dynamic_resource/mq_size"))
        for time_s, value in zip(cycles["training/time_s"], cycles["dynamic_resource/mq_size"], strict=True):
            if not math.isnan(time_s + value):
                yield _counter(_COUNTERS["queued"], time_s, value)


def _counter(name: str, time_s: float, value: float) -> Event:
    return {"ph": "C", "pid": _CONTROL, "name": name, "ts": _us(time_s), "args": {"groups": int(value)}}


# --- devices and replicas -----------------------------------------------------------------------------------------


def _spans(lanes: Sequence[Lane]) -> Iterator[Event]:
    for tid, lane in enumerate(lanes, start=1):
        yield _thread(_DEVICES, tid, lane.device)
        for start_s, end_s, state in zip(
            lane.start_s.tolist(), lane.end_s.tolist(), lane.state.tolist(), strict=True
        ):
            yield _slice(_DEVICES, tid, STATES[state].value, _us(start_s), _us(end_s), "device")


@dataclass(frozen=True, slots=True)
class _Placed:
    """An attempt on its track."""

    attempt: Attempt
    pid: int
    slot: int
    start_us: int
    end_us: int


def _place(attempts: Sequence[Attempt]) -> list[_Placed]:
    """Each on the first of its replica's tracks that is free, by the time they began."""
    pids = {name: _FIRST_REPLICA + i for i, name in enumerate(sorted({a.replica for a in attempts}, key=lane_order))}
    busy: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    free: defaultdict[int, list[int]] = defaultdict(list)
    placed = []
    for attempt in sorted(attempts, key=lambda a: a.start_s):
        pid, start_us = pids[attempt.replica], _us(attempt.start_s)
        end_us = max(_us(attempt.end_s), start_us + 1)  # A flow needs a moment to leave from.
        while busy[pid] and busy[pid][0][0] <= start_us:
            heapq.heappush(free[pid], heapq.heappop(busy[pid])[1])
        slot = heapq.heappop(free[pid]) if free[pid] else len(busy[pid]) + 1
        heapq.heappush(busy[pid], (end_us, slot))
        placed.append(_Placed(attempt, pid, slot, start_us, end_us))
    return placed


def _attempts(placed: Sequence[_Placed]) -> Iterator[Event]:
    num_slots: dict[int, int] = {}
    for place in placed:
        attempt, track = place.attempt, (place.pid, place.slot)
        if place.pid not in num_slots:
            yield from _process(place.pid, f"replica {attempt.replica}")
        if place.slot > num_slots.setdefault(place.pid, 0):
            num_slots[place.pid] = place.slot
            yield _thread(*track, f"attempt {place.slot}")
        args: dict[str, Any] = {
            "outcome": attempt.outcome,
            "responses": attempt.num_responses,
            "tokens": attempt.num_tokens,
            "prefilled": attempt.num_prefill_tokens,
        }
        yield _slice(*track, f"group {attempt.request}", place.start_us, place.end_us, attempt.outcome, **args)


def _flows(placed: Sequence[_Placed]) -> Iterator[Event]:
    """From the last microsecond of an attempt that ended early to the first of the one that followed."""
    by_request: defaultdict[str, list[_Placed]] = defaultdict(list)
    for place in placed:
        by_request[place.attempt.request].append(place)
    number = 0
    for places in by_request.values():
        for left, joined in pairwise(places):
            if left.attempt.outcome in _GOES_ON:
                number += 1
                common = {"name": "goes on", "cat": "resume", "id": number}
                yield {"ph": "s", **common, "pid": left.pid, "tid": left.slot, "ts": left.end_us - 1}
                yield {
                    "ph": "f", "bp": "e", **common, "pid": joined.pid, "tid": joined.slot, "ts": joined.start_us,
                }  # fmt: skip
