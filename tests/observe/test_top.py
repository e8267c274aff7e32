"""``swingshift top``: a run seen through its files, while it goes, when it has ended and when it was killed."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_run import FakeRun
from live_states import LENT, lent
from rich.console import Console

from swingshift.cli import main
from swingshift.observe.live_file import LiveFile, read_live
from swingshift.observe.tail import Tail
from swingshift.observe.top import RunWatch, follow


def text_of(watch: RunWatch, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, height=40, color_system=None)
    with console.capture() as capture:
        console.print(watch.view())
    return capture.get()


def append(path: Path, *records: dict[str, object]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def row(cycle: int, reward: float | None = 0.5, **more: object) -> dict[str, object]:
    return {
        "step": cycle, "training/global_step": cycle, "training/time_s": 10.0 * cycle,
        "critic/rewards/mean": reward, "dynamic_resource/mq_size": 3, **more,
    }  # fmt: skip


def span(device: str, state: str, start_s: float, end_s: float) -> dict[str, object]:
    return {"device": device, "state": state, "start_s": start_s, "end_s": end_s}


# --- what is seen -------------------------------------------------------------------------------------------


def test_a_run_that_has_ended(fake_run: Callable[..., FakeRun], tmp_path: Path) -> None:
    run = fake_run(30)
    (tmp_path / "summary.json").write_text(json.dumps({"exit_reason": "finished"}))
    decisions = [("lend", "keep: nothing is short"), ("take_back", "27 groups are enough"), ("rebalance", "")]
    append(tmp_path / "decisions.jsonl", *({"question": q, "reason": reason} for q, reason in decisions))
    text = text_of(RunWatch(tmp_path))
    assert f"{tmp_path.name}  cycle 30" in text and "ended: finished" in text
    assert f"{run.rows[-1]['critic/rewards/mean']:.3f}" in text
    assert "last 30 cycles" in text and "keep: nothing is short" in text
    lanes = {line.split()[0]: line for line in text.splitlines() if line.startswith(("standalone-0", "hybrid-0"))}
    assert lanes["standalone-0"].count("█") > 40 and "▓" in lanes["hybrid-0"]
    assert "budget" not in text, "nothing is in flight any more"


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", row(1), row(2), row(3))
    append(tmp_path / "timeline.jsonl", span("hybrid-0", "train", 0.0, 60.0))
    LiveFile(tmp_path, 13, clock=lambda: 1000.0).write(LENT)
    watch = RunWatch(tmp_path, clock=lambda: 1001.0)
    text = text_of(watch)
    assert "cycle 3/13" in text and "1:40, 1:40 left" in text, "ten cycles of ten seconds each"
    assert "budget     31 / 48" in text and "devices lent" in text
    assert "news" not in text and not watch.has_ended
    append(tmp_path / "metrics.jsonl", row(4, reward=0.875))
    assert "cycle 4/13" in text_of(watch) and "0.875" in text_of(watch)


def test_a_run_that_was_killed_says_since_when_it_is_silent(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", row(1))
    LiveFile(tmp_path, None, clock=lambda: 1000.0).write(LENT)
    text = text_of(RunWatch(tmp_path, clock=lambda: 1090.0))
    assert f"no news for 1:30: process {os.getpid()} is busy, stopped or gone" in text


def test_a_run_that_starts(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{}")
    assert "nothing written yet" in text_of(RunWatch(tmp_path))
    LiveFile(tmp_path, 5, clock=lambda: 0.0).write(None)
    assert "waiting for the first cycle" in text_of(RunWatch(tmp_path, clock=lambda: 1.0))


def test_gaps_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", row(1, reward=None))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "trai')
    assert "cycle 1" in text_of(RunWatch(tmp_path))


def test_a_run_started_anew_in_the_same_folder_is_a_new_run(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", *(row(cycle) for cycle in range(1, 9)))
    append(tmp_path / "timeline.jsonl", span("old-0", "train", 0.0, 60.0))
    watch = RunWatch(tmp_path)
    assert "last 8 cycles" in text_of(watch) and "old-0" in text_of(watch)
    for name in ("metrics.jsonl", "timeline.jsonl"):
        (tmp_path / name).unlink()
    assert "last 8 cycles" in text_of(watch), "between the two there is nothing new"
    append(tmp_path / "timeline.jsonl", span("new-0", "train", 0.0, 1.0))
    append(tmp_path / "metrics.jsonl", row(1), row(2))
    text = text_of(watch)
    assert "last 2 cycles" in text and "new-0" in text and "old-0" not in text


def test_only_the_end_of_long_files_is_read(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    append(file, *({"i": i} for i in range(1000)))
    tail = Tail(file, max_bytes=100)
    found = [record["i"] for record in tail.read()]
    assert found == list(range(found[0], 1000)) and 5 < len(found) < 12
    append(file, {"i": 1000})
    assert tail.read() == [{"i": 1000}] and tail.read() == []


def test_half_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    tail = Tail(file, 1000)
    assert tail.read() == []
    file.write_text('{"i": 1}\n{"i"')
    assert tail.read() == [{"i": 1}]
    with file.open("a") as more:
        more.write(": 2}\n")
    assert tail.read() == [{"i": 2}] and tail.num_restarts == 0


def test_a_live_file_is_whole_and_goes_away(tmp_path: Path) -> None:
    file = LiveFile(tmp_path, 7, clock=lambda: 5.0)
    file.write(LENT)
    record = read_live(tmp_path)
    assert record is not None and record.state == LENT and (record.num_cycles, record.wall_time) == (7, 5.0)
    file.write(None)
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"]
    file.close()
    file.close()
    assert read_live(tmp_path) is None
    (tmp_path / "live.json").write_text('{"wall_time": 1, "pid": 2, "num_cycles": 3, "state": {"odd": 1}}')
    assert read_live(tmp_path) is None


# --- the command --------------------------------------------------------------------------------------------


def test_once_prints_the_view(
    fake_run: Callable[..., FakeRun], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(5)
    LiveFile(tmp_path, 9, clock=time.time).write(LENT)
    assert main(["top", str(tmp_path), "--once"]) == 0
    assert main(["top", "--once", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("cycle 5/9") == 2 and "\x1b" not in out


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_what_is_no_run_is_an_error(
    make: Callable[[Path], object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "elsewhere"
    make(folder)
    assert main(["top", str(folder), "--once"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}: ")


def test_files_of_something_else_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path / "timeline.jsonl", {"no": "span"})
    assert main(["top", str(tmp_path), "--once"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}: its files are not those of a run")


def test_following_ends_with_the_run(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", row(1))
    file = LiveFile(tmp_path, 3)
    file.write(LENT)
    steps = iter([lambda: append(tmp_path / "metrics.jsonl", row(2)), lambda: file.write(lent(num_queued=9))])

    def wait(seconds: float) -> None:
        step = next(steps, None)
        if step is not None:
            step()
            return
        append(tmp_path / "metrics.jsonl", row(3))
        (tmp_path / "summary.json").write_text('{"exit_reason": "finished"}')
        file.close()

    out = io.StringIO()
    follow(RunWatch(tmp_path), Console(file=out, width=80, force_terminal=True, color_system=None), wait)
    text = out.getvalue()
    for part in ("cycle 1/3", "cycle 2/3", "9 / 48", "ended: finished"):
        assert part in text
    assert "cycle 3" in text[text.index("ended") - 200 :], "the last picture is the last state"
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is back"


def test_ctrl_c_leaves_a_terminal_cleanly(tmp_path: Path) -> None:
    append(tmp_path / "metrics.jsonl", row(1))
    LiveFile(tmp_path, 3).write(LENT)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "swingshift", "top", str(tmp_path)],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while b"31 / 48" not in shown:
        shown += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    assert process.wait(20) == 0
    os.close(ours)
    assert b"Traceback" not in shown and b"interrupted" not in shown
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") == 1
