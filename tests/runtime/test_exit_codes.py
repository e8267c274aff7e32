"""Exit code 2 is for what was found before training. What ends a run under way is exit code 1, whatever it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime_builders import CONFIGS, MemorySaver, ScriptedPolicy
from step_builders import Rewards, step_world, sync_world

from swingshift import errors
from swingshift.cli import main
from swingshift.core.types import Prompt
from swingshift.errors import ConfigError, DataError, SwingshiftError
from swingshift.schedule import DynamicScheduleContext
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.world import WorldConfig, simulate


def _classes(parent: type[SwingshiftError] = SwingshiftError) -> Iterator[type[SwingshiftError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from _classes(child)


CLASSES = [kind for kind in _classes() if kind.__module__ == errors.__name__]


@pytest.fixture
def train(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """``swingshift train`` with this in the place of Ray and its processes: the exit code and the last line."""

    def run(body: Callable[[], object]) -> tuple[int, str]:
        monkeypatch.setattr("swingshift.cluster.launch.run_training", lambda config, sources: body())
        code = main(["train", f"trainer.default_local_dir={tmp_path}/run"])
        return code, capfd.readouterr().err.splitlines()[-1]

    return run


class BrokenPrompts:
    """Without end, but for the error."""

    def __init__(self, error: SwingshiftError) -> None:
        self._error = error
        self._num_left = 10

    def next(self) -> Prompt:
        self._num_left -= 1
        if self._num_left < 0:
            raise self._error
        return Prompt(str(self._num_left), (0,) * 8)

    def remaining(self) -> int:
        return 1000

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class BrokenPolicy(ScriptedPolicy):
    error: SwingshiftError

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        raise self.error


def _in_training(error: SwingshiftError) -> WorldConfig:
    return replace(CONFIGS["dynamic"], faults=PlannedFaults(errors={("trainer", "train", 2): error}))


def _in_the_prompts(error: SwingshiftError) -> WorldConfig:
    return replace(CONFIGS["static"], wrap_ports=lambda ports: replace(ports, prompts=BrokenPrompts(error)))


def _in_the_policy(error: SwingshiftError) -> WorldConfig:
    policy = BrokenPolicy()
    policy.error = error
    return replace(CONFIGS["dynamic"], policy_object=policy)


def _in_the_steps(error: SwingshiftError) -> WorldConfig:
    return sync_world(num_prompts=32, faults=PlannedFaults(errors={("trainer", "train", 2): error}))


@pytest.mark.parametrize("where", [_in_training, _in_the_prompts, _in_the_policy, _in_the_steps])
@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_of_any_class_during_a_run_is_exit_code_1_and_what_was_trained_is_saved(
    kind: type[SwingshiftError],
    where: Callable[[SwingshiftError], WorldConfig],
    train: Callable[..., tuple[int, str]],
) -> None:
    saver = MemorySaver()
    config = replace(where(kind("a.b=1: is bad")), saver=saver)
    assert train(lambda: simulate(config)) == (1, "error: a.b=1: is bad")
    assert saver.states


@pytest.mark.parametrize("kind", CLASSES)
def test_before_it_bad_input_alone_is_exit_code_2(
    kind: type[SwingshiftError], train: Callable[..., tuple[int, str]]
) -> None:
    def body() -> None:
        raise kind("a.b=1: is bad")

    expected = 2 if issubclass(kind, ConfigError | DataError) else 1
    assert train(body) == (expected, "error: a.b=1: is bad")


def test_groups_replaced_in_vain_are_exit_code_1(train: Callable[..., tuple[int, str]]) -> None:
    failing = Rewards(failing=lambda i: i >= 8)
    config = step_world(num_prompts=10_000, reward=failing, max_failed_ratio=1.0)
    code, line = train(lambda: simulate(config))
    assert code == 1 and "groups in a row were of no use and replaced in vain" in line
