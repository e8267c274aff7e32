"""The row after the last cycle: a validation that ended later. Every reader takes it for what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_run import FakeRun

from swingshift.cli import main
from swingshift.observe.metric_rows import is_closing, read_cycle_rows
from swingshift.observe.picture import read_cycles
from swingshift.observe.report_charts import chart_metrics
from swingshift.observe.run_reader import RunFolder
from swingshift.observe.summary import RunTotals
from swingshift.observe.top import RunWatch
from swingshift.observe.trace import write_trace

VALIDATION = {"val/version": 8.0, "val/reward/mean": 0.75, "val/num_failed": 0.0}
COST = {"separate_async/validate/seconds": 2.5, "separate_async/validate/generated_samples": 3.0}


def close(folder: Path, step: int, row: dict[str, float]) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "wall_time": 1.0, **row}) + "\n")


def readings(folder: Path) -> dict[str, Any]:
    """What each reader makes of the cycles."""
    run = RunFolder(folder)
    columns, view = run.cycles(chart_metrics()), RunWatch(folder).view()
    drawn, totals = read_cycles(folder / "metrics.jsonl"), RunTotals.of_file(folder / "metrics.jsonl")
    write_trace(folder, folder / "trace.json")
    return {
        "cycles": {name: column.tolist() for name, column in columns.items() if not name.startswith("val/")},
        "picture": (drawn.number.tolist(), drawn.end_s.tolist(), drawn.reward.tolist(), drawn.queue.tolist()),
        "totals": (totals.num_cycles, dict(totals.sums), totals.rewards.tolist(), totals.last),
        "top": (view.status, view.elapsed_s, view.rewards),
        "trace": (folder / "trace.json").read_text(),
    }


@pytest.mark.parametrize("row", [VALIDATION, COST, {**VALIDATION, **COST}], ids=["val", "cost", "both"])
def test_cycles_are_read_as_if_it_were_not_there(
    row: dict[str, float], fake_run: Callable[..., FakeRun], tmp_path: Path
) -> None:
    fake_run(8)
    before = readings(tmp_path)
    close(tmp_path, 8, row)
    assert readings(tmp_path) == before
    assert len(list(read_cycle_rows(tmp_path / "metrics.jsonl"))) == 8


def test_its_validation_is_one_of_the_report(fake_run: Callable[..., FakeRun], tmp_path: Path) -> None:
    run = fake_run(8)
    rewritten = [{"step": i + 1, **row} for i, row in enumerate(run.rows)]
    rewritten[7] |= {"val/version": 4.0, "val/reward/mean": 0.5}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rewritten))
    close(tmp_path, 8, VALIDATION)
    validations = RunFolder(tmp_path).validations(("val/version", "val/reward/mean"))
    assert {name: column.tolist() for name, column in validations.items()} == {
        "val/version": [4.0, 8.0],
        "val/reward/mean": [0.5, 0.75],
    }
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '"validation":{"step":[4.0,8.0],"reward":[0.5,0.75]}' in page


def test_a_run_that_goes_on_keeps_it_and_one_that_goes_back_replaces_it(tmp_path: Path) -> None:
    """A finished run goes on with more data; a run goes on from a checkpoint before its end."""
    names = ("val/version", "val/reward/mean")
    whole = {"training/global_step": 1.0, "training/time_s": 1.0}
    for step in (1, 2):
        close(tmp_path, step, whole)
    close(tmp_path, 2, {**VALIDATION, "val/version": 2.0})
    close(tmp_path, 3, whole)
    assert RunFolder(tmp_path).validations(names)["val/version"].tolist() == [2.0]
    close(tmp_path, 2, whole)
    assert RunFolder(tmp_path).validations(names)["val/version"].tolist() == []
    close(tmp_path, 2, {**VALIDATION, "val/version": 2.0, "val/reward/mean": 0.25})
    assert RunFolder(tmp_path).validations(names)["val/reward/mean"].tolist() == [0.25]
    assert RunFolder(tmp_path).cycles(("training/time_s",))["step"].tolist() == [1.0, 2.0]


def test_what_it_is(fake_run: Callable[..., FakeRun]) -> None:
    assert is_closing({"step": 3, "wall_time": 1.0, **VALIDATION}) and is_closing(COST)
    assert not any(map(is_closing, [{}, {"step": 3}, {"step": 3, "perf/tokens": 1.0}, *fake_run(2).rows]))
    assert not is_closing({**fake_run(1).rows[0], **VALIDATION})
