"""Whatever standard output is connected to: characters it lacks are replaced, a full disk is one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swingshift.cli import main

RUN = ["rollout-bound-8", "workload.num_cycles=6", "async_training.ppo_mini_batch_size=4"]
COMMANDS = (
    "train --dry-run trainer.device=cpu",
    "config check",
    "config show trainer.experiment_name=≈",
    "config schema",
    "config schema --markdown",
    "policies",
    "plan --devices 8 rollout-bound-8 workload.num_cycles=2",
    "plan --memory trainer.device=cpu",
    "compare rollout-bound-8 workload.num_cycles=2",
    "simulate",
    "sweep rollout-bound-8 workload.num_cycles=2 --grid workload.seed=1,2 --out sweep.jsonl --jobs 1",
    "soak --seeds 1",
    "top --once run",
    "report run -o page.html",
    "trace run -o trace.json",
    "calibrate run",
    "train --help",
    "--version",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("output")
    assert main(["simulate", *RUN, "--out", str(made / "run")]) == 0
    return made


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_the_encoding_lacks_are_replaced(
    command: str, encoding: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert main(command.split()) == 0
    assert written.getvalue().strip() and "\N{ESCAPE}".encode() not in written.getvalue()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_disk_that_is_full_is_one_line(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    capfd.readouterr()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(command.split()) == 1
    *warnings, line = capfd.readouterr().err.splitlines()
    assert line == "error: standard output cannot be written (No space left on device)"
    assert all(warning.startswith("warning: ") for warning in warnings)


def streams(**streams: str) -> subprocess.CompletedProcess[str]:
    """A command that writes to both, as a process, for what happens when the interpreter closes its streams."""
    command = [sys.executable, "-m", "swingshift", "config", "check", "actor_rollout_ref.rollout.top_p=0.9"]
    opened = {name: os.open(path, os.O_WRONLY) for name, path in streams.items()}
    try:
        return subprocess.run(command, **{"stdout": -1, "stderr": -1, **opened}, text=True, timeout=60)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def test_a_process_ends_in_order_with_a_full_disk_behind_its_streams() -> None:
    done = streams(stdout="/dev/full")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 2), done.stderr
    done = streams(stderr="/dev/full")
    assert (done.returncode, done.stdout) == (0, "ok\n"), "what is wrong is told nobody; the rest is done"
    assert streams(stdout="/dev/full", stderr="/dev/full").returncode == 1


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_process_whose_streams_are_closed_does_its_work(closed: str) -> None:
    command = f"{sys.executable} -m swingshift config check actor_rollout_ref.rollout.top_p=0.9 {closed}>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "" if closed == "1" else "ok\n")
    assert "Traceback" not in done.stderr
