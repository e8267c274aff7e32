"""Stopping at any moment, saving, and going on: every group trained exactly once over all sessions."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from runtime_builders import CONFIGS, MemorySaver, fails_for, resume_from, stop_at

from swingshift.core.types import SampleGroup
from swingshift.runtime.session_parts import StepMode
from swingshift.runtime.step_record import StepSettings
from swingshift.schedule.step_switch import HybridRolloutSwitchConfig, StepSwitchPolicy
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.workload import SimReward
from swingshift.sim.world import World, WorldConfig, simulate


@pytest.mark.parametrize("name", CONFIGS)
def test_stopping_at_any_moment_ends_the_run_and_resuming_trains_the_rest(name: str) -> None:
    config = CONFIGS[name]
    whole = simulate(config)
    steps = 60
    for i in range(steps + 1):
        saver = MemorySaver()
        first = simulate(replace(config, saver=saver), stop_at(whole.wall_s * i / steps))
        if first.exit_reason == "finished":
            assert len(first.trainer.trained) == 41
            continue
        assert first.exit_reason == "interrupted"
        state = saver.last
        assert state["num_consumed"] == len(first.trainer.trained)
        assert state["version"] == first.session.controller.version == len(first.rows)
        second = simulate(config, resume_from(state))
        assert second.exit_reason == "finished"
        assert sorted(first.trainer.trained + second.trainer.trained) == list(range(41)), f"stopped at step {i}"
        if second.rows:
            assert second.rows[0]["training/global_step"] == state["version"] + 1
            assert second.rows[-1]["fully_async/count/total_consumed_samples"] == 41
            assert second.rows[-1]["fully_async/count/total_generated_samples"] == 41


def test_stop_wakes_every_wait_at_once() -> None:
    """While the trainer waits for groups nothing is under way that must be finished."""
    slow = WorldConfig(num_prompts=40, lengths=lambda r, i: 100, replica_cost=ReplicaCost(step_base_s=1.0))
    for config in (slow, replace(slow, lend=False), replace(slow, num_standalone=0)):
        world = simulate(config, stop_at(30.0))
        assert world.exit_reason == "interrupted" and world.trainer.trained == []
        assert world.wall_s < 31


def test_stop_before_the_start() -> None:
    saver = MemorySaver()
    world = simulate(WorldConfig(saver=saver), lambda w: w.session.stop("never mind"))
    assert world.exit_reason == "never mind" and world.trainer.trained == []
    assert world.session.controller.costs.num_activations == 0
    assert saver.last["num_consumed"] == 0


def test_stopping_twice_keeps_the_first_reason() -> None:
    def script(world: World) -> None:
        stop_at(1.0)(world)
        asyncio.get_running_loop().call_at(1.1, world.session.stop, "again")

    assert simulate(WorldConfig(), script).exit_reason == "interrupted"


def test_many_short_sessions_make_one_run() -> None:
    config = CONFIGS["dynamic"]
    trained: list[int] = []
    state: dict[str, Any] | None = None
    clock: list[float] = []
    for _ in range(30):
        saver = MemorySaver()

        def script(world: World, state: dict[str, Any] | None = state) -> None:
            if state is not None:
                resume_from(state)(world)
            stop_at(2.0)(world)

        world = simulate(replace(config, saver=saver), script)
        trained += world.trainer.trained
        clock += [row["training/time_s"] for row in world.rows]
        state = saver.last
        if world.exit_reason == "finished":
            break
    assert sorted(trained) == list(range(41))
    assert clock == sorted(clock) and clock[-1] > 3, "one clock over all sessions"


class Recorder:
    """A reward that remembers what it scored."""

    def __init__(self) -> None:
        self.groups: dict[int, SampleGroup] = {}

    async def score(self, group: SampleGroup) -> tuple[float, ...]:
        self.groups[group.group_id] = group
        return (0.0,) * len(group.samples)


@pytest.mark.parametrize("name", CONFIGS)
def test_unfinished_responses_go_on_with_the_tokens_they_had(name: str) -> None:
    """What was generated before the stop begins the response afterwards, with the versions that sampled it."""
    config = CONFIGS[name]
    whole_s = simulate(config).wall_s
    num_kept = 0
    for i in range(1, 12):
        saver, recorder = MemorySaver(), Recorder()
        simulate(replace(config, saver=saver), stop_at(whole_s * i / 12))
        pending = {p["group_id"]: p["responses"] for p in saver.last["pending"]}
        simulate(replace(config, reward=recorder), resume_from(saver.last))
        for group_id, responses in pending.items():
            for sample, had in zip(recorder.groups[group_id].samples, responses, strict=False):
                length = len(had["token_ids"])
                assert list(sample.token_ids)[:length] == had["token_ids"]
                assert _versions(sample.version_spans)[:length] == _versions(had["version_spans"])
                assert len(sample.log_probs) == len(sample.token_ids) <= config.max_tokens
                num_kept += length
    assert num_kept > 100, "no stop met responses under way"


def test_nothing_is_kept_where_responses_may_not_span_an_abort() -> None:
    saver = MemorySaver()
    simulate(replace(CONFIGS["dynamic"], partial_rollout=False, saver=saver), stop_at(2.0))
    assert saver.last["pending"]
    unfinished = [r for p in saver.last["pending"] for r in p["responses"] if r["finish_reason"] is None]
    assert unfinished and not any(r["token_ids"] for r in unfinished)


def _versions(spans: Any) -> list[int]:
    return [version for version, num_tokens in spans for _ in range(num_tokens)]


def test_a_state_survives_json_and_holds_everything() -> None:
    saver = MemorySaver()
    config = replace(CONFIGS["dynamic"], saver=saver, save_freq=1)
    simulate(config, stop_at(3.0))
    assert len(saver.states) >= 3
    for step, text in saver.states:
        state = json.loads(text)
        assert state["version"] == step

        def load(world: World, state: dict[str, Any] = state) -> None:
            world.session.load_state_dict(state)
            again = json.loads(json.dumps(world.session.state_dict()))
            assert again | {"time_s": 0} == state | {"time_s": 0}
            assert again["time_s"] == pytest.approx(state["time_s"])

        resumed = simulate(CONFIGS["dynamic"], load)
        assert len(set(resumed.trainer.trained)) == 41 - state["num_consumed"]


def test_a_resumed_session_counts_its_time_from_where_it_stopped() -> None:
    saver = MemorySaver()
    config = CONFIGS["static"]
    simulate(replace(config, saver=saver), stop_at(2.0))
    state = saver.last
    state["time_s"] = 1000.0
    world = simulate(config, resume_from(state))
    assert world.spans and min(s.start_s for s in world.spans) == 1000.0, "no span over the time before"
    assert world.rows[0]["fully_async/rollouter/version_time_s"] < 10
    assert 1000.0 < world.rows[0]["training/time_s"] < 1010


def test_policy_and_costs_go_on() -> None:
    saver = MemorySaver()
    config = CONFIGS["dynamic"]
    first = simulate(replace(config, saver=saver), stop_at(3.0))
    state = saver.last
    assert state["policy"]["deactivate_ratio"] != 0.6 and state["switch_costs_s"]

    def check(world: World) -> None:
        world.session.load_state_dict(state)
        assert world.session.policy.state_dict() == first.session.policy.state_dict()
        assert world.session.controller.costs.mean_s() == first.session.controller.costs.mean_s()

    simulate(config, check)


def test_failed_groups_are_not_tried_again_after_a_resume() -> None:
    saver = MemorySaver()
    config = replace(CONFIGS["static"], reward=SimReward(score_fn=fails_for(2)), max_failed_ratio=0.5)
    first = simulate(replace(config, saver=saver), stop_at(2.0))
    second = simulate(config, resume_from(saver.last))
    assert sorted(first.trainer.trained + second.trainer.trained) == [i for i in range(41) if i != 2]
    assert second.rows[-1]["fully_async/count/failed_samples"] == 1


def test_a_run_may_go_on_in_another_mode(caplog: pytest.LogCaptureFixture) -> None:
    """What a policy has learnt in one mode says nothing about another: it starts afresh, and says so."""
    saver = MemorySaver()
    first = simulate(replace(CONFIGS["dynamic"], saver=saver), stop_at(2.0))
    second = simulate(replace(CONFIGS["dynamic"], step_mode=separate_async()), resume_from(saver.last))
    assert "starts afresh" in caplog.text
    assert sorted(first.trainer.trained + second.trainer.trained) == list(range(41))


def separate_async() -> StepMode:
    settings = StepSettings(train_batch_size=8, parameter_sync_step=2, needs_warmup=True)
    switch = HybridRolloutSwitchConfig(enable_switch=True)
    return StepMode(settings, StepSwitchPolicy(switch, 8, 2, standalone_share=0.5))
