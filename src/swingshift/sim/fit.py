"""Fits the two speeds of a scenario to measured totals of static runs, by simulation.

Two unknowns, ``efficiency.train_speed`` and ``efficiency.rollout_speed``, and two totals: one of a run that waits for
rollout and one of a run that waits for training. Each speed is scaled by how far its own total is off until both fit;
the other total's influence is what the repetition takes care of.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from swingshift.sim.run import run_scenario
from swingshift.sim.scenario import Scenario

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Speeds:
    """``efficiency.train_speed`` and ``efficiency.rollout_speed`` of a scenario."""

    train: float
    rollout: float


@dataclass(frozen=True, slots=True)
class Fit:
    """``errors``: simulated over measured, minus 1, of each total."""

    speeds: Speeds
    errors: tuple[float, ...]
    num_rounds: int


def with_speeds(scenario: Scenario, speeds: Speeds) -> Scenario:
    efficiency = scenario.efficiency.model_copy(update={"train_speed": speeds.train, "rollout_speed": speeds.rollout})
    return scenario.model_copy(update={"efficiency": efficiency})


def fit_speeds(
    rollout_bound: tuple[Scenario, float],
    train_bound: tuple[Scenario, float],
    *,
    tolerance: float = 0.001,
    max_rounds: int = 30,
) -> Fit:
    """Each argument: a static scenario and its measured seconds. Starts from the first one's speeds.

    Raises ValueError if the two totals do not determine the speeds (or not within ``max_rounds``).
    """
    efficiency = rollout_bound[0].efficiency
    speeds = Speeds(efficiency.train_speed, efficiency.rollout_speed)
    for num_rounds in range(1, max_rounds + 1):
        ratios = [_wall_s(scenario, speeds) / total_s for scenario, total_s in (rollout_bound, train_bound)]
        errors = tuple(ratio - 1.0 for ratio in ratios)
        logger.info("round %d: %s, errors %s", num_rounds, speeds, errors)
        if max(map(abs, errors)) <= tolerance:
            return Fit(speeds, errors, num_rounds)
        speeds = Speeds(speeds.train * ratios[1], speeds.rollout * ratios[0])
    raise ValueError(f"no fit within {max_rounds} rounds: {speeds}, errors {errors}")


def fit_rollout(scenario: Scenario, total_s: float, *, tolerance: float = 0.001, max_rounds: int = 30) -> Fit:
    """The rollout speed alone, with the scenario's training speed, to the total of one run that waits for rollout."""
    speeds = Speeds(scenario.efficiency.train_speed, scenario.efficiency.rollout_speed)
    for num_rounds in range(1, max_rounds + 1):
        ratio = _wall_s(scenario, speeds) / total_s
        if abs(ratio - 1.0) <= tolerance:
            return Fit(speeds, (ratio - 1.0,), num_rounds)
        speeds = Speeds(speeds.train, speeds.rollout * ratio)
    raise ValueError(f"no fit within {max_rounds} rounds: {speeds}, error {ratio - 1.0}")


def _wall_s(scenario: Scenario, speeds: Speeds) -> float:
    wall_s = run_scenario(with_speeds(scenario, speeds))["wall_s"]
    assert isinstance(wall_s, float)
    return wall_s
