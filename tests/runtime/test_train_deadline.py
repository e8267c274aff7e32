"""A trainer that never answers ends the run instead of hanging it."""

from __future__ import annotations

import json

import pytest
from runtime_builders import MemorySaver

from swingshift.errors import TrainerError
from swingshift.sim.faults import PlannedFaults
from swingshift.sim.world import WorldConfig, simulate


def test_training_beyond_its_deadline_ends_the_run_and_its_groups_count_as_not_consumed() -> None:
    saver = MemorySaver()
    config = WorldConfig(
        faults=PlannedFaults(delays_s={("trainer", "train"): 1e6}), train_timeout_s=30.0, saver=saver
    )
    with pytest.raises(TrainerError, match=r"4 groups did not end within 30 s \(async_training.train_timeout_s\)"):
        simulate(config)
    [(_, text)] = saver.states
    state = json.loads(text)
    assert state["num_consumed"] == 0
    assert len(state["queued"]) >= 4
