"""The bound against brute force, and against runs: none may beat it."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swingshift.errors import DataError
from swingshift.sim.bound import Split, Work, binding_term, efficiency, lending_bound_s, static_bound_s
from swingshift.sim.compare import compare, parse_item
from swingshift.sim.planner import plan
from swingshift.sim.presets import load_scenario
from swingshift.sim.run import run_scenario
from swingshift.sim.work import ConsumedTokens, count_tokens, work_of
from swingshift.sim.workload import SimReward, lognormal_lengths
from swingshift.sim.world import WorldConfig, simulate


def shortest_schedule(work: Work, split: Split, longest: int) -> int:
    """Try every assignment of whole seconds of the hybrid devices: all train, or all generate."""
    for seconds in range(longest + 1):
        for training in itertools.product((False, True), repeat=seconds):
            trained = split.num_hybrid * sum(training)
            lent = split.hybrid_speed * split.num_hybrid * (seconds - sum(training))
            if trained >= work.train_s and lent + split.num_standalone * seconds >= work.rollout_s:
                return seconds
    raise AssertionError("no schedule is so short")


@settings(max_examples=60, deadline=None)
@given(
    a=st.integers(1, 3),
    b=st.integers(0, 3),
    train=st.integers(0, 8),
    rollout=st.integers(0, 8),
    eta=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_no_schedule_of_whole_seconds_beats_the_bound(a: int, b: int, train: int, rollout: int, eta: float):
    work, split = Work(float(train), float(rollout)), Split(a, b, eta)
    best = shortest_schedule(work, split, 24)
    bound = lending_bound_s(work, split)
    assert bound <= best + 1e-9
    # Rounding up training to whole seconds, and then the rest, costs less than two of them and what they lend.
    assert best <= bound + 2 + (eta * a) / (eta * a + b)
    assert bound <= static_bound_s(work, split) + 1e-9 or eta < 1.0


def test_whole_cases_are_exact():
    assert lending_bound_s(Work(6, 6), Split(2, 2)) == shortest_schedule(Work(6, 6), Split(2, 2), 10) == 3
    assert lending_bound_s(Work(2, 10), Split(2, 1)) == shortest_schedule(Work(2, 10), Split(2, 1), 10) == 4
    assert lending_bound_s(Work(8, 1), Split(2, 1)) == shortest_schedule(Work(8, 1), Split(2, 1), 10) == 4


def test_terms():
    assert static_bound_s(Work(6, 6), Split(2, 0)) == math.inf
    assert static_bound_s(Work(6, 12), Split(2, 2)) == 6
    assert binding_term(Work(8, 1), Split(2, 1)) == "training"
    assert binding_term(Work(2, 10), Split(2, 1)) == "all devices"
    assert efficiency(Work(6, 6), Split(2, 2), 6.0) == 0.5


TINY = ["workload.num_cycles=2", "async_training.ppo_mini_batch_size=4", "generation.n=2"]


@settings(max_examples=25, deadline=None)
@given(
    trainer=st.integers(1, 4),
    rollout=st.integers(0, 4),
    policy=st.sampled_from(["default", "fixed_ratio", "static_fully_async"]),
    staleness=st.sampled_from([0.0, 0.3, 1.5]),
    median=st.sampled_from([1, 40, 2000]),
    slots=st.sampled_from([1, 4, 64]),
    lending=st.booleans(),
    kv_tokens=st.sampled_from([8448, 20000, 10**7]),
    seed=st.integers(0, 3),
)
def test_no_run_beats_the_bound(trainer, rollout, policy, staleness, median, slots, lending, kv_tokens, seed):
    lending = lending or rollout == 0
    scenario = load_scenario(
        "rollout-bound-8",
        [
            *TINY,
            f"cluster.trainer_devices={trainer}",
            f"cluster.rollout_devices={rollout}",
            f"async_training.dynamic_schedule_policy={policy}",
            f"async_training.staleness_threshold={staleness}",
            f"async_training.use_dynamic_resource_scheduling={str(lending).lower()}",
            f"workload.lengths.median={median}",
            f"generation.max_num_seqs={slots}",
            f"cost.kv_capacity_tokens={kv_tokens}",
            f"workload.seed={seed}",
        ],
    )
    summary = run_scenario(scenario)
    assert 0.0 < summary["efficiency"] <= 1.0
    if not lending:
        assert summary["wall_s"] >= summary["static_bound_s"] >= summary["bound_s"] * (1 - 1e-12)
    assert summary["num_tokens"] == count_tokens(scenario).response


STEPS = [*TINY, "async_training.partial_rollout=false", "workload.num_cycles=4", "generation.max_num_seqs=4"]


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(["separate_async", "colocate_async", "sync"]),
    trainer=st.integers(1, 4),
    rollout=st.integers(1, 3),
    lending=st.booleans(),
    oldest=st.sampled_from([1, 2, 8]),
    warmup=st.integers(1, 3),
    speed=st.sampled_from([0.1, 1.0, 10.0]),
    eta=st.sampled_from([0.3, 1.0, 2.0]),
    turns=st.sampled_from([1, 3]),
    kind=st.sampled_from(["constant", "heavy_tailed"]),
    seed=st.integers(0, 3),
)
def test_no_run_in_steps_beats_the_bound(
    mode, trainer, rollout, lending, oldest, warmup, speed, eta, turns, kind, seed
):
    """Groups that are evicted were never trained on: no schedule has to do that work."""
    summary = run_scenario(
        load_scenario(
            "train-bound-8",
            [
                *STEPS,
                f"v1.trainer_mode={mode}",
                f"v1.num_warmup_batches={0 if mode == 'sync' else warmup}",
                f"v1.replay_buffer.max_off_policy_threshold={oldest}",
                f"v1.separate_async.hybrid_rollout.enable_switch={str(lending).lower()}",
                f"cluster.trainer_devices={trainer}",
                f"cluster.rollout_devices={rollout if mode == 'separate_async' else 0}",
                f"efficiency.train_speed={speed}",
                f"efficiency.hybrid_speed={eta}",
                f"workload.num_turns={turns}",
                f"workload.lengths.kind={kind}",
                f"workload.seed={seed}",
            ],
        )
    )
    assert 0.0 < summary["efficiency"] <= 1.0
    if mode == "separate_async" and not lending:
        assert summary["wall_s"] >= summary["static_bound_s"]


def test_the_bound_counts_what_was_trained_on():
    evicting = [
        "v1.trainer_mode=separate_async",
        "v1.replay_buffer.max_off_policy_threshold=1",
        "v1.num_warmup_batches=2",
        "workload.num_cycles=10",
        "generation.n=2",
    ]
    summary = run_scenario(load_scenario("train-bound-8", evicting))
    assert summary["num_dropped_groups"] > summary["num_consumed_groups"] > 0
    assert 0.0 < summary["efficiency"] <= 1.0


def fails_every_fifth(group_id: int) -> float:
    if group_id % 5 == 0:
        raise DataError(f"group {group_id} cannot be scored")
    return 1.0


def test_failed_groups_are_no_work_that_had_to_be_done():
    lengths = lognormal_lengths(50, 0.7, 100)
    config = WorldConfig(
        num_prompts=40,
        prompt_length=7,
        lengths=lengths,
        reward=SimReward(0.0, fails_every_fifth),
        max_failed_ratio=0.9,
    )
    world, consumed = simulate(config), ConsumedTokens()
    for row in world.rows:
        consumed.add(row)
    each = [lengths(str(group_id), index) for group_id in world.trainer.trained for index in range(2)]
    found = consumed.counts(7)
    assert (found.groups, found.responses, found.prompt) == (32, 64, 32 * 7)
    assert found.response == sum(each)
    assert found.cached == pytest.approx(sum(length * (7 + length / 2) for length in each))


@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_the_speed_of_lent_devices_counts_in_plans_and_comparisons(eta):
    tiny = ["workload.num_cycles=2", "async_training.ppo_mini_batch_size=4", "generation.n=2"]
    usual = load_scenario("rollout-bound-8", tiny)
    other = load_scenario("rollout-bound-8", [*tiny, f"efficiency.hybrid_speed={eta}"])
    before, after = (plan(s, 4, num_seeds=1, num_cycles=2, num_processes=1) for s in (usual, other))
    for candidate in after.simulated:
        assert min(candidate.wall_s) >= candidate.bound_s
        split = Split(candidate.trainer_devices, candidate.rollout_devices, eta)
        bound = lending_bound_s if candidate.lending else static_bound_s
        assert candidate.bound_s == pytest.approx(bound(work_of(usual, lending=candidate.lending), split), rel=0.2)
    assert before.static.wall_s == after.static.wall_s, "nothing is lent"
    assert (after.lending.median_s > before.lending.median_s) == (eta < 1.0)
    summary = run_scenario(other)
    assert summary["split"]["hybrid_speed"] == eta
    assert summary["bound_s"] == lending_bound_s(work_of(other), Split(6, 2, eta))
    [row] = compare([parse_item("rollout-bound-8", [*tiny, f"efficiency.hybrid_speed={eta}"])], 1, 1)
    assert row["efficiency"].median == summary["efficiency"] <= 1.0


def test_work_of_constant_lengths_in_closed_form():
    scenario = load_scenario(
        "rollout-bound-8",
        [
            "workload.lengths.kind=constant",
            "workload.lengths.median=100",
            "workload.num_groups=10",
            "generation.n=4",
            "generation.prompt_length=50",
            "generation.max_num_seqs=20",
            "cost.step_base_s=0.2",
            "cost.step_per_sequence_s=0.01",
            "cost.step_per_kv_token_s=0.001",
            "cost.prefill_per_token_s=0.002",
            "cost.train_token_device_s=0.03",
        ],
    )
    work = work_of(scenario)
    tokens, cached = 10 * 4 * 100, 10 * 4 * (50 * 100 + 100 * 100 / 2)
    assert work.rollout_s == pytest.approx(tokens / 20 * 0.2 + tokens * 0.01 + cached * 0.001 + 10 * 50 * 0.002)
    assert work.train_s == pytest.approx((tokens + 40 * 50) * 0.03)


def test_a_train_bound_run_without_variance_reaches_the_bound():
    scenario = load_scenario(
        "train-bound-8",
        [
            "workload.lengths.kind=constant",
            "workload.lengths.median=50",
            "async_training.use_dynamic_resource_scheduling=false",
            "efficiency.train_speed=0.01",
        ],
    )
    summary = run_scenario(scenario)
    assert summary["bound_by"] == "training"
    assert summary["efficiency"] > 0.98
