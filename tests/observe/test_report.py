"""The report: one page with everything of its runs in it, whatever they are called and however large they are."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swingshift.cli import main
from swingshift.core.types import DeviceState
from swingshift.observe.colors import DARK, LIGHT, Theme
from swingshift.observe.line_file import read_lines
from swingshift.observe.report_charts import CHARTS, MAX_POINTS, chart_metrics, cycle_series, extremes
from swingshift.observe.report_lanes import MAX_BYTES, lane_data
from swingshift.observe.report_tables import MAX_DECISIONS, decisions_section, settings_table
from swingshift.observe.spans import STATES, Lane, read_lanes
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario

PRESET = "rollout-bound-8"
SHORT = ["workload.num_cycles=5", "async_training.ppo_mini_batch_size=4"]
STATIC = "async_training.use_dynamic_resource_scheduling=false"
SIX = {
    "critic/rewards/mean",
    "timing_s/step",
    "dynamic_resource/mq_size",
    "dynamic_resource/resource_utilization",
    "dynamic_resource/rollout_resource_utilization",
    "dynamic_resource/train_resource_utilization",
}
"""What the specification shows of a comparison."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for name, more in (("static", [STATIC]), ("dynamic", [])):
        run_scenario(load_scenario(PRESET, [*SHORT, *more]), out=root / name)
    return {"static": root / "static", "dynamic": root / "dynamic"}


def report(out: Path, *folders: Path) -> str:
    assert main(["report", *map(str, folders), "-o", str(out)]) == 0
    return out.read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Start tags with their attributes, and the text inside of each kind of element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def text(self, *tags: str) -> str:
        return " ".join(text for tag, text in self.texts if tag in tags)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_outside(runs: dict[str, Path], tmp_path: Path) -> None:
    page = report(tmp_path / "report.html", *runs.values())
    elements = Elements(page)
    for tag, attributes in elements.tags:
        assert "src" not in attributes and tag not in ("link", "iframe", "img", "base")
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for t, a in elements.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'") and "form-action 'none'" in policy
    scripts = [text for tag, text in elements.texts if tag == "script"]
    plotly = max(scripts, key=len)
    assert "plotly.js" in plotly[:500]
    ours = page.replace(plotly, "")
    assert "http://" not in ours and "https://" not in ours and "url(" not in ours and "@import" not in ours
    assert str(tmp_path) not in page


def test_every_run_is_in_it_with_the_six_pictures(runs: dict[str, Path], tmp_path: Path) -> None:
    page = report(tmp_path / "report.html", *runs.values())
    data = data_of(page)
    assert [run["name"] for run in data["runs"]] == ["static", "dynamic"]
    assert {chart["metric"] for chart in data["charts"]} >= SIX
    for run, folder in zip(data["runs"], runs.values(), strict=True):
        rows = list(read_lines(folder / "metrics.jsonl"))
        assert run["cycles"]["step"] == [row["step"] for row in rows]
        for name in SIX:
            assert run["cycles"][name] == pytest.approx([row[name] for row in rows], rel=1e-5)
        assert run["is_simulated"]
        assert max(run["levels"]["queued"]["groups"]) > 0
    headings = Elements(page).text("th")
    assert "static" in headings and "dynamic" in headings


def test_the_summary_compares_with_the_first(runs: dict[str, Path], tmp_path: Path) -> None:
    walls = [json.loads((folder / "summary.json").read_text())["wall_s"] for folder in runs.values()]
    page = report(tmp_path / "report.html", *runs.values())
    row = re.search(r"times as fast as the first</th><td>(.*?)</td><td>(.*?)</td>", page)
    assert row is not None and row[1] == "1.000" and float(row[2]) == pytest.approx(walls[0] / walls[1], abs=1e-3)
    assert "times as fast" not in report(tmp_path / "one.html", runs["dynamic"])


def test_decisions_and_what_they_were_made_from(runs: dict[str, Path], tmp_path: Path) -> None:
    decisions = list(read_lines(runs["dynamic"] / "decisions.jsonl"))
    assert {d["question"] for d in decisions} == {"lend", "take_back", "rebalance"}
    text = Elements(report(tmp_path / "report.html", *runs.values())).text("td")
    for decision in decisions:
        assert decision["reason"] in text
        assert f"backlog_samples\u00a0{decision['backlog_samples']:,.0f}" in text
    assert "nothing was asked" in report(tmp_path / "static.html", runs["static"])


def test_only_different_settings_are_shown(runs: dict[str, Path], tmp_path: Path) -> None:
    page = report(tmp_path / "report.html", *runs.values())
    section = page.partition('<section id="settings">')[2].partition("</section>")[0]
    assert re.findall(r'scope="row">(.*?)</th>', section) == ["async_training.use_dynamic_resource_scheduling"]
    assert "<td>false</td><td>true</td>" in section


def test_a_run_that_has_not_ended_can_be_reported(runs: dict[str, Path], tmp_path: Path) -> None:
    run = copy(runs["dynamic"], tmp_path / "dynamic", without=("summary.json", "levels.jsonl", "decisions.jsonl"))
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "trai')
    page = report(tmp_path / "report.html", run, runs["dynamic"])
    assert "has not ended" in page and "were not recorded by this run" in page
    # Both are called dynamic.
    assert [run["name"] for run in data_of(page)["runs"]] == ["dynamic", "dynamic (2)"] or all(
        run["name"].endswith("/dynamic") for run in data_of(page)["runs"]
    )
    # Computed from the rows instead: the same numbers as in the other run's summary.
    for label in ("groups trained on", "utilization, all devices", "devices busy"):
        cells = re.search(f"{label}</th><td>(.*?)</td><td>(.*?)</td>", page)
        assert cells is not None and cells[1] == cells[2], label


def test_what_runs_contain_is_only_text(runs: dict[str, Path], tmp_path: Path) -> None:
    run = copy(runs["dynamic"], tmp_path / "<b>{{title}}<script>alert(1)<!--")
    (run / "scenario.yaml").write_text("name: '</script><script>alert(2)</script>'\n")
    with (run / "decisions.jsonl").open("a") as file:
        file.write('{"time_s": 1e9, "question": "lend", "answer": "<i>", "reason": "</td><script>"}\n')
    plain = Elements(report(tmp_path / "plain.html", runs["dynamic"]))
    elements = Elements(page := report(tmp_path / "report.html", run))
    for tag in ("script", "b", "i"):
        assert count(elements, tag) == count(plain, tag)
    assert data_of(page)["runs"][0]["name"] == run.name


def count(elements: Elements, tag: str) -> int:
    return sum(1 for found, _ in elements.tags if found == tag)


def copy(run: Path, to: Path, without: tuple[str, ...] = ()) -> Path:
    to.mkdir(parents=True)
    for file in run.iterdir():
        if file.name not in without:
            (to / file.name).write_bytes(file.read_bytes())
    return to


# --- lanes ----------------------------------------------------------------------------------------------------------


def test_the_page_has_every_span(runs: dict[str, Path], tmp_path: Path) -> None:
    run = data_of(report(tmp_path / "report.html", runs["dynamic"]))["runs"][0]
    lanes = read_lanes(runs["dynamic"] / "timeline.jsonl")
    assert run["lanes"]["devices"] == [lane.device for lane in lanes]
    for lane, (starts, ends, states) in zip(lanes, decode(run["lanes"]), strict=True):
        assert starts == pytest.approx(lane.start_s, abs=2e-6)
        assert ends == pytest.approx(lane.end_s, abs=2e-6)
        assert states.tolist() == lane.state.tolist()


def decode(data: dict[str, Any]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """As the page does it."""
    starts = np.frombuffer(b64decode(data["starts"]), "<u4") * data["tick_s"]
    states = np.frombuffer(b64decode(data["states_at"]), np.uint8)
    found, at = [], 0
    for size in data["counts"]:
        start, state = starts[at : at + size], states[at : at + size]
        known = state[:-1] != 255
        assert state[-1] == 255
        found.append((start[:-1][known], start[1:][known], state[:-1][known]))
        at += size
    assert at == len(starts) == len(states)
    return found


def made_lanes(num_devices: int, num_spans: int) -> list[Lane]:
    lanes = []
    for device in range(num_devices):
        lengths = np.random.default_rng(device).uniform(0.1, 2.0, num_spans)
        ends = np.cumsum(lengths)
        state = (np.arange(num_spans) % len(STATES)).astype(np.int8)
        # Every seventh span is missing: the lanes have holes.
        keep = np.arange(num_spans) % 7 != 3
        lanes.append(Lane(f"hybrid-{device}", (ends - lengths)[keep], ends[keep], state[keep]))
    return lanes


def test_holes_stay_holes() -> None:
    lanes = made_lanes(3, 50)
    for lane, (starts, ends, states) in zip(lanes, decode(lane_data(lanes, 200.0, MAX_BYTES)), strict=True):
        assert starts == pytest.approx(lane.start_s, abs=2e-6) and ends == pytest.approx(lane.end_s, abs=2e-6)
        assert states.tolist() == lane.state.tolist()


def test_too_many_spans_become_shares_that_lose_no_time() -> None:
    lanes = made_lanes(40, 400)
    length_s = max(float(lane.end_s[-1]) for lane in lanes)
    data = lane_data(lanes, length_s, 20_000)
    assert data["kind"] == "bins" and data["num_bins"] == 100
    shares = np.frombuffer(b64decode(data["shares"]), np.uint8).reshape(40, 100, len(STATES)) / 255
    for lane, mine in zip(lanes, shares, strict=True):
        for i in range(len(STATES)):
            spent = (lane.end_s - lane.start_s)[lane.state == i].sum()
            assert mine[:, i].sum() * data["bin_s"] == pytest.approx(spent, abs=100 * data["bin_s"] / 255)


@pytest.mark.parametrize(("num_devices", "num_spans"), [(1024, 110), (16, 70_000)])
def test_lanes_of_large_runs_stay_small(num_devices: int, num_spans: int) -> None:
    lanes = made_lanes(num_devices, num_spans)
    text = json.dumps(lane_data(lanes, 3 * num_spans, MAX_BYTES))
    assert len(text) < 7_500_000


def test_the_page_says_what_it_left_out(fake_run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(40, num_hybrid=3, num_standalone=2)
    page = report(tmp_path / "all.html", tmp_path)
    assert "Nothing: all of it is here." in page
    monkeypatch.setattr("swingshift.observe.report.MAX_BYTES", 500)
    monkeypatch.setattr("swingshift.observe.report_charts.MAX_POINTS", 13)
    page = report(tmp_path / "less.html", tmp_path)
    assert "device spans are too many for a page" in page and "the mean of 4 cycles" in page
    run = data_of(page)["runs"][0]
    assert run["lanes"]["kind"] == "bins" and len(run["cycles"]["step"]) == 10


# --- curves ---------------------------------------------------------------------------------------------------------


def test_long_curves_keep_means_and_peaks() -> None:
    n = 2 * MAX_POINTS + 100
    columns = {name: np.random.default_rng(1).uniform(0, 1, n) for name in chart_metrics()}
    columns["step"] = np.arange(1.0, n + 1)
    columns["timing_s/step"][:] = np.nan
    series = cycle_series(columns)
    assert series["per_point"] == 3 and len(series["step"]) == -(-n // 3) <= MAX_POINTS
    reward = columns["critic/rewards/mean"]
    assert series["critic/rewards/mean"][7] == pytest.approx(reward[21:24].mean(), rel=1e-5)
    peak = columns["fully_async/staleness/max"].max()
    assert max(series["fully_async/staleness/max"]) == pytest.approx(peak, rel=1e-5)
    assert series["step"][0] == 3 and "timing_s/step" not in series


def test_thinned_levels_keep_every_peak() -> None:
    rng = np.random.default_rng(3)
    time_s = np.cumsum(rng.exponential(1.0, 5000))
    values = rng.integers(0, 50, 5000).astype(float)
    values[[1234, 4001]] = 900, -3
    chosen = extremes(time_s, values, 100)
    assert len(chosen) <= 202 and (np.diff(chosen) > 0).all()
    assert {0, 1234, 4001, 4999} <= set(chosen.tolist())
    assert extremes(time_s[:150], values[:150], 100).tolist() == list(range(150))


def test_every_chart_has_a_metric_of_its_own() -> None:
    assert len({chart.metric for chart in CHARTS}) == len(CHARTS) >= len(SIX)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_of_many_decisions_the_newest_are_shown() -> None:
    made = [
        {"time_s": i, "version": i, "question": "lend", "answer": "no", "reason": f"why-{i}."} for i in range(1500)
    ]
    section = decisions_section("run", made, was_recorded=True)
    assert section.count("why-") == MAX_DECISIONS and "why-1499." in section and "why-499." not in section
    assert f"newest {MAX_DECISIONS:,} of 1,500" in section and "lend: no 1,500×" in section


def test_settings_of_one_run_and_of_equal_ones() -> None:
    one = settings_table({"a": {"x.y": 1, "z": None}})
    assert "all 2 keys" in one and "null" in one
    assert "same configuration" in settings_table({"a": {"x": 1}, "b": {"x": 1}})
    assert "<td>1</td><td>–</td>" in settings_table({"a": {"x": 1}, "b": {}})


# --- colours --------------------------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [pytest.param(LIGHT, id="light"), pytest.param(DARK, id="dark")])
def test_colours_can_be_seen(theme: Theme) -> None:
    """The thresholds of WCAG 2: 4.5 for text, 3 for lines."""
    for ground in (theme.background, theme.surface):
        assert contrast(theme.ink, ground) >= 7
        assert contrast(theme.muted, ground) >= 4.5
        for color in theme.runs:
            assert contrast(color, ground) >= 3
    states = theme.states
    assert set(states) == set(DeviceState)
    # In greyscale too: training from rollout, and both from idle.
    assert contrast(states[DeviceState.TRAIN], states[DeviceState.ROLLOUT]) >= 1.5
    for busy in (DeviceState.ROLLOUT, DeviceState.SWITCHING, DeviceState.SYNCING):
        assert contrast(states[busy], states[DeviceState.IDLE]) >= 2.5
