"""The live view: lanes in small memory, the right numbers, and no line wider than the screen."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Callable

import pytest
from live_states import ASLEEP, DEAD, KEPT, LENT, PAUSED, lent, replica
from rich.console import Console

from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState as S
from swingshift.observe.live_lanes import GLYPHS, LaneHistory, legend
from swingshift.observe.live_state import LiveProbe, LiveState
from swingshift.observe.live_view import LiveView, Status, read_status, sparkline
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_loop import StepSettings
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

ROW = {
    "training/global_step": 42.0,
    "critic/rewards/mean": 0.4567,
    "dynamic_resource/mq_size": 12.0,
    "dynamic_resource/train_resource_utilization": 0.5,
    "dynamic_resource/rollout_resource_utilization": 0.9,
    "dynamic_resource/resource_utilization": 0.7,
    "perf/tokens_per_s": 12345.6,
    "fully_async/staleness/mean": 0.42,
    "fully_async/staleness/max": 2.0,
}
STATUS = read_status(ROW, "HYBRID_ACTIVE", "lend: 5 groups short × 0.4 s > 0.3 s")
ROLLOUT, TRAIN, SWITCHING, SYNCING, IDLE = (GLYPHS[state] for state in S)


def spans(device: str, *pieces: tuple[float, S]) -> list[DeviceSpan]:
    """Pieces as (end, state), from time 0."""
    found, start = [], 0.0
    for end, state in pieces:
        found.append(DeviceSpan(device, state, start, end))
        start = end
    return found


def history(*all_spans: DeviceSpan, window_s: float = 120.0) -> LaneHistory:
    lanes = LaneHistory(window_s)
    for span in all_spans:
        lanes.add(span)
    return lanes


def cells(lanes: LaneHistory, width: int, now_s: float, current: dict[str, str] | None = None) -> dict[str, str]:
    return {name: text.plain for name, text in lanes.rows(width, now_s, current or {}, 16)}


# --- lanes --------------------------------------------------------------------------------------------------


def test_a_cell_is_what_took_most_of_its_time() -> None:
    lanes = history(*spans("d", (29.0, S.ROLLOUT), (61.0, S.TRAIN), (89.0, S.IDLE), (120.0, S.SYNCING)))
    assert cells(lanes, 4, 120.0 - 1e-9) == {"d": ROLLOUT + TRAIN + IDLE + SYNCING}
    assert cells(lanes, 2, 120.0 - 1e-9) == {"d": TRAIN + SYNCING}


def test_the_window_moves_with_time_and_old_bins_are_forgotten() -> None:
    lanes = LaneHistory(10.0)
    for i in range(10_000):
        lanes.add(DeviceSpan("d", (S.ROLLOUT, S.TRAIN)[i % 2], float(i), i + 1.0))
    assert cells(lanes, 10, 10_000 - 1e-9) == {"d": (ROLLOUT + TRAIN) * 5}
    assert len(lanes._bins["d"]) < 250, "memory depends on the window alone"


def test_a_span_longer_than_the_window_costs_no_more_than_the_window() -> None:
    lanes = history(DeviceSpan("d", S.TRAIN, 0.0, 1e9), window_s=10.0)
    assert len(lanes._bins["d"]) < 250
    assert cells(lanes, 10, 1e9 - 0.01) == {"d": TRAIN * 10}


def test_what_a_device_does_now_is_drawn_up_to_now() -> None:
    lanes = history(*spans("d", (60.0, S.ROLLOUT)))
    assert cells(lanes, 4, 119.99, {"d": "train"}) == {"d": ROLLOUT * 2 + TRAIN * 2}
    assert cells(lanes, 4, 119.99, {"d": "train"}) == {"d": ROLLOUT * 2 + TRAIN * 2}, "drawing changes nothing"
    assert cells(lanes, 4, 119.99) == {"d": ROLLOUT * 2 + "  "}, "of a run that has ended nothing is made up"


def test_a_device_without_a_span_is_in_its_state_from_the_start() -> None:
    assert cells(LaneHistory(120.0), 4, 59.99, {"d": "idle"}) == {"d": "  " + IDLE * 2}


def test_the_window_grows_with_the_cycles_and_keeps_what_it_knows() -> None:
    pieces = [(0.5 * (i + 1), (S.ROLLOUT, S.TRAIN)[i % 2]) for i in range(30)]
    lanes = history(*spans("d", *pieces), window_s=15.0)
    assert cells(lanes, 30, 15 - 1e-9) == {"d": (ROLLOUT + TRAIN) * 15}
    lanes.fit_cycle(1.0)
    assert lanes.window_s == 15.0, "ten cycles are in it"
    lanes.fit_cycle(5.9)
    assert lanes.window_s == 60.0
    lanes.add(DeviceSpan("d", S.IDLE, 15.0, 60.0))
    assert cells(lanes, 4, 60 - 1e-9)["d"][1:] == IDLE * 3
    assert set(cells(lanes, 60, 60 - 1e-9)["d"][:15]) <= {ROLLOUT, TRAIN}
    lanes.fit_cycle(1e9)
    assert lanes.window_s == 960.0, "a run that hangs must not make one cell of everything"


def test_many_devices_become_one_lane_a_kind() -> None:
    lanes = history(
        *(DeviceSpan(f"standalone-{i}", S.ROLLOUT if i else S.IDLE, 0.0, 120.0) for i in range(12)),
        *(DeviceSpan(f"hybrid-{i}", S.TRAIN, 0.0, 120.0) for i in range(12)),
    )
    rows = [(name, text.plain) for name, text in lanes.rows(4, 119.99, {}, 16)]
    assert rows == [("standalone × 12", ROLLOUT * 4), ("hybrid × 12", TRAIN * 4)]
    assert [name for name, _ in lanes.rows(4, 119.99, {}, 24)][:2] == ["standalone-0", "standalone-1"]


def test_of_very_many_devices_some_stand_for_all() -> None:
    lanes = history(*(DeviceSpan(f"hybrid-{i}", S.ROLLOUT, 0.0, 120.0) for i in range(500)))
    rows = [(name, text.plain) for name, text in lanes.rows(4, 119.99, {"standalone-0": "idle"}, 1000)]
    assert rows == [("standalone-0", IDLE * 4), ("hybrid 64/500", ROLLOUT * 4)]
    assert len(lanes._bins) == 65


def test_random_lanes_agree_with_the_exact_shares() -> None:
    """Against the definition: of each cell's time, the state with the largest share."""
    rng = random.Random(1)
    pieces, end = [], 0.0
    while end < 120.0:
        end += rng.expovariate(0.5)
        pieces.append((end, rng.choice(list(S))))
    drawn = spans("d", *pieces)
    text = cells(history(*drawn), 60, end - 1e-9)["d"]
    last_bin = int((end - 1e-9) / 0.5)
    left = (last_bin - 239) * 0.5
    assert len(text) == 60
    for i, glyph in enumerate(text):
        a, b = left + 2.0 * i, left + 2.0 * (i + 1)
        shares = {s: sum(max(0.0, min(b, x.end_s) - max(a, x.start_s)) for x in drawn if x.state is s) for s in S}
        best = max(shares.values())
        if best > 0.0:
            assert shares[next(s for s in S if GLYPHS[s] == glyph)] == pytest.approx(best)


# --- the view -----------------------------------------------------------------------------------------------


def rendered(view: LiveView, width: int = 80, height: int = 30) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(view)
    return capture.get().splitlines()


def view(live: LiveState | None = LENT, status: Status | None = STATUS, **more: object) -> LiveView:
    lanes = history(*spans("standalone-0", (95.0, S.ROLLOUT)), *spans("hybrid-0", (50.0, S.ROLLOUT), (95.0, S.TRAIN)))
    options: dict[str, object] = {"num_cycles": 120, "left_s": 221.0, "rewards": (0.1, 0.2, 0.4567), **more}
    return LiveView("demo", 123.0, lanes, status, live, **options)  # type: ignore[arg-type]


def test_everything_one_wants_to_know_is_on_the_screen() -> None:
    lines = rendered(view())
    text = "\n".join(lines)
    assert lines[0].startswith("demo  cycle 42/120  ") and lines[0].endswith("2:03, 3:41 left")
    for part in (
        "reward     0.457", "▁▃█", "queue      12 / 48", "budget     31 / 48", "in flight  7 / 8",
        "replicas   standalone-0 4 · hybrid-0 3", "70% (train 50%, rollout 90%)", "12,346 tok/s",
        "staleness mean 0.42, max 2", "lending    devices lent",
        "decision   lend: 5 groups short × 0.4 s > 0.3 s",
        "2:00 ago", "now", legend().plain.strip(),
    ):  # fmt: skip
        assert part in text, part
    assert next(line for line in lines if line.startswith("hybrid-0")).count(ROLLOUT) > 20


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("live", [LENT, KEPT, None])
@pytest.mark.parametrize("status", [STATUS, None])
def test_no_line_is_wider_than_the_screen(width: int, live: LiveState | None, status: Status | None) -> None:
    lines = rendered(view(live, status), width)
    assert lines and all(len(line) <= width for line in lines)
    assert width < 80 or not any(line.endswith("…") for line in lines), "on a usual terminal nothing is cut off"


def test_a_long_reason_takes_two_lines_and_no_more() -> None:
    status = read_status(ROW, "HYBRID_ACTIVE", "because " * 40)
    lines = [line for line in rendered(view(status=status)) if "because" in line]
    assert len(lines) == 2 and all(len(line) <= 80 for line in lines)


def test_replicas_that_do_not_serve_say_why() -> None:
    live = lent(replicas=(replica("standalone-0", 4, PAUSED), replica("hybrid-0", 0, DEAD)))
    assert "replicas   standalone-0 paused · hybrid-0 dead" in rendered(view(live))
    assert "replicas   standalone-0 4 · hybrid-0 asleep" in rendered(view(KEPT))


def test_many_replicas_are_summed_up() -> None:
    live = lent(
        replicas=(
            *(replica(f"standalone-{i}", i) for i in range(16)),
            *(replica(f"hybrid-{i}", 0, ASLEEP) for i in range(4)),
        )
    )
    assert "replicas   standalone × 16: 120, 0 to 15 each · hybrid × 4: 0, 4 asleep" in rendered(view(live), 100)


def test_training_in_global_steps_has_no_budget_to_show() -> None:
    live = lent(queue_capacity=None, staleness_samples=None, max_required_samples=None)
    lines = rendered(view(live))
    assert any(line.startswith("queue      12 ") and "/" not in line for line in lines)
    assert not any(line.startswith("budget") for line in lines)


def test_without_a_first_cycle_the_levels_are_there() -> None:
    lines = rendered(view(status=None, num_cycles=None, left_s=None, rewards=(), news="waiting"))
    assert lines[0] == "demo  cycle 0  2:03" and lines[1] == "waiting"
    assert any(line.startswith("queue      12 / 48") for line in lines)
    assert "lending    devices lent" in lines and "decision   lend: 5 groups short × 0.4 s > 0.3 s" in lines


def test_a_row_with_gaps_is_shown() -> None:
    status = read_status({"training/global_step": 3.0, "critic/rewards/mean": None}, "resting", "")
    assert (status.cycle, status.reward, status.lent) == (3, 0.0, "resting")


def test_sparklines() -> None:
    assert sparkline([0.0, 1.0, 2.0, 7.0]) == "▁▂▃█"
    assert sparkline([3.0, 3.0]) == "▁▁"


# --- where the numbers come from ----------------------------------------------------------------------------


def simulate_probed(config: WorldConfig) -> tuple[World, list[LiveState]]:
    """Every half second of a simulated run."""
    seen: list[LiveState] = []

    def script(world: World) -> None:
        probe, loop = LiveProbe(world.session), asyncio.get_running_loop()

        def look() -> None:
            seen.append(probe())
            loop.call_later(0.05, look)

        loop.call_later(0.0, look)

    return simulate(config, script), seen


@pytest.fixture(scope="module")
def lending() -> tuple[World, list[LiveState]]:
    cost = ReplicaCost(step_base_s=0.01, step_per_sequence_s=0.002, max_num_seqs=4, sleep_s=0.2, wake_s=0.2)
    return simulate_probed(WorldConfig(lengths=lognormal_lengths(60, 0.8, 300), max_tokens=300, replica_cost=cost))


def test_the_probe_sees_a_run_that_lends(lending: tuple[World, list[LiveState]]) -> None:
    world, seen = lending
    numbers = world.session.rollouter.numbers
    assert {s.lending for s in seen} >= {"STANDALONE_ONLY", "HYBRID_ACTIVE"}
    for s in seen:
        assert s.num_queued <= s.queue_capacity == numbers.max_required_samples
        assert sum(r.num_inflight for r in s.replicas) <= s.num_inflight <= numbers.max_required_samples
        assert [r.id for r in s.replicas] == ["standalone-0", "hybrid-0"]
        assert not s.is_lent or s.replicas[1].status != ASLEEP
        assert s.lending != "STANDALONE_ONLY" or s.replicas[1].status == ASLEEP
    assert any(s.replicas[1].num_inflight for s in seen), "the hybrid replica generates while it is lent"
    assert {state for s in seen for state in s.devices.values()} >= {"rollout", "train", "switching"}
    assert seen[-1].version > seen[0].version and any(s.decision for s in seen)


def test_the_probe_sees_training_in_global_steps() -> None:
    policy = StepSwitchPolicy(HybridRolloutSwitchConfig(enable_switch=True), 8, 2, standalone_share=0.5)
    mode = StepMode(StepSettings(8, 2), policy)
    _, seen = simulate_probed(WorldConfig(staleness_threshold=1.0, step_mode=mode))
    assert {s.lending for s in seen} >= {"STANDALONE_ONLY", "HYBRID_ACTIVE"}
    assert all(s.queue_capacity is None and s.staleness_samples is None for s in seen)
    assert any(s.num_queued for s in seen) and any(s.num_inflight for s in seen)
    assert all(LiveState.from_json(json.loads(json.dumps(s.to_json()))) == s for s in seen)


def test_a_state_survives_json(lending: tuple[World, list[LiveState]]) -> None:
    for state in lending[1]:
        assert LiveState.from_json(json.loads(json.dumps(state.to_json()))) == state


@pytest.mark.parametrize("break_it", [lambda d: d.pop("devices"), lambda d: d["replicas"][0].update(status="odd")])
def test_a_state_of_another_version_is_refused(break_it: Callable[[dict[str, object]], object]) -> None:
    values = LENT.to_json()
    break_it(values)
    with pytest.raises((KeyError, ValueError)):
        LiveState.from_json(values)
