"""The files of a run directory: metrics, samples, timeline."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState, FinishReason, Prompt, Sample, SampleGroup
from swingshift.observe.line_file import LineFile, read_lines
from swingshift.observe.samples import SampleLog
from swingshift.observe.sinks import FanOut, JsonlSink
from swingshift.observe.span_log import SpanLog
from swingshift.runtime.ports import RunOutcome


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- metrics --------------------------------------------------------------------------------------------


def test_every_row_is_on_disk_at_once(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", clock=lambda: 1700000000.12345)
    sink.log(1, {"perf/tokens": 5.0})
    assert lines(tmp_path / "metrics.jsonl") == [{"step": 1, "wall_time": 1700000000.123, "perf/tokens": 5.0}]
    sink.log(2, {"perf/tokens": 6.0})
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    sink.close()


def test_numbers_json_has_no_word_for_become_null(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.log(1, {"actor/grad_norm": math.nan, "actor/kl": math.inf, "actor/loss": 0.5})
    text = (tmp_path / "m.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text
    row = json.loads(text)
    assert row["actor/grad_norm"] is None and row["actor/kl"] is None and row["actor/loss"] == 0.5
    sink.close()


def test_a_resumed_run_appends_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "perf/to')
    file = LineFile(path, flush_each=True)
    file.write({"step": 2})
    file.close()
    assert [row["step"] for row in read_lines(path)] == [1, 2]


def test_reading_a_missing_file_gives_nothing(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "none.jsonl")) == []


class BrokenSink:
    def __init__(self) -> None:
        self.num_calls = 0

    def log(self, step: int, row: Mapping[str, float]) -> None:
        self.num_calls += 1
        raise OSError("disk full")

    def close(self, outcome: RunOutcome) -> None:
        raise RuntimeError("cannot close")


def test_a_broken_sink_is_warned_about_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = BrokenSink()
    fan_out = FanOut([broken, JsonlSink(tmp_path / "m.jsonl")])
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            fan_out.log(step, {})
        fan_out.close(RunOutcome.FINISHED)
    assert broken.num_calls == 3
    assert len(lines(tmp_path / "m.jsonl")) == 3
    assert [record.message for record in caplog.records] == [
        "metric sink BrokenSink failed; training goes on without it"
    ]
    assert "disk full" in caplog.text


# --- samples --------------------------------------------------------------------------------------------


def spell(token_ids: object) -> str:
    return "".join(chr(97 + t) for t in token_ids)  # type: ignore[attr-defined]


def made_group(group_id: int) -> SampleGroup:
    sample = Sample((1, 2, 3), (-0.1,) * 3, ((4, 2), (5, 1)), FinishReason.LENGTH, num_aborts=1, reward=0.5)
    prompt = Prompt(f"uid-{group_id}", (7, 8))
    return SampleGroup(group_id, prompt, (sample, replace(sample, reward=1.0)), 4, 1.0, 3.5)


def test_samples_are_readable(tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "samples.jsonl", spell, groups_per_cycle=1)
    log.log(5, [made_group(9)])
    log.close()
    response = {
        "text": "bcd",
        "reward": 0.5,
        "finish_reason": "length",
        "num_tokens": 3,
        "versions": [[4, 2], [5, 1]],
        "num_aborts": 1,
    }
    assert lines(tmp_path / "samples.jsonl") == [
        {
            "cycle": 5,
            "group_id": 9,
            "prompt_uid": "uid-9",
            "prompt": "hi",
            "submit_version": 4,
            "generation_s": 2.5,
            "responses": [response, {**response, "reward": 1.0}],
        }
    ]


@pytest.mark.parametrize(("per_cycle", "expected"), [(0, []), (3, [0, 1, 2, 10, 11])])
def test_only_a_few_groups_a_cycle(tmp_path: Path, per_cycle: int, expected: list[int]) -> None:
    log = SampleLog(tmp_path / "samples.jsonl", spell, groups_per_cycle=per_cycle)
    log.log(0, [made_group(0), made_group(1)])
    log.log(0, [made_group(2), made_group(3)])
    log.log(1, [made_group(10), made_group(11)])
    log.close()
    assert [row["group_id"] for row in lines(tmp_path / "samples.jsonl")] == expected


def test_a_decoder_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(token_ids: object) -> str:
        raise IndexError("no such token")

    log = SampleLog(tmp_path / "samples.jsonl", fail)
    log.log(0, [made_group(0)])
    log.log(1, [made_group(1)])
    log.close()
    assert len(caplog.records) == 1 and "sample log failed" in caplog.text


# --- the timeline ---------------------------------------------------------------------------------------


def test_spans_are_buffered_until_a_flush(tmp_path: Path) -> None:
    log = SpanLog(tmp_path / "timeline.jsonl")
    log(DeviceSpan("hybrid-0", DeviceState.TRAIN, 1.0, 2.5, "v3"))
    log(DeviceSpan("hybrid-0", DeviceState.IDLE, 2.5, 3.0))
    assert (tmp_path / "timeline.jsonl").read_text() == ""
    log.flush()
    assert lines(tmp_path / "timeline.jsonl") == [
        {"device": "hybrid-0", "state": "train", "start_s": 1.0, "end_s": 2.5, "label": "v3"},
        {"device": "hybrid-0", "state": "idle", "start_s": 2.5, "end_s": 3.0},
    ]
    log.close()


def test_a_closed_span_log_warns_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = SpanLog(tmp_path / "timeline.jsonl")
    log.close()
    log(DeviceSpan("hybrid-0", DeviceState.TRAIN, 1.0, 2.5))
    assert "timeline log failed" in caplog.text


def test_observing_needs_neither_torch_nor_ray() -> None:
    modules = ["samples", "sinks", "span_log", "console", "summary", "picture"]
    code = "import sys\n" + "".join(f"import swingshift.observe.{m}\n" for m in modules)
    code += "print(sorted({'torch', 'ray', 'transformers', 'matplotlib.pyplot'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("whole", [b"", b'{"a": 1}\n', b'{"a": 1}\n' * 20_000])
@pytest.mark.parametrize("torn", [b"", b'{"a"', b'{"a": "' + b"x" * 200_000])
def test_opening_cuts_off_a_torn_line_and_nothing_else(tmp_path: Path, whole: bytes, torn: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(whole + torn)
    file = LineFile(path, flush_each=True)
    file.write({"b": 2})
    file.close()
    assert path.read_bytes() == whole + b'{"b": 2}\n'
