"""Scenarios: presets, files, overrides, and what is wrong with them."""

from pathlib import Path

import pytest

from swingshift.config.document import to_yaml
from swingshift.config.keys import all_keys
from swingshift.errors import ConfigError
from swingshift.sim.presets import PUBLISHED, load_scenario, preset_names, suite_names
from swingshift.sim.run import run_scenario, with_seed
from swingshift.sim.scenario import Scenario
from swingshift.sim.scenario_costs import replica_cost, trainer_cost
from swingshift.sim.scenario_world import lengths_of, num_groups, to_world

PRESET = "rollout-bound-8"


def test_every_key_says_what_it_is():
    assert [key.path for key in all_keys(Scenario).values() if not key.description] == []


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_whole(name: str):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert scenario.async_training.use_dynamic_resource_scheduling, "a preset is its run with lending"
    to_world(scenario)


def test_published_presets_say_where_they_come_from():
    for name in PUBLISHED:
        scenario = load_scenario(name)
        assert scenario.sources and scenario.assumptions


def test_the_suite_covers_the_ground():
    scenarios = [load_scenario(name) for name in suite_names()]
    sizes = {s.cluster.trainer_devices + s.cluster.rollout_devices for s in scenarios}
    assert len(scenarios) >= 12
    assert min(sizes) == 8 and max(sizes) == 1024
    assert any(s.cluster.rollout_devices == 0 for s in scenarios)
    kinds = {s.workload.lengths.kind for s in scenarios}
    assert {"lognormal", "heavy_tailed", "drifting"} <= kinds
    thresholds = [s.async_training.staleness_threshold for s in scenarios]
    assert min(thresholds) <= 0.1 and max(thresholds) >= 2.0
    switches = [s.cost.offload_s for s in scenarios if s.cost.offload_s is not None]
    assert max(switches) / min(switches) == 30


def test_the_published_configuration_is_the_specifications():
    scenario = load_scenario("qwen3.5-35b-a3b-dapo")
    schedule = scenario.async_training
    assert (scenario.cluster.trainer_devices, scenario.cluster.rollout_devices) == (16, 16)
    assert (schedule.staleness_threshold, schedule.trigger_parameter_sync_step) == (0.5, 4)
    assert (schedule.dynamic_schedule_deactivate_ratio, schedule.ppo_mini_batch_size) == (0.6, 16)
    assert (scenario.generation.n, scenario.device.flops, scenario.device.memory_bytes) == (8, 148e12, 96e9)


def test_files_and_overrides(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(load_scenario(PRESET), defaults=False), encoding="utf-8")
    assert load_scenario(str(file)) == load_scenario(PRESET)
    changed = load_scenario(
        str(file), ["cluster.trainer_devices=4", "async_training.dynamic_schedule_policy=fixed_ratio"]
    )
    assert to_world(changed).num_hybrid == 4
    assert to_world(changed).policy == "fixed_ratio"


def test_groups_may_be_counted_instead_of_cycles():
    assert num_groups(load_scenario(PRESET, ["workload.num_cycles=3"])) == 3 * 16 * 4
    assert num_groups(load_scenario(PRESET, ["workload.num_groups=77"])) == 77


def test_costs_scale_with_devices_and_speeds():
    base = load_scenario(PRESET)
    faster = load_scenario(PRESET, ["efficiency.rollout_speed=2", "efficiency.train_speed=4"])
    assert replica_cost(faster).step_base_s == pytest.approx(replica_cost(base).step_base_s / 2)
    assert replica_cost(faster).prefill_per_token_s == pytest.approx(replica_cost(base).prefill_per_token_s / 2)
    assert trainer_cost(faster).per_token_s == pytest.approx(trainer_cost(base).per_token_s / 4)
    wider = load_scenario(PRESET, ["cluster.trainer_devices=12"])
    assert trainer_cost(wider).per_token_s == pytest.approx(trainer_cost(base).per_token_s / 2)


def test_direct_costs_replace_derived_ones():
    given = load_scenario(PRESET, ["cost.step_base_s=0.5", "cost.train_token_device_s=0.06", "cost.wake_s=0"])
    assert replica_cost(given).step_base_s == 0.5
    assert replica_cost(given).wake_s == 0.0
    assert replica_cost(given).step_per_sequence_s == replica_cost(load_scenario(PRESET)).step_per_sequence_s
    assert trainer_cost(given).per_token_s == pytest.approx(0.01)
    assert trainer_cost(given).old_log_prob_per_token_s == 0.0


REPLICA_TIMES = ("step_base_s", "step_per_sequence_s", "step_per_kv_token_s", "prefill_per_token_s")
TRAINER_TIMES = ("base_s", "per_token_s", "old_log_prob_per_token_s", "ref_per_token_s")
GIVEN = [*(f"cost.{key}=1e-5" for key in REPLICA_TIMES), "cost.train_token_device_s=1e-4"]


@pytest.mark.parametrize("given", [[], GIVEN], ids=["derived", "direct"])
def test_speeds_scale_all_costs_wherever_they_come_from(given: list[str]):
    overrides = [*given, "cost.train_base_s=3", "training.use_kl_loss=true"]
    speeds = ["efficiency.rollout_speed=2", "efficiency.train_speed=4", "efficiency.hybrid_speed=0.5"]
    base, other = load_scenario(PRESET, overrides), load_scenario(PRESET, [*overrides, *speeds])
    for key in REPLICA_TIMES:
        before = getattr(replica_cost(base), key)
        assert before > 0.0 and getattr(replica_cost(other), key) == pytest.approx(before / 2)
        assert getattr(replica_cost(other, hybrid=True), key) == pytest.approx(before), "half of twice as fast"
    for key in TRAINER_TIMES:
        before = getattr(trainer_cost(base), key)
        assert getattr(trainer_cost(other), key) == pytest.approx(before / 4)
    assert trainer_cost(base).base_s == 3.0 and trainer_cost(base).per_token_s > 0.0
    for key in ("sleep_s", "wake_s", "abort_s", "kv_cache_s", "kv_capacity_tokens"):
        assert getattr(replica_cost(base), key) == getattr(replica_cost(other), key)
    for key in ("offload_s", "onload_s", "publish_s", "sync_standalone_s", "sync_hybrid_s"):
        assert getattr(trainer_cost(base), key) == getattr(trainer_cost(other), key)


@pytest.mark.parametrize("given", [[], GIVEN], ids=["derived", "direct"])
def test_the_speeds_of_a_scenario_change_its_run(given: list[str]):
    overrides = [*given, "workload.num_cycles=2", "async_training.ppo_mini_batch_size=4", "generation.n=2"]
    usual = run_scenario(load_scenario(PRESET, overrides))["wall_s"]
    for key in ("rollout_speed", "train_speed", "hybrid_speed"):
        assert run_scenario(load_scenario(PRESET, [*overrides, f"efficiency.{key}=0.25"]))["wall_s"] > usual, key


@pytest.mark.parametrize(
    ("keys", "phases"),
    [
        ((), {"old_log_prob", "update_actor"}),
        (("training.bypass_mode=true",), {"update_actor"}),
        (("training.use_kl_loss=true",), {"old_log_prob", "ref", "update_actor"}),
        (("training.use_kl_loss=true", "cost.train_token_device_s=0.001"), {"update_actor"}),
    ],
)
def test_forward_passes_for_log_probs_are_keys_of_training(keys: tuple[str, ...], phases: set[str]):
    rows: list[dict[str, float]] = []
    scenario = load_scenario(PRESET, [*keys, "workload.num_cycles=1", "generation.n=2"])
    run_scenario(scenario, on_report=lambda report: rows.append(report.row))
    timed = {key for key in ("old_log_prob", "ref", "adv", "update_actor") if rows[0][f"timing_s/{key}"] > 0.0}
    assert timed == phases
    if len(phases) > 1:
        assert rows[0]["timing_s/old_log_prob"] == pytest.approx(rows[0]["timing_s/update_actor"] / 3)


def test_lent_engines_may_have_less_memory():
    scenario = load_scenario("qwen3.5-35b-a3b-dapo")
    lent, standalone = replica_cost(scenario, hybrid=True), replica_cost(scenario)
    assert lent.kv_capacity_tokens < standalone.kv_capacity_tokens


def test_lengths_from_a_file(tmp_path: Path):
    file = tmp_path / "lengths.json"
    file.write_text("[5, 70, 900000]", encoding="utf-8")
    scenario = load_scenario(PRESET, ["workload.lengths.kind=empirical", f"workload.lengths.file={file}"])
    draw = lengths_of(scenario)
    assert {draw(str(i), 0) for i in range(100)} == {5, 70, scenario.generation.response_length}


def test_a_seed_changes_the_draws_and_nothing_else():
    one, other = load_scenario(PRESET), with_seed(load_scenario(PRESET), 1)
    assert [lengths_of(one)("0", i) for i in range(8)] != [lengths_of(other)("0", i) for i in range(8)]
    assert with_seed(other, 0) == one


BAD = [
    (["cluster.trainer_device=3"], "cluster.trainer_device=3", "cluster.trainer_devices?"),
    (["async_training.stalenes_threshold=1"], "async_training.stalenes_threshold", "staleness_threshold?"),
    (["cluster.trainer_devices=2.5"], "cluster.trainer_devices=2.5", "whole number"),
    (["cluster.trainer_devices=5", "cluster.devices_per_replica=2"], "cluster.trainer_devices=5", "multiple"),
    (["generation.response_length=999999"], "cluster.devices_per_replica=1", "generation.response_length"),
    (["cost.kv_capacity_tokens=100"], "cost.kv_capacity_tokens=100", "generation.response_length"),
    (["model.num_params=1e12"], "devices_per_replica=1", "more devices"),
    (["async_training.dynamic_schedule_policy=defalt"], "dynamic_schedule_policy", "'default'"),
    (["async_training.dynamic_schedule_deactivate_ratio=2"], "deactivate_ratio=2", "at most 1"),
    (
        ["cluster.rollout_devices=0", "async_training.use_dynamic_resource_scheduling=false"],
        "cluster.rollout_devices=0",
        "use_dynamic_resource_scheduling=true",
    ),
    (["workload.lengths.kind=lognorml"], "workload.lengths.kind", "did you mean lognormal"),
    (["workload.lengths.kind=empirical"], "lengths.file=null", "name a file"),
    (["cluster.rollout_devices=0", "v1.trainer_mode=separate_async"], "cluster.rollout_devices=0", "colocate_async"),
    (["v1.trainer_mode=sync"], "cluster.rollout_devices=2", "set 0"),
    (["v1.trainer_mode=separate_async", "v1.num_warmup_batches=0"], "v1.num_warmup_batches=0", "at least 1"),
    (["efficiency.train_mfu=1.5"], "efficiency.train_mfu=1.5", "at most 1"),
    (["nonsense"], "nonsense", "="),
]


@pytest.mark.parametrize(("overrides", "key", "remedy"), BAD, ids=[" ".join(case[0]) for case in BAD])
def test_mistakes_are_one_line_each(overrides: list[str], key: str, remedy: str):
    with pytest.raises(ConfigError) as caught:
        load_scenario(PRESET, overrides)
    text = str(caught.value)
    assert key in text and remedy in text
    assert len(text.splitlines()) == 1


def test_all_mistakes_at_once():
    with pytest.raises(ConfigError) as caught:
        load_scenario(PRESET, ["cluster.x=1", "workload.y=2"])
    assert len(str(caught.value).splitlines()) == 2


def test_unknown_presets_name_the_nearest(tmp_path: Path):
    with pytest.raises(ConfigError, match="did you mean rollout-bound-8"):
        load_scenario("rollout-bound8")
    with pytest.raises(ConfigError, match="no such file"):
        load_scenario(str(tmp_path / "none.yaml"))
