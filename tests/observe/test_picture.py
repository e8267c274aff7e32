"""The picture: what is drawn, not how it looks (a person looks at that)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.core.types import DeviceState
from swingshift.observe.picture import compose, draw_run, read_cycles, share_bins, smooth, zoom_cycles
from swingshift.observe.spans import STATES, Lane, lane_order, read_lanes


def is_png(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("num_cycles", "num_hybrid", "num_standalone"), [(1, 1, 1), (12, 1, 1), (60, 2, 0), (40, 12, 12)]
)
def test_runs_of_every_size_can_be_drawn(
    fake_run: Callable, tmp_path: Path, num_cycles: int, num_hybrid: int, num_standalone: int
) -> None:
    fake_run(num_cycles, num_hybrid=num_hybrid, num_standalone=num_standalone)
    path = draw_run(tmp_path)
    assert path == tmp_path / "run.png" and is_png(path)


def test_a_run_without_any_file_can_be_drawn(tmp_path: Path) -> None:
    assert is_png(draw_run(tmp_path))


def test_a_run_without_spans_or_without_rows_can_be_drawn(fake_run: Callable, tmp_path: Path) -> None:
    fake_run(8)
    spans = (tmp_path / "timeline.jsonl").read_bytes()
    (tmp_path / "timeline.jsonl").write_bytes(b"")
    assert is_png(draw_run(tmp_path))
    (tmp_path / "timeline.jsonl").write_bytes(spans)
    (tmp_path / "metrics.jsonl").write_bytes(b"")
    assert is_png(draw_run(tmp_path))


def test_what_the_figure_says(fake_run: Callable, tmp_path: Path) -> None:
    fake_run(60)
    lanes = read_lanes(tmp_path / "timeline.jsonl")
    figure = compose(read_cycles(tmp_path / "metrics.jsonl"), lanes, "a run")
    reward, queue, overview, zoom = figure.axes
    assert reward.get_title(loc="left").startswith("Reward 0.2")
    assert "queue" in queue.get_title(loc="left")
    assert [t.get_text() for t in overview.get_yticklabels()] == ["standalone-0", "hybrid-0"]
    assert [t.get_text() for t in overview.get_legend().get_texts()] == [s.value for s in STATES]
    assert overview.get_title(loc="left").endswith("of each cycle")
    assert len([t for t in zoom.texts if t.get_text().startswith("cycle ")]) == 4
    assert reward.get_xlim() == overview.get_xlim()


def test_many_devices_share_a_lane_each_kind(fake_run: Callable, tmp_path: Path) -> None:
    fake_run(30, num_hybrid=12, num_standalone=9)
    lanes = read_lanes(tmp_path / "timeline.jsonl")
    figure = compose(read_cycles(tmp_path / "metrics.jsonl"), lanes, "a run")
    assert [t.get_text() for t in figure.axes[2].get_yticklabels()] == ["standalone × 9", "hybrid × 12"]
    assert "8 of 21 devices" in figure.axes[3].get_title(loc="left")


def test_a_cycle_written_twice_counts_once(tmp_path: Path) -> None:
    rows = [(1, 0.1), (2, 0.2), (2, 0.3), (3, 0.4)]
    text = "".join(f'{{"step": {s}, "critic/rewards/mean": {r}, "training/time_s": {s}}}\n' for s, r in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 4, "critic/rewards/mean": null}\n')
    cycles = read_cycles(tmp_path / "metrics.jsonl")
    assert cycles.number.tolist() == [1, 2, 3, 4]
    assert cycles.reward[:3].tolist() == [0.1, 0.3, 0.4] and np.isnan(cycles.reward[3])


def test_the_close_up_shows_a_switch_and_stays_readable(fake_run: Callable, tmp_path: Path) -> None:
    fake_run(60)
    cycles = read_cycles(tmp_path / "metrics.jsonl")
    lanes = read_lanes(tmp_path / "timeline.jsonl")
    window = zoom_cycles(cycles, lanes)
    assert window is not None
    first, last = window
    assert last - first == 4 and 20 < first < 40
    assert cycles.activations[first:last].any()
    assert zoom_cycles(cycles, []) is None


def test_lanes_are_in_order() -> None:
    names = ["hybrid-10", "hybrid-9", "standalone-11", "standalone-2"]
    assert sorted(names, key=lane_order) == ["standalone-2", "standalone-11", "hybrid-9", "hybrid-10"]


def made_lane(spans: list[tuple[float, int]]) -> Lane:
    ends = np.cumsum([length for length, _ in spans])
    starts = ends - np.array([length for length, _ in spans])
    return Lane("hybrid-0", starts, ends, np.array([state for _, state in spans], np.int8))


def test_shares_of_time_bins() -> None:
    train, idle = STATES.index(DeviceState.TRAIN), STATES.index(DeviceState.IDLE)
    lane = made_lane([(1.0, train), (2.0, idle), (1.0, train), (2.0, train)])
    shares = lane.shares(np.array([0.0, 2.0, 4.0, 8.0]))
    assert shares[train].tolist() == [0.5, 0.5, 0.5]
    assert shares[idle].tolist() == [0.5, 0.5, 0.0]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, len(STATES) - 1)), min_size=1, max_size=30),
    st.integers(1, 12),
)
def test_shares_lose_no_time(spans: list[tuple[int, int]], num_bins: int) -> None:
    lane = made_lane([(float(n), s) for n, s in spans])
    edges = np.linspace(0.0, float(lane.end_s[-1]), num_bins + 1)
    shares = lane.shares(edges)
    assert shares.sum(axis=0) == pytest.approx(1.0)
    for i in range(len(STATES)):
        assert (shares[i] * np.diff(edges)).sum() == pytest.approx(sum(n for n, s in spans if s == i))


def test_bins_hold_whole_cycles_where_there_are_enough() -> None:
    edges, per_bin = share_bins(np.arange(1.0, 401.0), 400.0)
    assert per_bin == 3 and edges[:3].tolist() == [0.0, 3.0, 6.0] and edges[-1] == 400.0
    edges, per_bin = share_bins(np.arange(1.0, 5.0), 400.0)
    assert per_bin == 0 and len(edges) == 161


def test_smoothing_keeps_a_constant_and_the_ends() -> None:
    assert smooth(np.full(7, 2.0), 2).tolist() == [2.0] * 7
    assert smooth(np.array([0.0, 3.0, 6.0]), 1).tolist() == [1.5, 3.0, 4.5]
