from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from e2e_runs import SMALL, Cluster, Run

NUM_CPUS = 3
_BASE = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest model that knows the task's form a little."""
    from swingshift.config.schema import ModelConfig, WarmStartConfig
    from swingshift.tasks.builtin import SortDigits
    from swingshift.training.tiny_model import build_tiny_model

    folder = tmp_path_factory.mktemp("tiny_model")
    warm_start = WarmStartConfig(steps=100, batch_size=32, lr=1e-2)
    model = ModelConfig(hidden_size=32, num_layers=1, num_heads=2, warm_start=warm_start)
    build_tiny_model(folder, SortDigits(2, 3), model, seed=0)
    return folder


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    command = [sys.executable, str(Path(__file__).with_name("cluster_head.py")), str(NUM_CPUS)]
    # Ray makes its workers nice, which on a busy machine would starve the tests.
    environment = {**_BASE, "RAY_worker_niceness": "0"}
    head = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert head.stdout is not None
    yield Cluster(head.stdout.readline().strip(), head)
    head.communicate()


Launch = Callable[..., Run]


@pytest.fixture
def launch_own(tmp_path: Path, tiny_model: Path) -> Iterator[Launch]:
    """Starts runs that start Ray themselves."""
    runs: list[Run] = []

    def launch(
        *arguments: str,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        files: Sequence[Path] = (SMALL,),
    ) -> Run:
        model = f"actor_rollout_ref.model.path={tiny_model}"
        environment = {**_BASE, **(environment or {})}
        run = Run(folder or tmp_path / "run", list(files), [model, *arguments], environment, tmp_path)
        runs.append(run)
        return run

    yield launch
    for run in runs:
        run.end()


@pytest.fixture
def launch(launch_own: Launch, cluster: Cluster) -> Iterator[Launch]:
    """Starts runs on the shared cluster, and sees that they leave it as it was."""

    def launch(*arguments: str, folder: Path | None = None, environment: dict[str, str] | None = None) -> Run:
        there = {"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "token"}
        return launch_own(*arguments, folder=folder, environment={**(environment or {}), **there})

    yield launch
    deadline = time.monotonic() + 10
    clean = {"num_actors": 0, "num_groups": 0, "num_free_cpus": NUM_CPUS}
    while (held := cluster.held()) != clean:
        assert time.monotonic() < deadline, held
        time.sleep(0.1)
