"""The trace: what Perfetto needs, and nothing lost on the way from the files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from swingshift.cli import main
from swingshift.observe.line_file import read_lines
from swingshift.observe.spans import STATES, read_lanes
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario

Event = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traced") / "run"
    overrides = ["workload.num_cycles=5", "async_training.ppo_mini_batch_size=4"]
    run_scenario(load_scenario("rollout-bound-8", overrides), out=folder)
    return folder


@pytest.fixture(scope="module")
def trace(run: Path) -> dict[str, Any]:
    out = run.parent / "trace.json"
    assert main(["trace", str(run), "-o", str(out)]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def events(trace: dict[str, Any]) -> list[Event]:
    return trace["traceEvents"]


def names(events: list[Event], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e.get("tid", 0)): e["args"]["name"] for e in events if e["name"] == f"{kind}_name"}


def slices(events: list[Event], process: str) -> dict[str, list[Event]]:
    """By track, in the order of time."""
    pids = {pid for (pid, _), name in names(events, "process").items() if name.startswith(process)}
    tracks: defaultdict[str, list[Event]] = defaultdict(list)
    threads = names(events, "thread")
    for event in events:
        if event["ph"] == "X" and event["pid"] in pids:
            tracks[f"{event['pid']} {threads[event['pid'], event['tid']]}"].append(event)
    return {name: sorted(track, key=lambda e: e["ts"]) for name, track in tracks.items()}


def test_every_track_is_named_and_no_slice_overlaps_another(events: list[Event]) -> None:
    threads, processes = names(events, "thread"), names(events, "process")
    tracks: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        assert (event["pid"], 0) in processes
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    assert set(tracks) <= set(threads)
    for track in tracks.values():
        assert all(event["dur"] > 0 for event in track)
        for before, after in pairwise(sorted(track, key=lambda e: e["ts"])):
            assert before["ts"] + before["dur"] <= after["ts"]


def test_a_device_has_its_spans(run: Path, events: list[Event]) -> None:
    lanes = read_lanes(run / "timeline.jsonl")
    tracks = slices(events, "devices")
    assert [name.partition(" ")[2] for name in tracks] == [lane.device for lane in lanes]
    for lane, track in zip(lanes, tracks.values(), strict=True):
        assert [e["name"] for e in track] == [STATES[state].value for state in lane.state]
        assert [e["ts"] for e in track] == [round(1e6 * s) for s in lane.start_s]
        assert sum(e["dur"] for e in track) == pytest.approx(1e6 * (lane.end_s - lane.start_s).sum(), abs=len(track))


def test_a_replica_has_its_attempts(run: Path, events: list[Event]) -> None:
    attempts = list(read_lines(run / "attempts.jsonl"))
    processes = {name for (_, tid), name in names(events, "process").items() if name.startswith("replica ")}
    assert processes == {f"replica {attempt['replica']}" for attempt in attempts}
    shown = [event for track in slices(events, "replica ").values() for event in track]
    assert len(shown) == len(attempts) > 20
    assert sum(e["args"]["tokens"] for e in shown) == sum(a["num_tokens"] for a in attempts)
    assert {e["args"]["outcome"] for e in shown} >= {"finished", "aborted"}


def test_flows_lead_from_an_aborted_attempt_to_the_next(run: Path, events: list[Event]) -> None:
    by_request: defaultdict[str, list[Event]] = defaultdict(list)
    for attempt in read_lines(run / "attempts.jsonl"):
        by_request[attempt["request"]].append(attempt)
    expected = sum(
        left["outcome"] in ("aborted", "refused")
        for attempts in by_request.values()
        for left, _ in pairwise(sorted(attempts, key=lambda a: a["start_s"]))
    )
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == len(ends) == expected > 0 and starts.keys() == ends.keys()
    for number, start in starts.items():
        left, joined = around(events, start), around(events, ends[number])
        assert left["name"] == joined["name"]  # the same group
        assert left["args"]["outcome"] in ("aborted", "refused")
        assert left["ts"] + left["dur"] <= joined["ts"] + 1
        assert ends[number]["bp"] == "e"


def around(events: list[Event], flow: Event) -> Event:
    """The one slice a flow is bound to."""
    track = (flow["pid"], flow["tid"])
    found = [
        e
        for e in events
        if e["ph"] == "X" and (e["pid"], e["tid"]) == track and e["ts"] <= flow["ts"] < e["ts"] + e["dur"]
    ]
    assert len(found) == 1
    return found[0]


def test_counters_cycles_and_decisions(run: Path, events: list[Event]) -> None:
    levels = list(read_lines(run / "levels.jsonl"))
    counters: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    assert set(counters) == {"queue", "in flight", "staleness budget used"}
    assert max(e["args"]["groups"] for e in counters["queue"]) == max(level["queued"] for level in levels)
    cycles = next(track for name, track in slices(events, "control").items() if name.endswith("cycles"))
    assert [e["name"] for e in cycles] == [f"cycle {i}" for i in range(1, 6)]
    assert all("critic/rewards/mean" in e["args"] for e in cycles)
    decisions = [e for e in events if e.get("cat") == "decision"]
    assert [e["args"]["reason"] for e in decisions] == [d["reason"] for d in read_lines(run / "decisions.jsonl")]


def test_it_says_what_it_holds(trace: dict[str, Any], events: list[Event], capsys, run: Path, tmp_path: Path) -> None:
    about = trace["otherData"]
    assert about["run"] == "run" and about["simulated"] and about["every"] == 1
    assert about["num_spans"] == sum(1 for e in events if e.get("cat") == "device")
    assert main(["trace", str(run), "-o", str(tmp_path / "t.json")]) == 0
    printed = capsys.readouterr().out
    assert f"{about['num_spans']:,} device spans" in printed and "perfetto" in printed


def test_a_run_with_nothing_but_spans_and_rows(fake_run: Callable, tmp_path: Path) -> None:
    fake_run(6)
    assert main(["trace", str(tmp_path), "-o", str(tmp_path / "t.json")]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "C"} == {"queue"}
    assert len(slices(events, "devices")) == 2 and not slices(events, "replica ")
