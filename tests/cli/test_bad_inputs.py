"""Wrong input of every kind: error lines that say what and how to mend it, and not a byte of the folder changes.

What is typed, what lies in the folder and what the lines must say is in the tables of ``bad_inputs``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest
from bad_inputs import configs, runs, training, user_code, words
from bad_inputs.case import Case, lay

from swingshift.cli import main

CASES = [*words.CASES, *configs.CASES, *runs.CASES, *training.CASES, *user_code.CASES]
RUN = ["rollout-bound-8", "workload.num_cycles=8", "async_training.ppo_mini_batch_size=4"]


@pytest.fixture(scope="session")
def simulated_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    assert main(["simulate", *RUN, "--out", str(folder)]) == 0
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file's bytes by name; Python's own cache of a reward function is no file of ours."""
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return {str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes() for path in paths}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_wrong_input(
    case: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if case.in_run:
        shutil.copytree(request.getfixturevalue("simulated_run"), tmp_path / "run")
    lay(tmp_path, case.files)
    before, processes = tree(tmp_path), set(psutil.Process().children(recursive=True))
    capfd.readouterr()
    code = main(case.argv)
    out, err = capfd.readouterr()
    assert code == case.code, err
    lines = err.splitlines()
    assert lines and all(line.startswith("error: ") for line in lines), err[-2000:]
    assert all(part in err for part in case.parts), err[-2000:]
    assert "Traceback" not in err and out == ""
    assert tree(tmp_path) == before
    assert set(psutil.Process().children(recursive=True)) <= processes


def test_the_tables_hold_what_they_promise() -> None:
    assert len(CASES) >= 200
    commands = {case.argv[0] for case in CASES}
    named = "train top simulate compare sweep plan calibrate soak report trace config policies"
    assert commands >= set(named.split())
