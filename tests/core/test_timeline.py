"""The timeline: spans tile each device's time, totals equal their lengths, and nothing is kept."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.core.timeline import DeviceSpan, Timeline
from swingshift.core.types import DeviceState as S


def test_spans_close_on_a_change_of_state() -> None:
    spans: list[DeviceSpan] = []
    timeline = Timeline(spans.append)
    timeline.set_state("hybrid-0", S.IDLE, 0.0)
    timeline.set_state("hybrid-0", S.TRAIN, 2.0, "v1")
    timeline.set_state("hybrid-0", S.TRAIN, 3.0)
    timeline.set_state("hybrid-0", S.SYNCING, 5.0)
    timeline.close(5.5)
    assert spans == [
        DeviceSpan("hybrid-0", S.IDLE, 0.0, 2.0),
        DeviceSpan("hybrid-0", S.TRAIN, 2.0, 5.0, "v1"),
        DeviceSpan("hybrid-0", S.SYNCING, 5.0, 5.5),
    ]
    totals = timeline.totals(5.5)["hybrid-0"]
    assert totals == {S.IDLE: 2.0, S.TRAIN: 3.0, S.SYNCING: 0.5, S.ROLLOUT: 0.0, S.SWITCHING: 0.0}


def test_a_new_label_starts_a_new_span_of_the_same_state() -> None:
    spans: list[DeviceSpan] = []
    timeline = Timeline(spans.append)
    timeline.set_state("d", S.TRAIN, 0.0, "collection 1")
    timeline.set_state("d", S.TRAIN, 1.0, "collection 2")
    timeline.close(3.0)
    assert [(s.label, s.start_s, s.end_s) for s in spans] == [("collection 1", 0, 1), ("collection 2", 1, 3)]
    assert timeline.totals(3.0)["d"][S.TRAIN] == 3.0


def test_spans_without_length_are_dropped() -> None:
    spans: list[DeviceSpan] = []
    timeline = Timeline(spans.append)
    timeline.set_state("d", S.IDLE, 1.0)
    timeline.set_state("d", S.SWITCHING, 1.0)
    timeline.set_state("d", S.ROLLOUT, 1.0)
    timeline.close(2.0)
    timeline.close(2.0)
    assert spans == [DeviceSpan("d", S.ROLLOUT, 1.0, 2.0)]


def test_totals_of_an_open_span_run_on_until_now() -> None:
    timeline = Timeline()
    timeline.set_state("d", S.ROLLOUT, 10.0)
    assert timeline.totals(12.0)["d"][S.ROLLOUT] == 2.0
    assert timeline.totals(15.0)["d"][S.ROLLOUT] == 5.0
    assert timeline.state_of("d") is S.ROLLOUT


def test_a_gap_after_close_counts_as_nothing() -> None:
    timeline = Timeline()
    timeline.set_state("d", S.ROLLOUT, 0.0)
    timeline.close(1.0)
    assert timeline.state_of("d") is None
    assert timeline.totals(4.0)["d"][S.ROLLOUT] == 1.0
    timeline.set_state("d", S.ROLLOUT, 5.0)
    assert timeline.totals(7.0)["d"][S.ROLLOUT] == 3.0


def test_shares_of_a_device_seen_for_no_time() -> None:
    timeline = Timeline()
    timeline.set_state("d", S.TRAIN, 3.0)
    assert timeline.shares(3.0)["d"][S.TRAIN] == 1.0


def test_time_never_goes_backwards() -> None:
    timeline = Timeline()
    timeline.set_state("d", S.TRAIN, 3.0)
    with pytest.raises(AssertionError, match="backwards"):
        timeline.set_state("d", S.IDLE, 2.9)
    with pytest.raises(AssertionError, match="backwards"):
        timeline.totals(1.0)


steps = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(list(S)), st.integers(0, 4)), max_size=60)


@given(steps)
def test_spans_tile_time_and_add_up_to_the_totals(changes: list[tuple[str, S, int]]) -> None:
    spans: list[DeviceSpan] = []
    timeline = Timeline(spans.append)
    now, first_seen = 0.0, {}
    for device, state, dt in changes:
        now += dt
        first_seen.setdefault(device, now)
        timeline.set_state(device, state, now)
    timeline.close(now + 1)
    for device, start in first_seen.items():
        own = [s for s in spans if s.device == device]
        assert own[0].start_s == start and own[-1].end_s == now + 1
        assert all(a.end_s == b.start_s for a, b in pairwise(own))
        assert all(s.end_s > s.start_s for s in own)
        for state, seconds in timeline.totals(now + 1)[device].items():
            assert seconds == sum(s.end_s - s.start_s for s in own if s.state is state)
        assert sum(timeline.shares(now + 1)[device].values()) == pytest.approx(1.0)
