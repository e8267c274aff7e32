"""Folders of runs, given to ``top``, ``report``, ``trace`` and ``calibrate``."""

from __future__ import annotations

import re

from .case import DEEP, LONG, Case, Content, Files, bad, gone

_READERS = ("top run --once", "report run", "trace run", "calibrate run --out mine.yaml")


def all_readers(*parts: str, files: Files) -> list[Case]:
    return [bad(line, "run", *parts, files=files) for line in _READERS]


def damaged(line: str, name: str, content: Content, *parts: str) -> Case:
    """A whole run but for one file."""
    return bad(line, *parts, files={f"run/{name}": content}, in_run=True)


def _renamed(old: bytes, new: bytes):
    return lambda content: re.sub(old, new, content)


def _first_lines(count: int):
    return lambda content: b"".join(content.splitlines(keepends=True)[:count])


CASES: list[Case] = [
    *all_readers("no such folder", files={}),
    *all_readers("is a file", files={"run": "x"}),
    *all_readers("not the folder of a run", files={"run": None}),
    *all_readers("not the folder of a run", files={"run/notes.txt": "x"}),
    bad(["top", LONG], "cannot be read"),
    bad(["report", LONG], "cannot be read"),
    bad("report run nowhere", "nowhere", "no such folder", in_run=True),
    bad("calibrate run nowhere", "nowhere", "no such folder", in_run=True),
    bad("report run -o no/page.html", "there is no folder no", in_run=True),
    bad("trace run -o run", "is a folder", in_run=True),
    bad("calibrate run --out run", "--out=run", "is a folder", in_run=True),
    bad("calibrate run --out notes", "--out=notes", "another file", files={"notes": "x"}, in_run=True),
    # top
    damaged("top run", "live.json", None, "live.json", "cannot be read"),
    damaged("top run --once", "live.json", None, "live.json", "cannot be read"),
    damaged(
        "top run --once",
        "live.json",
        '{"wall_time": "noon", "pid": 1, "num_cycles": 1, "state": null}',
        "not those of a run",
    ),
    damaged("top run --once", "metrics.jsonl", None, "metrics.jsonl", "cannot be read"),
    damaged("top run --once", "timeline.jsonl", '{"device": 1, "state": "dancing"}\n', "not those of a run"),
    damaged("top run --once", "metrics.jsonl", '{"perf/tokens_per_s": "fast"}\n', "not those of a run"),
    damaged("top run --once", "metrics.jsonl", '{"training/global_step": 1e999}\n', "not those of a run"),
    # report and trace
    damaged("report run", "metrics.jsonl", gone, "metrics.jsonl", "no finished cycle"),
    damaged("report run", "metrics.jsonl", b"\x00\xff\xfe\n" * 9, "metrics.jsonl", "no finished cycle"),
    damaged("report run", "metrics.jsonl", '{"step": 1, "tra', "metrics.jsonl", "no finished cycle"),
    damaged("report run", "metrics.jsonl", f'{{"step": {"9" * 400}}}\n', "metrics.jsonl", "no run wrote"),
    damaged("report run", "metrics.jsonl", f"{DEEP}\n", "metrics.jsonl", "no run wrote"),
    damaged("report run", "summary.json", '{"wall_s": 3', "summary.json", "no run wrote"),
    damaged("report run", "summary.json", b"\xff", "summary.json", "no run wrote"),
    damaged("report run", "summary.json", None, "summary.json", "cannot be read"),
    damaged("report run", "scenario.yaml", "- 1\n", "scenario.yaml", "no run wrote"),
    damaged("report run", "scenario.yaml", b"\xff", "scenario.yaml", "no run wrote"),
    damaged("report run", "levels.jsonl", '{"time_s": "late"}\n', "levels.jsonl", "no run wrote"),
    damaged("report run", "decisions.jsonl", '{"time_s": null}\n', "decisions.jsonl", "no run wrote"),
    damaged("trace run", "timeline.jsonl", gone, "no device spans"),
    damaged("trace run", "timeline.jsonl", '{"device": "hybrid-0", "start_s": 0.0, "e', "no device spans"),
    damaged("trace run", "timeline.jsonl", '{"device": "hybrid-0", "start_s": "x"}\n', "timeline.jsonl"),
    damaged("trace run", "attempts.jsonl", '{"request": "1", "more": 2}\n', "attempts.jsonl", "no run wrote"),
    # calibrate
    damaged("calibrate run", "scenario.yaml", gone, "its settings are not known"),
    damaged("calibrate run", "scenario.yaml", "cluster: {trainer_devices: x}\n", "cluster.trainer_devices='x'"),
    damaged("calibrate run", "scenario.yaml", "cluster: [\n", "scenario.yaml", "correct the YAML"),
    damaged("calibrate run", "metrics.jsonl", "", "metrics.jsonl", "holds no cycle"),
    damaged("calibrate run", "metrics.jsonl", _first_lines(3), "3 sync cycles are too few"),
    damaged("calibrate run", "metrics.jsonl", _renamed(rb'"engine/', rb'"machine/'), "metrics.jsonl", "run again"),
    damaged(
        "calibrate run",
        "metrics.jsonl",
        _renamed(rb"step_consumed_samples", rb"step_samples"),
        "metrics.jsonl",
        "how many groups",
    ),
    damaged("calibrate run", "summary.json", "{}", "summary.json", "wall_s"),
    damaged("calibrate run", "summary.json", "[]", "summary.json", "no run wrote"),
    damaged("calibrate run", "samples.jsonl", '{"responses": [{"num_tokens": "many"}]}\n', "samples.jsonl"),
    damaged("calibrate run", "samples.jsonl", None, "samples.jsonl"),
]
