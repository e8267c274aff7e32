"""A trainer that never answers ends the run instead of hanging it."""

from __future__ import annotations

import json

import pytest
from runtime_builders import MemorySaver

from swingshift.errors import TrainerError
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.world import WorldConfig, simulate


def test_training_that_has_no_end_ends_the_run_and_nothing_is_saved_under_it() -> None:
    """It cannot be taken back: if it ends after all, its groups were trained on, and a checkpoint would not know."""
    saver = MemorySaver()
    config = WorldConfig(
        faults=PlannedFaults(delays_s={("trainer", "train"): 1e6}), train_timeout_s=30.0, saver=saver
    )
    with pytest.raises(TrainerError, match=r"4 groups did not end within 30 s .*train_timeout_s") as e:
        simulate(config)
    assert saver.states == []
    assert any("nothing was saved" in note for note in e.value.__notes__)


def test_training_that_ends_soon_after_its_deadline_counts() -> None:
    saver = MemorySaver()
    faults = PlannedFaults(delays_s={("trainer", "train"): 31.0})
    config = WorldConfig(faults=faults, train_timeout_s=30.0, call_timeout_s=5.0, saver=saver)
    with pytest.raises(TrainerError, match="did not end within 30 s"):
        simulate(config)
    [(_, text)] = saver.states
    assert json.loads(text)["num_consumed"] == 4
