"""A policy of the user's own that raises, or answers what is of no use: one line, and what was trained is saved."""

from __future__ import annotations

from typing import Any

import pytest
from runtime_builders import MemorySaver, ScriptedPolicy, resume_from, simulate_failing

from swingshift.errors import ConfigError
from swingshift.schedule import Rebalance
from swingshift.sim.world import WorldConfig, simulate

METHODS = (
    "should_deactivate",
    "deactivate_wait_samples",
    "should_activate_after_step",
    "update_after_step",
    "request_rebalance",
    "state_dict",
)


class Odd(ScriptedPolicy):
    """Answers sensibly ``good`` times, then with what ``answer()`` returns or raises."""

    def __init__(self, method: str, answer: Any, good: int = 2) -> None:
        super().__init__()
        sensible, self.num_calls = getattr(self, method), 0

        def odd(*arguments: Any) -> Any:
            self.num_calls += 1
            return sensible(*arguments) if self.num_calls <= good else answer()

        setattr(self, method, odd)


def raise_it() -> None:
    raise ZeroDivisionError("no samples\nyet")


@pytest.mark.parametrize("method", METHODS)
def test_whatever_it_raises_names_the_policy_and_the_method(method: str) -> None:
    saver = MemorySaver()
    world = simulate_failing(
        WorldConfig(policy_object=Odd(method, raise_it), saver=saver),
        ConfigError,
        rf":Odd: {method} raised ZeroDivisionError: no samples yet \(test_policies_of_users.py:\d+\)",
    )
    assert world.session.train_loop.version >= 0
    assert saver.states or method == "state_dict", "what was trained is kept"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("should_deactivate", None),
        ("should_activate_after_step", None),
        ("deactivate_wait_samples", None),
        ("deactivate_wait_samples", float("nan")),
        ("deactivate_wait_samples", float("inf")),
        ("deactivate_wait_samples", "8"),
        ("deactivate_wait_samples", True),
        ("request_rebalance", "ful"),
        ("request_rebalance", True),
        ("state_dict", None),
        ("state_dict", {"seen": {1, 2}}),
    ],
)
def test_answers_of_no_use_are_said_so(method: str, answer: Any) -> None:
    policy = Odd(method, lambda: answer)
    simulate_failing(
        WorldConfig(policy_object=policy, saver=MemorySaver()), ConfigError, rf"Odd[:.] ?{method} returned"
    )


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("should_deactivate", 1),
        ("should_activate_after_step", ""),
        ("deactivate_wait_samples", 3.7),
        ("deactivate_wait_samples", -1),
        ("request_rebalance", "full"),
        ("request_rebalance", Rebalance.PROPORTIONAL),
        ("state_dict", {}),
    ],
)
def test_answers_that_mean_something_are_taken(method: str, answer: Any) -> None:
    world = simulate(WorldConfig(policy_object=Odd(method, lambda: answer)))
    assert sorted(world.trainer.trained) == list(range(64))


def test_a_state_it_cannot_take_back_is_said_before_anything_runs() -> None:
    class Changed(ScriptedPolicy):
        def load_state_dict(self, state: Any) -> None:
            self.ratio = state["ratio"]

    saver = MemorySaver()
    simulate(WorldConfig(policy_object=Changed(), saver=saver, save_freq=2))
    with pytest.raises(ConfigError, match="Changed: load_state_dict raised KeyError: 'ratio'"):
        simulate(WorldConfig(policy_object=Changed()), resume_from(saver.last))
