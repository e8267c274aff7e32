"""What a run shows must not end it, whatever standard output is connected to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# What the command line does around a run, and what a run shows: notes, cycles, the summary.
PROGRAM = """
import asyncio, sys, types
from pathlib import Path
from swingshift.cli import main
from swingshift.cluster.run_files import RunFiles
from swingshift.core.types import DeviceState
from swingshift.runtime.cycle_report import CycleReport

def run_training(config, sources):
    if sys.stdin is not None:
        sys.stdin.read()
    files = RunFiles(Path(config.trainer.default_local_dir), config, str, None)
    for step in (1, 2, 3):
        files.note("x" * 100_000)
        row = {"training/global_step": float(step), "critic/rewards/mean": 0.5}
        asyncio.run(files.on_cycle(CycleReport(row, (), step, "HYBRID_ACTIVE", "lend: 3 groups short ≈ 0.1 s")))
    files.close({"hybrid-0": {DeviceState.TRAIN: 1.0}}, 1.0, "finished")
    return 0

launch = types.ModuleType("swingshift.cluster.launch")
launch.run_training = run_training
sys.modules["swingshift.cluster.launch"] = launch
sys.exit(main(["train", f"trainer.default_local_dir={sys.argv[1]}", *sys.argv[2:]]))
"""
WARNING = "WARNING swingshift.observe.guard: console failed; training goes on without it"


def start(folder: Path, *, shell: str = "", **options: object) -> subprocess.Popen[str]:
    """``shell``: redirections that only a shell can do."""
    (folder / "run").mkdir()
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    command = f"exec {sys.executable} {folder}/program.py {folder}/run {shell}"
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, shell=True, text=True, **{**streams, **options})  # type: ignore[call-overload]


def check(folder: Path, run: subprocess.Popen[str], *, warnings: int) -> str:
    """The run ended well and wrote everything; standard output as far as it can be read."""
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert (err or "").count(WARNING) == warnings, err
    assert "error" not in (err or "").lower().replace("oserror", ""), err
    written = folder / "run"
    assert json.loads((written / "summary.json").read_text())["exit_reason"] == "finished"
    assert len((written / "metrics.jsonl").read_text().splitlines()) == 3
    assert (written / "run.png").is_file()
    return out or ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8:strict"])
def test_characters_that_the_output_lacks_do_not_end_training(encoding: str, tmp_path: Path) -> None:
    run = start(tmp_path, env={**os.environ, "PYTHONIOENCODING": encoding}, encoding=encoding.partition(":")[0])
    out = check(tmp_path, run, warnings=0)
    assert "cycle 3" in out and "Run summary" in out and "everything is in" in out


def test_a_full_disk_behind_the_output_does_not_end_training(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        check(tmp_path, start(tmp_path, stdout=full), warnings=1)


def test_a_full_disk_behind_both_streams_does_not_end_training(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        check(tmp_path, start(tmp_path, stdout=full, stderr=full), warnings=0)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_do_not_end_training(closed: str, tmp_path: Path) -> None:
    check(tmp_path, start(tmp_path, shell=closed), warnings=0)


def test_a_reader_that_goes_away_does_not_end_training(tmp_path: Path) -> None:
    run = start(tmp_path, stdin=subprocess.PIPE)
    assert run.stdout is not None
    run.stdout.close()
    check(tmp_path, run, warnings=0)
