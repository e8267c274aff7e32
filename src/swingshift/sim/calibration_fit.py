"""From runs to a scenario with fitted costs: which numbers of a run determine which cost, and what is assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from swingshift.sim.calibration import (
    Column,
    Estimate,
    LinearFit,
    fit_nonnegative,
    lognormal_of,
    mean_of,
    representative_lengths,
)
from swingshift.sim.calibration_data import RunData, check_alike
from swingshift.sim.scenario import LengthsSection, ModelSection, Scenario

KINDS = ("standalone", "hybrid")
TIMES_OF_OTHERS = ("gen", "wait_for_enough_samples", "deactivate", "activate", "rebalance", "param_sync", "save")
"""Parts of a cycle that are not training."""
MIN_SAMPLED_LENGTHS = 100
SYNC_CALLS, ACTIVATE_CALLS, DEACTIVATE_CALLS = 5, 5, 3
"""Calls one after the other: abort, release, write, restore, resume; offload, wake, weights, restore, resume; and
abort, sleep, onload. A rebalance is an abort and a resume."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A key of ``cost`` and where its value comes from. No interval: assumed."""

    value: float
    low: float | None
    high: float | None
    source: str


@dataclass(slots=True)
class Calibration:
    """``assumptions`` say in words what the runs do not tell."""

    scenario: Scenario
    parameters: dict[str, Parameter] = field(default_factory=dict)
    fits: dict[str, LinearFit] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)

    def measured(self, key: str, estimate: Estimate, source: str) -> None:
        self.parameters[key] = Parameter(estimate.value, estimate.low, estimate.high, source)

    def assumed(self, keys: Sequence[str], value: float, source: str) -> None:
        for key in keys:
            self.parameters[key] = Parameter(value, None, None, source)


def calibrate(runs: Sequence[RunData]) -> Calibration:
    """Fit to all runs together, with the settings of the first. Raises ConfigError if their workloads differ."""
    check_alike(runs)
    result = Calibration(runs[0].base)
    held_up = [_held_up(run, result) for run in runs]
    _fit_rollout(runs, held_up, result)
    _fit_training(runs, held_up, result)
    _fit_switches(runs, result)
    result.assumed(["reward_s"], 0.0, "assumed")
    result.assumptions.append("Scoring takes no time: a run does not record how long it took.")
    result.assumptions += dict.fromkeys(line for run in runs for line in run.not_simulated)
    if result.scenario.model == ModelSection():
        result.assumptions.append(
            "Sections model and device are placeholders: what they would determine is given under cost. "
            "`plan --memory` needs yours."
        )
    if result.scenario.workload.num_turns > 1:
        result.assumptions.append(
            "An engine whose responses are all at a tool counts as busy: decode steps come out too dear."
        )
    costs = {key: parameter.value for key, parameter in result.parameters.items()}
    base = result.scenario
    lengths, note = _lengths_of(runs[0])
    result.assumptions.append(note)
    result.scenario = base.model_copy(
        update={
            "cost": base.cost.model_copy(update=costs),
            "workload": base.workload.model_copy(update={"lengths": lengths}),
            "description": "Calibrated.",
            "sources": [
                f"Costs fitted to {sum(len(r.cycles['step']) for r in runs)} sync cycles of "
                f"{', '.join(run.name for run in runs)}."
            ],
            "assumptions": list(result.assumptions),
        }
    )
    return result


def _later(run: RunData, name: str) -> Column:
    """Of the cycles to fit to."""
    return run.column(name)[run.fitted]


def _durations(run: RunData) -> Column:
    return np.diff(run.column("training/time_s"), prepend=0.0)[run.fitted]


# --- shared cores ---------------------------------------------------------------------------------------------------


HeldUp = dict[str, Column]
"""Device-seconds a cycle that the control process held up rollout (``standalone``, ``hybrid``) and ``training``."""


def _held_up(run: RunData, result: Calibration) -> HeldUp:
    """What it computed while all cores were taken by devices: its part of the time, in equal parts of the cores.

    It is taken to compute evenly over a cycle.
    """
    num_cores = run.base.cluster.shared_cores
    if not num_cores:
        return {name: column[run.fitted] * 0.0 for name, column in run.crowded.items()}
    cpu_s = _later(run, "perf/control_cpu_s")
    requests = sum(_later(run, f"engine/{kind}/num_requests") for kind in KINDS)
    per_request = mean_of((cpu_s / np.maximum(requests, 1.0)).tolist())
    result.measured("control_per_request_s", per_request, "CPU time of the control process")
    rate = cpu_s / _durations(run) / num_cores
    return {name: column[run.fitted] * rate for name, column in run.crowded.items()}


# --- rollout --------------------------------------------------------------------------------------------------------


def _fit_rollout(runs: Sequence[RunData], held_up: Sequence[HeldUp], result: Calibration) -> None:
    names = {
        "step_base_s": "num_decode_steps",
        "step_per_sequence_s": "num_tokens",
        "step_per_kv_token_s": "num_cached_tokens",
        "prefill_per_token_s": "num_prefill_tokens",
    }
    columns: dict[str, list[Column]] = {key: [] for key in names}
    seconds: list[Column] = []
    for run, lost_s in zip(runs, held_up, strict=True):
        for kind in KINDS:
            busy_s = _later(run, f"engine/{kind}/busy_s") - lost_s[kind]
            busy_s = busy_s / run.base.cluster.devices_per_replica
            used = busy_s > 0.0
            seconds.append(busy_s[used])
            for key, name in names.items():
                columns[key].append(_later(run, f"engine/{kind}/{name}")[used])
    stacked = {key: np.concatenate(parts) for key, parts in columns.items()}
    if not stacked["step_base_s"].any():
        batch = _full_batch(runs[0].base)
        stacked["step_base_s"] = stacked["step_per_sequence_s"] / batch
        result.assumptions.append(f"The engine does not count its decode steps: every one decoded {batch} responses.")
    fit = fit_nonnegative(stacked, np.concatenate(seconds))
    result.fits["rollout"] = fit
    _take(fit, result, "engine time of rollout a cycle")


def _full_batch(base: Scenario) -> int:
    in_flight = base.async_training.concurrent_samples_per_replica * base.generation.n
    return min(base.generation.max_num_seqs, in_flight)


def _take(fit: LinearFit, result: Calibration, source: str) -> None:
    for key, estimate in fit.coefficients.items():
        result.measured(key, estimate, source)
    for key, why in fit.left_out.items():
        result.assumed([key], 0.0, f"assumed: {why}")
        result.assumptions.append(f"cost.{key} is 0: {why}.")


# --- training -------------------------------------------------------------------------------------------------------


def _fit_training(runs: Sequence[RunData], held_up: Sequence[HeldUp], result: Calibration) -> None:
    """Device-seconds a token and seconds a collection: all of a cycle's time but waiting, switching and saving."""
    tokens, collections, seconds = [], [], []
    for run, lost_s in zip(runs, held_up, strict=True):
        prompt, devices = run.base.generation.prompt_length, run.base.cluster.trainer_devices
        responses = _later(run, "fully_async/trainer/step_consumed_trajectories")
        tokens.append((_later(run, "perf/tokens") + responses * prompt) / devices)
        schedule, in_steps = run.base.async_training, run.base.v1.in_steps
        required = schedule.ppo_mini_batch_size * (1 if in_steps else schedule.require_batches)
        collections.append(np.ceil(_later(run, "fully_async/trainer/step_consumed_samples") / required))
        others_s = sum(_later(run, f"timing_s/{key}") for key in TIMES_OF_OTHERS)
        seconds.append(_durations(run) - others_s - lost_s["training"] / devices)
    columns = {"train_token_device_s": np.concatenate(tokens), "train_base_s": np.concatenate(collections)}
    fit = fit_nonnegative(columns, np.concatenate(seconds))
    result.fits["training"] = fit
    _take(fit, result, "training time a cycle")


# --- switches and syncs ---------------------------------------------------------------------------------------------


def _fit_switches(runs: Sequence[RunData], result: Calibration) -> None:
    """A run times whole syncs and switches; how they divide among their calls matters little to a simulation."""
    sync = mean_of(np.concatenate([_later(run, "timing_s/param_sync") for run in runs]).tolist())
    switched: dict[str, Estimate] = {}
    for name in ("activate", "deactivate", "rebalance"):
        found = np.concatenate([run.column(f"timing_s/{name}") for run in runs])
        if (found > 0.0).any():
            switched[name] = mean_of(found[found > 0.0].tolist())
    call = sync.scaled(1 / SYNC_CALLS)
    _take_sync(sync, call, switched, result)
    like_sync = "assumed: like a call of a weight sync"
    for name, (keys, rest) in {
        "activate": (("offload_s", "wake_s", "sync_hybrid_s"), ("kv_cache_s", "resume_s")),
        "deactivate": (("sleep_s", "onload_s"), ("abort_s",)),
    }.items():
        if name in switched:
            known_s = sum(result.parameters[key].value for key in rest)
            share = max(0.0, 1.0 - known_s / switched[name].value) / len(keys)
            for key in keys:
                result.measured(key, switched[name].scaled(share), f"{name[:-1]}ions")
        else:
            result.assumed(keys, call.value, like_sync)
    if not {"activate", "deactivate"} <= switched.keys():
        result.assumptions.append(
            f"Devices were never lent: each of the {ACTIVATE_CALLS} calls of an activation and the "
            f"{DEACTIVATE_CALLS} of a deactivation takes as long as one of the {SYNC_CALLS} of a weight sync."
        )


def _take_sync(sync: Estimate, call: Estimate, switched: Mapping[str, Estimate], result: Calibration) -> None:
    """Divided evenly, unless rebalances tell what aborting and resuming take together, or activations are quicker."""
    abort, resume, source = call, call, "weight syncs"
    if (rebalance := switched.get("rebalance")) is not None:
        abort_s = min(call.value, rebalance.value)
        resume_s = min(2 * call.value, rebalance.value - abort_s)
        abort, resume = (rebalance.scaled(seconds / (rebalance.value or 1.0)) for seconds in (abort_s, resume_s))
        source = "rebalances"
    result.measured("abort_s", abort, source)
    cache_s = call.value
    if (activate := switched.get("activate")) is not None:
        cache_s = min(cache_s, max(0.0, activate.value - resume.value) / (ACTIVATE_CALLS - 1))
    result.measured("kv_cache_s", sync.scaled(cache_s / (sync.value or 1.0)), "weight syncs")
    result.measured("resume_s", resume, source)
    rest_s = max(0.0, sync.value - abort.value - 2 * cache_s - resume.value)
    result.measured("sync_standalone_s", sync.scaled(rest_s / (sync.value or 1.0)), "weight syncs")
    result.assumed(["publish_s"], 0.0, "assumed: hidden behind aborting")
    result.assumptions.append(
        f"A weight sync ({sync.value:.4g} s) divides evenly among its {SYNC_CALLS} calls, unless rebalances say more."
    )


# --- response lengths -----------------------------------------------------------------------------------------------


def _lengths_of(run: RunData) -> tuple[LengthsSection, str]:
    """Of the first run, as one distribution for all of it, and what that leaves out."""
    num = run.total("fully_async/trainer/step_consumed_trajectories")
    mean = run.total("perf/tokens") / num
    std = max(0.0, run.total("response_length/sum_squares") / num - mean**2) ** 0.5
    if len(run.lengths) >= MIN_SAMPLED_LENGTHS:
        section = LengthsSection(kind="empirical", values=representative_lengths(run.lengths, mean))
        what = f"those of {len(run.lengths)} logged responses"
    elif std < 1e-6 * mean:
        section, what = LengthsSection(kind="constant", median=mean), "constant"
    else:
        median, sigma = lognormal_of(mean, std, run.base.generation.response_length)
        section = LengthsSection(kind="lognormal", median=round(median, 3), sigma=round(sigma, 4))
        what = f"lognormal with the run's standard deviation of {std:.4g}"
    return section, (
        f"Response lengths are {what}, with the run's mean of {mean:.4g} tokens throughout, and independent within "
        "a group."
    )
