"""Checks across sections and against the data; the plan."""

import re
from pathlib import Path

import pytest

from swingshift.config.checks import check_against_data, check_config
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.config.plan import budget_numbers, expected_groups, make_plan, plan_rows
from swingshift.errors import ConfigError, DataError

CONFIGS = Path(__file__).parents[2] / "configs"
OPTIM = "actor_rollout_ref.actor.optim"
CORRECTION = "algorithm.rollout_correction"
LENDING = "async_training.use_dynamic_resource_scheduling"


def demo(*overrides):
    return load_config([DEFAULT_FILE], overrides)


@pytest.mark.parametrize("layer", [None, "demo_static.yaml", "demo_colocated.yaml"])
def test_the_demos_and_the_defaults_pass_without_a_warning(layer):
    files = [CONFIGS / "demo.yaml", *([CONFIGS / layer] if layer else [])]
    assert check_config(load_config(files, [])) == []
    assert check_config(load_config([], [])) == []


def test_all_contradictions_are_listed_sorted():
    config = demo("trainer.test_freq=1", "rollout.nnodes=0", f"{LENDING}=false", "trainer.resume_mode=resume_path")
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == [
        "rollout.nnodes",
        "trainer.resume_from_path",
        "trainer.test_freq",
    ]


@pytest.mark.parametrize(
    ("overrides", "needle"),
    [
        (["actor_rollout_ref.rollout.top_p=0.9"], "truncated distribution"),
        (["actor_rollout_ref.rollout.top_k=5"], "top_k=5"),
        (["actor_rollout_ref.rollout.val_kwargs.n=4"], "val_kwargs.n=4"),
        (["trainer.resume_from_path=x"], "trainer.resume_from_path=x"),
        (["data.val_files=[x.jsonl]"], "data.val_files"),
        (["reward.name=exact_match", "reward.path=r.py:f"], "reward.name"),
        ([f"{LENDING}=false", "async_training.dynamic_schedule_policy=fixed_ratio"], "is ignored"),
        (["async_training.concurrent_samples_per_replica=48"], "lending adds nothing"),
        ([f"{CORRECTION}.rollout_is_threshold=5"], "threshold=5.0: is ignored unless .*bypass_mode=false"),
        (
            [
                f"{CORRECTION}.{setting}"
                for setting in ("bypass_mode=false", "rollout_is=null", "rollout_is_threshold=null")
            ],
            "threshold=null: is ignored unless .*rollout_is=token",
        ),
        (
            ["rollout.total_rollout_steps=24", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"],
            "less than one sync cycle",
        ),
        ([f"{OPTIM}.lr_warmup_steps=481"], "480 optimizer steps"),
    ],
)
def test_warnings(overrides, needle):
    [warning] = check_config(demo(*overrides))
    assert re.search(needle, warning) and "\n" not in warning


def test_the_published_keys_of_decoupled_ppo():
    correction = demo(f"{CORRECTION}.bypass_mode=false", f"{CORRECTION}.rollout_is_threshold=5.0")
    assert check_config(correction) == []
    assert correction.algorithm.rollout_correction.rollout_is == "token"
    with pytest.raises(ConfigError, match=r"rollout_is_threshold=0.5: is out of range; give a number of at least 1"):
        demo(f"{CORRECTION}.rollout_is_threshold=0.5")
    with pytest.raises(ConfigError, match=r"rollout_is='sequence': is not a choice; give token or null"):
        demo(f"{CORRECTION}.rollout_is=sequence")


def test_policies_of_other_packages_are_found_and_checked(tmp_path, monkeypatch):
    (tmp_path / "night_shift.py").write_text(
        "from swingshift.schedule import FixedRatioDynamicSchedulePolicy\n"
        "class Night(FixedRatioDynamicSchedulePolicy):\n"
        "    def __init__(self, deactivate_ratio=0.5, only_hybrid=False, hour=0):\n"
        "        super().__init__(deactivate_ratio, only_hybrid)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "async_training.dynamic_schedule_policy=night_shift:Night"
    kwargs = "async_training.dynamic_schedule_policy_kwargs"
    assert check_config(demo(name, f"{kwargs}.hour=3")) == []
    with pytest.raises(ConfigError, match="minute"):
        check_config(demo(name, f"{kwargs}.minute=3"))


def test_against_the_data():
    config = demo("rollout.total_rollout_steps=null", "async_training.require_batches=4")
    with pytest.raises(DataError, match=r"data\.train_files"):
        check_against_data(config, 0)
    with pytest.raises(ConfigError, match=r"ppo_mini_batch_size=8: is larger than the dataset of 7 prompts"):
        check_against_data(config, 7)
    with pytest.raises(ConfigError, match=r"require_batches=4: .* 32 prompts, but the data hold 8 × 1 epochs"):
        check_against_data(config, 8)
    assert check_against_data(config, 32) == []
    config.trainer.total_epochs = 4
    assert check_against_data(config, 8) == []
    [warning] = check_against_data(demo(), 100)
    assert "the data end after 100 prompts" in warning


def test_budget_numbers_of_the_demo():
    budget = budget_numbers(demo())
    numbers = (
        budget.required_samples,
        budget.step_required_samples,
        budget.max_required_samples,
        budget.buffer_samples,
    )
    assert numbers == (8, 32, 48, 16)


def test_plan_of_the_demo():
    plan = make_plan(demo(), "cpu")
    assert (plan.mode, plan.policy, plan.hybrid.num_replicas, plan.standalone.num_replicas) == (
        "dynamic",
        "default",
        1,
        1,
    )
    assert (plan.max_concurrent_standalone, plan.max_concurrent_all) == (4, 8)
    assert (plan.wait_threshold, plan.wait_threshold_wanted) == (19, 19)
    assert (plan.num_groups, plan.num_collections, plan.num_sync_cycles) == (3840, 480, 120)


def test_plan_of_the_other_modes():
    static = make_plan(demo(f"{LENDING}=false"), "cuda")
    assert (static.mode, static.policy, static.hybrid.num_replicas) == ("static", None, 0)
    colocated = make_plan(demo("rollout.nnodes=0", "trainer.n_gpus_per_node=2"), "cuda")
    assert (colocated.mode, colocated.hybrid.num_replicas, colocated.standalone.num_replicas) == ("colocated", 2, 0)
    assert colocated.max_concurrent_standalone == 0 and colocated.max_concurrent_all == 8


def test_a_wait_threshold_that_the_data_cannot_fill_is_clamped_and_said_so():
    plan = make_plan(demo("rollout.total_rollout_steps=16"), "cpu")
    assert (plan.wait_threshold, plan.wait_threshold_wanted, plan.num_sync_cycles) == (16, 19, 1)
    assert any("16 (clamped from 19)" in value for _, value, _ in plan_rows(plan))


def test_memory_split_falls_back_to_the_hybrid_fraction():
    key = "actor_rollout_ref.rollout"
    plan = make_plan(demo(f"{key}.gpu_memory_utilization=0.45"), "cuda")
    assert (plan.hybrid.memory_fraction, plan.standalone.memory_fraction) == (0.45, 0.45)
    split = demo(f"{key}.gpu_memory_utilization=0.45", f"{key}.standalone_gpu_memory_utilization=0.8")
    rows = dict(row[:2] for row in plan_rows(make_plan(split, "cuda")))
    assert (rows["hybrid fraction"], rows["standalone fraction"]) == ("0.45", "0.80")


def test_how_many_groups_a_run_has():
    none = "rollout.total_rollout_steps=null"
    assert expected_groups(demo()) == 3840
    assert expected_groups(demo(none, "trainer.total_epochs=2")) == 8192
    assert expected_groups(demo(none, "data.train_files=x.jsonl")) is None
    assert expected_groups(demo("data.train_files=x.jsonl")) == 3840
    assert expected_groups(demo(none, "data.train_files=x.jsonl"), num_prompts=10) == 10
    rows = dict(row[:2] for row in plan_rows(make_plan(demo(none, "data.train_files=x.jsonl"), "cpu")))
    assert rows["sync cycles"] == "known when the data are read"
