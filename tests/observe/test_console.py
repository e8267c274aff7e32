"""The console: a live view on a terminal, rare lines elsewhere, and nothing lost at the end."""

from __future__ import annotations

import errno
import io

import pytest
from live_states import KEPT, LENT
from rich.console import Console as RichConsole

from swingshift.core.timeline import DeviceSpan
from swingshift.core.types import DeviceState
from swingshift.observe.console import Console

ROW = {
    "training/global_step": 3.0,
    "critic/rewards/mean": 0.4567,
    "dynamic_resource/mq_size": 12.0,
    "dynamic_resource/train_resource_utilization": 0.5,
    "dynamic_resource/rollout_resource_utilization": 0.9,
    "dynamic_resource/resource_utilization": 0.7,
    "perf/tokens_per_s": 12345.6,
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def plain(clock: Clock) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(RichConsole(file=out, width=80), line_interval_s=5.0, now_fn=clock), out


def at(cycle: int) -> dict[str, float]:
    return {**ROW, "training/global_step": float(cycle)}


def test_one_line_says_it_all() -> None:
    console, out = plain(Clock())
    console.update(ROW, state="HYBRID_ACTIVE", num_cycles=20, decision="lend: 1.2 s > 0.3 s [why]")
    assert out.getvalue() == (
        "[0.0 s] cycle 3/20 | reward 0.457 | queue 12 | devices lent | "
        "utilization 70% (train 50%, rollout 90%) | 12,346 tok/s | lend: 1.2 s > 0.3 s [why]\n"
    )


def test_lines_are_rare_and_the_last_is_never_lost() -> None:
    clock = Clock()
    console, out = plain(clock)
    for cycle in range(1, 10):
        console.update(at(cycle), state="STANDALONE_ONLY", num_cycles=None, decision="")
        clock.now += 2.0
    console.close()
    console.close()
    cycles = [line.split("|")[0].split("cycle ")[1].strip() for line in out.getvalue().splitlines()]
    assert cycles == ["1", "4", "7", "9"]
    assert "trainer keeps its devices" in out.getvalue()


def test_time_left_follows_the_pace_since_the_first_cycle_shown() -> None:
    clock = Clock()
    console, out = plain(clock)
    clock.now = 100.0  # Starting up took long; a resumed run begins at cycle 50.
    console.update(at(50), state="STANDALONE_ONLY", num_cycles=60, decision="")
    clock.now = 108.0
    console.update(at(54), state="STANDALONE_ONLY", num_cycles=60, decision="")
    first, second = out.getvalue().splitlines()
    assert "left" not in first
    assert "| 12.0 s left" in second
    assert second.startswith("[1:48] cycle 54/60")


def test_notes_are_printed_as_they_are() -> None:
    console, out = plain(Clock())
    console.note("checkpoint [v3] saved")
    assert out.getvalue() == "checkpoint [v3] saved\n"


def test_an_unknown_state_is_shown_by_its_name() -> None:
    console, out = plain(Clock())
    console.update({}, state="resting", num_cycles=None, decision="")
    assert "| resting |" in out.getvalue()


@pytest.mark.parametrize("num_cycles", [20, None])
def test_a_terminal_gets_a_live_view(num_cycles: int | None) -> None:
    out = io.StringIO()
    console = Console(RichConsole(file=out, width=110, force_terminal=True))
    console.update(ROW, state="HYBRID_ACTIVE", num_cycles=num_cycles, decision="lend now")
    console.note("a word in between")
    console.close()
    console.close()
    text = out.getvalue()
    assert ("cycle 3/20" if num_cycles else "cycle 3") in text
    for part in ("0.457", "12", "devices lent", "lend now", "a word in between"):
        assert part in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is back"


def terminal(clock: Clock) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    rich = RichConsole(file=out, width=80, height=30, force_terminal=True, color_system=None)
    return Console(rich, title="demo", now_fn=clock), out


def last_picture(out: io.StringIO) -> str:
    text = out.getvalue()
    return text[text.rindex("demo  cycle") :]


def test_a_tick_draws_what_the_run_does_now() -> None:
    clock = Clock()
    console, out = terminal(clock)
    console.tick(None)
    assert "waiting for the first cycle" in last_picture(out)
    console.on_span(DeviceSpan("hybrid-0", DeviceState.ROLLOUT, 0.0, 60.0))
    console.tick(LENT)
    picture = last_picture(out)
    assert "budget     31 / 48" in picture and "standalone-0 4 · hybrid-0 3" in picture and "waiting" not in picture
    console.tick(KEPT)
    assert "hybrid-0 asleep" in last_picture(out)
    console.close()


def test_the_time_left_runs_down_between_cycles() -> None:
    clock = Clock()
    console, out = terminal(clock)
    for clock.now, cycle in ((10.0, 1), (20.0, 2)):
        console.update(at(cycle), state="STANDALONE_ONLY", num_cycles=12, decision="")
    console.tick(LENT)
    assert "20.0 s, 1:40 left" in last_picture(out)
    clock.now = 29.0
    console.tick(LENT)
    assert "29.0 s, 1:31 left" in last_picture(out)
    console.close()


def test_the_last_picture_has_the_last_cycle() -> None:
    console, out = terminal(Clock())
    console.update(at(1), state="STANDALONE_ONLY", num_cycles=2, decision="")
    console.tick(LENT)
    console.update(at(2), state="STANDALONE_ONLY", num_cycles=2, decision="")
    console.tick(None)
    console.close()
    picture = last_picture(out)
    assert "cycle 2/2" in picture and "budget" not in picture


def test_a_run_that_could_not_start_does_not_say_it_waits() -> None:
    console, out = terminal(Clock())
    console.close()
    assert "waiting" not in last_picture(out)


def test_without_a_terminal_ticks_and_spans_print_nothing() -> None:
    console, out = plain(Clock())
    console.on_span(DeviceSpan("hybrid-0", DeviceState.ROLLOUT, 0.0, 60.0))
    console.tick(LENT)
    console.close()
    assert out.getvalue() == ""


class Disk(io.StringIO):
    """Full as long as it is told."""

    is_full = False

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_full_disk_is_warned_of_once_and_written_to_when_there_is_room_again(
    is_terminal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    out, clock = Disk(), Clock()
    rich = RichConsole(file=out, width=80, height=30, force_terminal=is_terminal, color_system=None)
    console = Console(rich, line_interval_s=0.0, now_fn=clock)
    console.note("before")
    out.is_full = True
    for cycle in range(1, 4):
        console.note("a word")
        console.update(at(cycle), state="STANDALONE_ONLY", num_cycles=9, decision="")
        console.tick(LENT)
    out.is_full = False
    console.update(at(4), state="STANDALONE_ONLY", num_cycles=9, decision="")
    console.tick(LENT)
    console.note("after")
    assert out.getvalue().count("before") == 1 and out.getvalue().count("after") == 1
    assert "a word" not in out.getvalue() and "cycle 4/9" in out.getvalue() and "cycle 3/9" not in out.getvalue()
    out.is_full = True
    console.close()
    console.close()
    console.conclude("a table", "a hint")
    assert [r.getMessage() for r in caplog.records] == ["console failed; training goes on without it"]


def test_a_terminal_that_cannot_be_written_from_the_start(caplog: pytest.LogCaptureFixture) -> None:
    out = Disk()
    out.is_full = True
    console = Console(RichConsole(file=out, force_terminal=True))
    console.update(ROW, state="STANDALONE_ONLY", num_cycles=9, decision="")
    console.on_span(DeviceSpan("hybrid-0", DeviceState.ROLLOUT, 0.0, 60.0))
    console.tick(LENT)
    console.close()
    assert len(caplog.records) == 1 and "No space left" in caplog.text


def test_a_character_that_the_output_lacks_costs_that_line_alone(caplog: pytest.LogCaptureFixture) -> None:
    written = io.BytesIO()
    console = Console(RichConsole(file=io.TextIOWrapper(written, encoding="ascii"), width=80))
    for text in ("one", "≈ two", "three"):
        console.note(text)
    assert written.getvalue() == b"one\nthree\n" and len(caplog.records) == 1
