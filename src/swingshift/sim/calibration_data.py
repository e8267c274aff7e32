"""What a calibration knows about a run: its folder read back, live or simulated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swingshift.config.loading import load_as, load_config
from swingshift.config.run_dir import CONFIG_FILE
from swingshift.config.schema import SwingshiftConfig
from swingshift.core.metric_table import METRICS
from swingshift.errors import ConfigError
from swingshift.observe.line_file import read_lines
from swingshift.observe.run_reader import METRICS_FILE, RunFolder
from swingshift.sim.calibration import Column
from swingshift.sim.calibration_rows import COUNTED, check_rows, damaged_lines, fitted_rows
from swingshift.sim.crowding import crowded_s
from swingshift.sim.run import SCENARIO_FILE
from swingshift.sim.scenario import (
    AsyncSection,
    ClusterSection,
    CostSection,
    EfficiencySection,
    GenerationSection,
    LengthsSection,
    Scenario,
    WorkloadSection,
)
from swingshift.sim.scenario_costs import replica_cost

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunData:
    """``base`` is the run as a scenario whose costs and lengths are not known; ``cycles`` are its metrics by name.

    ``fitted`` are the cycles to fit to. ``lengths`` are some of its responses' (none, where no samples were logged).
    ``crowded``: see ``crowded_s``.
    """

    name: str
    base: Scenario
    cycles: dict[str, Column]
    fitted: NDArray[np.bool_]
    crowded: dict[str, Column]
    wall_s: float
    lengths: tuple[int, ...]
    not_simulated: tuple[str, ...]

    def column(self, name: str) -> Column:
        return self.cycles[name]

    def total(self, name: str) -> float:
        return float(self.cycles[name].sum())


def read_run(folder: Path) -> RunData:
    """Raises ConfigError, naming the folder, for anything that is no whole run of a version that counts its work."""
    run = RunFolder(folder)
    base, not_simulated = _base_of(folder)
    cycles = {name: np.nan_to_num(column) for name, column in run.cycles([COUNTED, *METRICS]).items()}
    check_rows(folder / METRICS_FILE, cycles)
    consumed = cycles["fully_async/trainer/step_consumed_samples"]
    prompt_length = max(1, round(float(cycles["perf/num_prompt_tokens"].sum() / consumed.sum())))
    generation = base.generation.model_copy(update={"prompt_length": prompt_length})
    damaged = damaged_lines(folder / METRICS_FILE)
    if damaged:
        numbers = ", ".join(map(str, damaged[:10])) + ("" if len(damaged) <= 10 else ", …")
        logger.warning(
            "%s: line %s is no record; it counts as a cycle like the others, and the fits leave out the one after it",
            folder / METRICS_FILE,
            numbers,
        )
    num_groups = max(1, round(float(consumed.sum() + len(damaged) * consumed.mean())))
    workload = base.workload.model_copy(update={"num_groups": num_groups})
    num_cores = int(cycles["perf/num_shared_cores"][-1])
    cluster = base.cluster.model_copy(update={"shared_cores": num_cores})
    base = base.model_copy(update={"cluster": cluster, "generation": generation, "workload": workload})
    crowded = crowded_s(run.lanes() if num_cores else [], num_cores, cycles["training/time_s"])
    summary = run.summary()
    try:
        wall_s = float(cycles["training/time_s"][-1] if summary is None else summary["wall_s"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{folder}/summary.json: its wall_s is no number; restore or remove it") from error
    lengths, fitted = tuple(_lengths(folder)), fitted_rows(cycles)
    return RunData(run.name, base, cycles, fitted, crowded, wall_s, lengths, tuple(not_simulated))


def _base_of(folder: Path) -> tuple[Scenario, list[str]]:
    """The run's settings as a scenario, and what it had that a scenario cannot say."""
    if (folder / CONFIG_FILE).is_file():
        return _of_config(load_config([folder / CONFIG_FILE], []))
    if (folder / SCENARIO_FILE).is_file():
        return _of_scenario(load_as(Scenario, [folder / SCENARIO_FILE], [])), []
    raise ConfigError(f"{folder}: has neither {CONFIG_FILE} nor {SCENARIO_FILE}, so its settings are not known")


def _of_scenario(scenario: Scenario) -> Scenario:
    """Its settings, and nothing of what it costs."""
    workload = scenario.workload.model_copy(update={"lengths": LengthsSection()})
    return scenario.model_copy(
        update={
            "efficiency": EfficiencySection(),
            "cost": CostSection(kv_capacity_tokens=replica_cost(scenario).kv_capacity_tokens),
            "workload": workload,
            "sources": [],
            "assumptions": [],
        }
    )


def _of_config(config: SwingshiftConfig) -> tuple[Scenario, list[str]]:
    rollout, schedule, actor = config.actor_rollout_ref.rollout, config.async_training, config.actor_rollout_ref.actor
    own = {name: getattr(schedule, name) for name in AsyncSection.model_fields if hasattr(schedule, name)}
    own |= {"ppo_mini_batch_size": actor.ppo_mini_batch_size, "partial_rollout": rollout.partial_rollout}
    slot = config.data.max_prompt_length + rollout.response_length
    scenario = Scenario(
        name=config.trainer.experiment_name,
        cluster=ClusterSection(
            trainer_devices=config.trainer.num_devices, rollout_devices=config.rollout.num_devices
        ),
        cost=CostSection(kv_capacity_tokens=rollout.max_num_seqs * slot),
        generation=GenerationSection(
            n=rollout.n, response_length=rollout.response_length, max_num_seqs=rollout.max_num_seqs
        ),
        workload=WorkloadSection(seed=config.trainer.seed),
        async_training=AsyncSection(**own),
        v1=config.trainer.v1,
    )
    return scenario, list(_not_simulated(config))


def _not_simulated(config: SwingshiftConfig) -> list[str]:
    found = []
    if config.async_training.dynamic_schedule_policy_kwargs:
        found.append("async_training.dynamic_schedule_policy_kwargs are not part of a scenario.")
    if config.trainer.save_freq > 0:
        found.append(f"Checkpoints every {config.trainer.save_freq} versions take no time in a simulation.")
    if config.trainer.test_freq > 0:
        found.append(f"Validations every {config.trainer.test_freq} versions are not simulated.")
    if config.actor_rollout_ref.rollout.kv_cache_memory_bytes is not None or config.trainer.device != "cpu":
        found.append("The KV cache has room for max_num_seqs whole responses, which on a GPU may be too much.")
    return found


def _lengths(folder: Path) -> list[int]:
    """Of the responses in the sample log."""
    path = folder / "samples.jsonl"
    found = []
    try:
        for record in read_lines(path):
            found += [max(1, int(response["num_tokens"])) for response in record["responses"]]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check the folder") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: holds something that no run wrote; move it away") from error
    return found


def check_alike(runs: Sequence[RunData]) -> None:
    """Raises ConfigError if runs differ in what their costs depend on."""
    first = runs[0]
    for other in runs[1:]:
        for section, key in _SHARED:
            ours, theirs = (getattr(getattr(run.base, section), key) for run in (first, other))
            if ours != theirs:
                raise ConfigError(
                    f"{other.name}: has {section}.{key}={theirs}, but {first.name} has {ours}; "
                    "calibrate on runs of one workload at a time"
                )


_SHARED = (
    ("generation", "n"),
    ("generation", "response_length"),
    ("generation", "max_num_seqs"),
    ("cluster", "devices_per_replica"),
    ("async_training", "ppo_mini_batch_size"),
)
