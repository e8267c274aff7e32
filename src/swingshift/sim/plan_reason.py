"""Why a plan is what it is: which term binds, and what device-time goes to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from swingshift.observe.summary import format_seconds
from swingshift.sim.bound import binding_term
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_world import split_of
from swingshift.sim.splits import Candidate, with_split
from swingshift.sim.work import work_of


def shares_of(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of all device-time, the mean over runs. ``tail``: rollout beyond what it takes at the best batch."""
    parts = [_parts(summary) for summary in summaries]
    return {name: statistics.mean(part[name] for part in parts) for name in parts[0]}


def _parts(summary: Mapping[str, Any]) -> dict[str, float]:
    devices = summary["device_seconds"].values()
    total = sum(sum(states.values()) for states in devices)
    spent = {name: sum(states.get(name, 0.0) for states in devices) / total for name in ("train", "rollout")}
    switching = sum(states.get(name, 0.0) for states in devices for name in ("switching", "syncing")) / total
    rollout = min(spent["rollout"], summary["rollout_work_device_s"] / total)
    return {
        "training": spent["train"],
        "rollout": rollout,
        "tail": spent["rollout"] - rollout,
        "switching": switching,
        "waiting": 1.0 - sum(spent.values()) - switching,
    }


def explain(scenario: Scenario, static: Candidate | None, lending: Candidate) -> str:
    """Which terms of the bounds bind, what lending can win at most, and if it loses, where its time goes."""
    if static is None:
        return (
            f"no split of {lending.trainer_devices + lending.rollout_devices} devices can do without lending, so "
            "training and rollout take turns on them"
        )
    chosen = with_split(scenario, lending.trainer_devices, lending.rollout_devices, True)
    work, split = work_of(chosen), split_of(chosen)
    reached = f"{lending.bound_s / lending.median_s:.0%}"
    held = (
        f"training alone fills {reached} of its time: the trainer binds"
        if binding_term(work, split) == "training"
        else f"all devices together are the limit, and {reached} of it is reached"
    )
    share = work.train_s / (work.train_s + work.rollout_s)
    lines = [
        f"training is {share:.0%} of the work",
        _static_term(scenario, static),
        f"{lending.split} with lending can do no better than {format_seconds(lending.bound_s)}: {held}",
    ]
    if lending.median_s > static.median_s:
        lines.append(_loss(static, lending))
    return "; ".join(lines)


def _static_term(scenario: Scenario, static: Candidate) -> str:
    alone = with_split(scenario, static.trainer_devices, static.rollout_devices, False)
    work = work_of(alone, lending=False)
    train_s, rollout_s = work.train_s / static.trainer_devices, work.rollout_s / static.rollout_devices
    scale = static.bound_s / max(train_s, rollout_s)
    terms = {
        "training": f"W_t/a = {format_seconds(train_s * scale)}",
        "rollout": f"W_r/b = {format_seconds(rollout_s * scale)}",
    }
    larger, other = ("training", "rollout") if train_s >= rollout_s else ("rollout", "training")
    return f"{static.split} without lending is bound by {larger} ({terms[larger]}, {terms[other]})"


def _loss(static: Candidate, lending: Candidate) -> str:
    assert static.shares is not None and lending.shares is not None, "both were simulated"
    names = {"switching": "switching and syncing", "tail": "rollout below its best batch", "waiting": "waiting"}
    parts = ", ".join(f"{lending.shares[k]:.0%} ({static.shares[k]:.0%}) is {name}" for k, name in names.items())
    loss = lending.median_s / static.median_s - 1.0
    return f"lending loses {loss:.1%}: of its device-time, and in brackets of that without it, {parts}"
