"""What is no run, or cannot be read or written: one line, exit code 2, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from swingshift.cli import main


@pytest.fixture
def run(fake_run: Callable, tmp_path: Path) -> Path:
    fake_run(3)
    return tmp_path


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(list(argv)) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err


COMMANDS = pytest.mark.parametrize("command", ["report", "trace"])


@COMMANDS
def test_no_such_folder(command: str, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    assert "no such folder" in fails(capsys, command, str(tmp_path / "nowhere"), "-o", str(out))
    (tmp_path / "file").write_text("x")
    assert "is a file" in fails(capsys, command, str(tmp_path / "file"), "-o", str(out))
    assert not out.exists()


@COMMANDS
def test_a_folder_without_a_run(command: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "not the folder of a run" in fails(capsys, command, str(tmp_path), "-o", str(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_no_finished_cycle(run: Path, capsys) -> None:
    (run / "metrics.jsonl").write_text("")
    assert "no finished cycle" in fails(capsys, "report", str(run), "-o", str(run / "out.html"))
    (run / "metrics.jsonl").unlink()
    assert "no finished cycle" in fails(capsys, "report", str(run), "-o", str(run / "out.html"))
    assert not list(run.glob("*out*"))


def test_no_spans(run: Path, capsys) -> None:
    (run / "timeline.jsonl").write_text("")
    assert "no device spans" in fails(capsys, "trace", str(run), "-o", str(run / "out.json"))


@COMMANDS
def test_the_output_cannot_be_written(command: str, run: Path, capsys) -> None:
    missing = run / "no" / "out"
    assert "there is no folder" in fails(capsys, command, str(run), "-o", str(missing))
    assert "is a folder" in fails(capsys, command, str(run), "-o", str(run))
    (run / ".out.partial").mkdir()
    assert "cannot be written" in fails(capsys, command, str(run), "-o", str(run / "out"))


@COMMANDS
@pytest.mark.parametrize("name", ["metrics.jsonl", "timeline.jsonl", "decisions.jsonl", "levels.jsonl"])
def test_a_file_that_cannot_be_read(command: str, name: str, run: Path, capsys) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()  # As good as a file without permissions, also for a superuser.
    out = run / "out"
    error = fails(capsys, command, str(run), "-o", str(out))
    assert name in error and "cannot be read" in error
    assert not list(run.glob("*out*"))


WRONG = [
    ("timeline.jsonl", '{"device": "hybrid-0", "state": "dancing", "start_s": 0.0, "end_s": 1.0}'),
    ("timeline.jsonl", '{"device": "hybrid-0"}'),
    ("metrics.jsonl", '{"step": 4, "training/time_s": "late"}'),
    ("decisions.jsonl", '{"question": "lend"}'),
    ("levels.jsonl", '{"time_s": 1.0, "queued": []}'),
]


@COMMANDS
@pytest.mark.parametrize(("name", "line"), WRONG)
def test_a_file_with_something_else_in_it(command: str, name: str, line: str, run: Path, capsys) -> None:
    with (run / name).open("a") as file:
        file.write(f"{line}\n")
    error = fails(capsys, command, str(run), "-o", str(run / "out"))
    assert name in error and "no run wrote" in error
    assert not list(run.glob("*out*"))


@pytest.mark.parametrize(("name", "text"), [("summary.json", "[1]"), ("config.yaml", "a: ["), ("summary.json", "{")])
def test_a_damaged_summary_or_configuration(name: str, text: str, run: Path, capsys) -> None:
    (run / name).write_text(text)
    assert name in fails(capsys, "report", str(run), "-o", str(run / "out.html"))


def test_a_damaged_attempt(run: Path, capsys) -> None:
    (run / "attempts.jsonl").write_text('{"request": "1"}\n')
    assert "attempts.jsonl" in fails(capsys, "trace", str(run), "-o", str(run / "out.json"))


def test_an_older_file_is_replaced_only_by_a_whole_one(run: Path, capsys) -> None:
    out = run / "out.html"
    out.write_text("before")
    (run / "summary.json").write_text("{")
    fails(capsys, "report", str(run), "-o", str(out))
    assert out.read_text() == "before"
    (run / "summary.json").unlink()
    assert main(["report", str(run), "-o", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>") and not list(run.glob(".*"))


def test_runs_and_the_option_in_any_order(run: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    assert main(["report", "-o", "a.html", "."]) == 0
    assert main(["report", ".", "--out", "b.html", "."]) == 0
    assert main(["report", "."]) == 0
    assert {path.name for path in run.glob("*.html")} == {"a.html", "b.html", "report.html"}
