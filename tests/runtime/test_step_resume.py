"""Global steps, stopped at any moment, saved and gone on with: every prompt once, ages and warm-up as they were."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from runtime_builders import MemorySaver, resume_from, stop_at
from step_builders import (
    Recorder,
    Rewards,
    assert_conserved,
    loop_of,
    rollouter_of,
    step_world,
)
from step_modes import MODES, NUM_PROMPTS, OPTIONS, both, world_of

from swingshift.core.buffer import StoreRules
from swingshift.core.types import SampleGroup
from swingshift.sim.trainer import TrainerCost
from swingshift.sim.world import World, WorldConfig, simulate


def stopped(mode: str, when: float, **options: Any) -> tuple[World, dict[str, Any]]:
    saver = MemorySaver()
    world = simulate(world_of(mode, saver=saver, **options), stop_at(when))
    assert world.exit_reason == "interrupted"
    return world, saver.last


def known_ids(state: dict[str, Any]) -> list[int]:
    return [g["group_id"] for g in (*state["queued"], *state["pending"])]


# --- every prompt once --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_stopping_at_any_moment_ends_the_run_and_resuming_trains_the_rest(mode: str) -> None:
    whole = simulate(world_of(mode))
    assert_conserved(whole, NUM_PROMPTS)
    steps = 40
    for i in range(steps + 1):
        saver = MemorySaver()
        first = simulate(world_of(mode, saver=saver), stop_at(whole.wall_s * i / steps))
        if first.exit_reason == "finished":
            assert len(first.trainer.trained) == NUM_PROMPTS
            continue
        state = saver.last
        assert state["num_consumed"] == len(first.trainer.trained)
        assert state["version"] == first.session.controller.version == len(first.rows)
        known = known_ids(state)
        assert sorted([*first.trainer.trained, *known]) == list(range(state["next_group_id"])), (
            "nothing lost, or twice"
        )
        second = simulate(world_of(mode), resume_from(state))
        assert second.exit_reason == "finished"
        assert sorted(first.trainer.trained + second.trainer.trained) == list(range(NUM_PROMPTS)), f"stopped at {i}"
        if second.rows:
            assert second.rows[0]["training/global_step"] == state["version"] + 1
            assert second.rows[-1]["fully_async/count/total_consumed_samples"] == NUM_PROMPTS
            assert second.rows[-1]["fully_async/count/total_generated_samples"] == NUM_PROMPTS


@pytest.mark.parametrize("when", [0.5, 1.3, 2.0, 2.9])
@pytest.mark.parametrize("mode", ["switching", "off"])
def test_what_was_pending_is_asked_once_and_what_was_finished_comes_back_as_it_was(mode: str, when: float) -> None:
    # A slow trainer, so that finished groups wait.
    options = {"trainer_cost": TrainerCost(per_group_s=0.3), "warmup": 2}
    first, state = stopped(mode, when, **options)
    queued = {g["group_id"]: g for g in state["queued"]}
    asked: Counter[str] = Counter()
    trained: dict[int, SampleGroup] = {}

    def watch(world: World) -> None:
        generate, train = world.session.client.generate, world.trainer.train

        async def noted(request_id: str, *args: Any, **kwargs: Any) -> Any:
            asked[request_id] += 1
            return await generate(request_id, *args, **kwargs)

        async def seen(groups: list[SampleGroup], version: int) -> Any:
            trained.update({g.group_id: g for g in groups})
            return await train(groups, version)

        world.session.client.generate = noted  # type: ignore[method-assign]
        world.trainer.train = seen  # type: ignore[method-assign,assignment]

    simulate(world_of(mode, **options), both(resume_from(state), watch))
    assert set(asked.values()) == {1}
    assert set(asked) == {str(i) for i in range(NUM_PROMPTS)} - {str(i) for i in [*queued, *first.trainer.trained]}
    assert queued or when < 1
    for group_id, before in queued.items():
        after = trained[group_id]
        assert [list(s.token_ids) for s in after.samples] == [s["token_ids"] for s in before["samples"]]
        assert [s.reward for s in after.samples] == [s["reward"] for s in before["samples"]]
        assert [[list(span) for span in s.version_spans] for s in after.samples] == [
            s["version_spans"] for s in before["samples"]
        ]


def test_many_short_sessions_make_one_run_that_never_runs_further_ahead() -> None:
    """Each stop falls somewhere into a step. What it leaves counts as warm-up, and no session adds to it."""
    trained: list[int] = []
    clock: list[float] = []
    outstanding: list[int] = []
    state: dict[str, Any] | None = None

    def watch(world: World) -> None:
        submit = rollouter_of(world).submit

        def noted(num_prompts: int, step: int) -> int:
            count = submit(num_prompts, step)
            outstanding.append(len(rollouter_of(world).store))
            return count

        rollouter_of(world).submit = noted  # type: ignore[method-assign]

    for _ in range(60):
        saver = MemorySaver()
        scripts = [stop_at(1.3), watch, *([resume_from(state)] if state is not None else [])]
        world = simulate(world_of("switching", saver=saver, num_prompts=100, k=4), both(*scripts))
        trained += world.trainer.trained
        clock += [row["training/time_s"] for row in world.rows]
        state = saver.last
        if world.exit_reason == "finished":
            break
    assert sorted(trained) == list(range(100)) and len(clock) > 8
    assert clock == sorted(clock), "one clock over all sessions"
    assert max(outstanding) == 32, "the warm-up and the step's own"


def test_every_state_that_is_saved_survives_json_and_holds_everything() -> None:
    saver = MemorySaver()
    simulate(world_of("switching", saver=saver, save_freq=1), stop_at(3.0))
    assert len(saver.states) >= 3
    for step, text in saver.states:
        state = json.loads(text)
        assert state["version"] == step

        def load(world: World, state: dict[str, Any] = state) -> None:
            world.session.load_state_dict(state)
            again = json.loads(json.dumps(world.session.state_dict()))
            assert again | {"time_s": 0} == state | {"time_s": 0}

        resumed = simulate(world_of("switching"), load)
        assert len(set(resumed.trainer.trained)) == NUM_PROMPTS - state["num_consumed"]


# --- ages ---------------------------------------------------------------------------------------------------


def test_groups_keep_the_step_they_were_first_submitted_at() -> None:
    first, state = stopped("two batches ahead", 2.4)
    store = rollouter_of(first).store
    expected = {group_id: store.first_step(group_id) for group_id in known_ids(state)}
    assert len(set(expected.values())) >= 2
    found: dict[int, int] = {}

    def look(world: World) -> None:
        world.session.load_state_dict(state)
        found.update({i: rollouter_of(world).store.first_step(i) for i in expected})

    simulate(world_of("two batches ahead"), look)
    assert found == expected


def test_ages_count_over_a_resume() -> None:
    """Three batches ahead, two steps allowed: what was old already is evicted, in both sessions as in one."""
    rules = {"rules": StoreRules(2), "warmup": 3, "num_prompts": 80}
    whole = simulate(world_of("switching", **rules))
    assert whole.session.rollouter.ledger.num_evicted > 0
    first, state = stopped("switching", 1.5, **rules)
    ages: list[int] = []

    def watch(world: World) -> None:
        train = world.trainer.train

        async def noted(groups: list[SampleGroup], version: int) -> Any:
            ages.extend(version + 1 - g.submit_version for g in groups)
            return await train(groups, version)

        world.trainer.train = noted  # type: ignore[method-assign,assignment]

    second = simulate(world_of("switching", **rules), both(resume_from(state), watch))
    assert max(ages) <= 2
    ledger = second.session.rollouter.ledger
    assert ledger.num_evicted > state["num_evicted"]
    assert ledger.num_consumed + ledger.num_evicted == 80
    assert len({*first.trainer.trained, *second.trainer.trained}) == ledger.num_consumed


def test_useless_groups_that_were_not_evicted_yet_are_evicted_after_the_resume_and_failed_ones_not_tried_again() -> (
    None
):
    options = {
        "rules": StoreRules(filter_metric="reward"),
        "reward": Rewards(useless=lambda i: i % 5 == 3, failing=lambda i: i % 11 == 7),
        "max_failed_ratio": 1.0,
        "trainer_cost": TrainerCost(per_group_s=0.4),
    }
    first, state = stopped("off", 3.0, **options)
    waiting = [g["group_id"] for g in state["queued"] if g["group_id"] % 5 == 3]
    assert waiting and state["num_failed"] > 0
    second = simulate(world_of("off", **options), resume_from(state))
    trained = sorted(first.trainer.trained + second.trainer.trained)
    assert trained == [i for i in range(NUM_PROMPTS) if i % 5 != 3 and i % 11 != 7]
    ledger = second.session.rollouter.ledger
    assert (ledger.num_evicted, ledger.num_failed) == (sum(i % 5 == 3 and i % 11 != 7 for i in range(41)), 4)
    assert second.rows[-1]["fully_async/count/dropped_samples"] <= ledger.num_evicted


# --- warm-up and policy -------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [1, 2])
def test_the_warm_up_is_not_repeated(warmup: int) -> None:
    """Saved after a whole step: as much is in flight as the warm-up brought."""
    saver = MemorySaver()
    config = step_world(**OPTIONS | {"warmup": warmup, "num_prompts": 80, "saver": saver, "save_freq": 1})
    simulate(config)
    state = json.loads(saver.states[1][1])
    assert len(known_ids(state)) == 8 * warmup
    recorder = Recorder()
    config = step_world(**OPTIONS | {"warmup": warmup, "num_prompts": 80})
    world = simulate(config, both(resume_from(state), recorder))
    assert recorder.calls[: recorder.calls.index("on_step_begin")] == [
        "on_init_end",
        "sync_weights",
        "activate",
        "on_train_begin",
    ]
    assert rollouter_of(world).ledger.num_consumed == 80


def test_what_the_warm_up_lacks_is_made_up_for() -> None:
    """Of what was in flight three groups have failed since."""
    saver = MemorySaver()
    simulate(world_of("switching", saver=saver, save_freq=1))
    state = json.loads(saver.states[0][1])
    assert len(known_ids(state)) == 8
    taken = min(len(state["pending"]), 3)
    del state["pending"][:taken]
    state["num_failed"] += taken
    submitted: list[int] = []

    def watch(world: World) -> None:
        submit = rollouter_of(world).submit

        def noted(num_prompts: int, step: int) -> int:
            submitted.append(num_prompts)
            return submit(num_prompts, step)

        rollouter_of(world).submit = noted  # type: ignore[method-assign]

    simulate(world_of("switching"), both(resume_from(state), watch))
    assert taken > 0 and submitted[:2] == [taken, 8]


def test_no_warm_up_goes_on_with_what_was_in_flight() -> None:
    saver = MemorySaver()
    simulate(world_of("off", saver=saver, save_freq=1))
    state = json.loads(saver.states[1][1])
    outstanding: list[int] = []

    def watch(world: World) -> None:
        begin = loop_of(world).on_step_begin

        async def noted(step: int) -> None:
            outstanding.append(rollouter_of(world).num_outstanding)
            await begin(step)

        loop_of(world).on_step_begin = noted  # type: ignore[method-assign]

    world = simulate(world_of("off", warmup=0), both(resume_from(state), watch))
    assert outstanding == [8, 8, 8, 1], "it stays ahead, until the data end"
    assert rollouter_of(world).ledger.num_consumed == NUM_PROMPTS


def test_policy_and_costs_go_on() -> None:
    first, state = stopped("switching", 3.0)
    assert state["policy"]["to_rollout_s"] and state["switch_costs_s"]

    def check(world: World) -> None:
        world.session.load_state_dict(state)
        assert world.session.policy.state_dict() == first.session.policy.state_dict()
        assert world.session.controller.costs.mean_s() == first.session.controller.costs.mean_s()

    simulate(world_of("switching"), check)


@pytest.mark.parametrize("before", ["fully_async", *MODES])
def test_a_run_may_go_on_in_another_mode(before: str) -> None:
    saver = MemorySaver()
    config = WorldConfig(**OPTIONS, saver=saver) if before == "fully_async" else world_of(before, saver=saver)
    first = simulate(config, stop_at(2.0))
    for after in ("switching", "sync", "wait"):
        second = simulate(world_of(after), resume_from(saver.last))
        assert second.rows
        assert sorted(first.trainer.trained + second.trainer.trained) == list(range(NUM_PROMPTS))
