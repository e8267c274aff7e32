"""Training in global steps: what a configuration may say, each refusal and warning with key, value and remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from swingshift.cli import main
from swingshift.config.checks import check_config
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.config.plan import budget_numbers, count_cycles, expected_groups, make_plan, plan_rows
from swingshift.config.schema import SwingshiftConfig
from swingshift.errors import ConfigError

MODE = "trainer.v1.trainer_mode"
SWITCH = "trainer.v1.separate_async.hybrid_rollout"
BUFFER = "trainer.v1.replay_buffer"
DISAGGREGATION = "actor_rollout_ref.rollout.disaggregation.enable=true"
LENDING = "async_training.use_dynamic_resource_scheduling"
UNREAD = "data.train_files=x.jsonl"
# A mini-batch of 8 groups, 4 of them a step; one trainer and one rollout device.
SEPARATE = [f"{MODE}=separate_async", f"{LENDING}=false"]
COLOCATED = [f"{MODE}=colocate_async", f"{LENDING}=false", "rollout.nnodes=0"]
SYNC = [f"{MODE}=sync", f"{LENDING}=false", "rollout.nnodes=0"]


def demo(*overrides: str) -> SwingshiftConfig:
    return load_config([DEFAULT_FILE], overrides)


# --- what is allowed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [
        SEPARATE,
        [*SEPARATE, f"{SWITCH}.enable_switch=true"],
        [*SEPARATE, "data.train_batch_size=32"],
        [*SEPARATE, "trainer.v1.parameter_sync_step=2", "data.train_batch_size=16"],
        [*SEPARATE, "trainer.v1.num_warmup_batches=3", "trainer.total_training_steps=7"],
        [*SEPARATE, "trainer.v1.num_warmup_batches=0", "trainer.resume_mode=auto"],
        [*SEPARATE, "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=response_length"],
        [*SEPARATE, f"{BUFFER}.max_off_policy_threshold=null"],
        [*SEPARATE, f"{BUFFER}.max_off_policy_strategy=wait", f"{BUFFER}.path=my_buffers.mine:Buffer"],
        COLOCATED,
        SYNC,
    ],
    ids=" ".join,
)
def test_what_works_passes_without_a_warning(overrides: list[str]) -> None:
    assert check_config(demo(*overrides)) == []


def test_the_modes() -> None:
    def of(*overrides: str) -> tuple[bool, int, int]:
        config = demo(*overrides)
        return (config.lends, config.trainer.v1.warmup_batches, config.train_batch_size)

    assert of(*SEPARATE) == (False, 1, 32)
    assert of(*SEPARATE, f"{SWITCH}.enable_switch=true", "trainer.v1.num_warmup_batches=2") == (True, 2, 32)
    assert of(*COLOCATED, "trainer.v1.parameter_sync_step=1") == (True, 1, 8)
    assert of(*SYNC) == (True, 0, 32)
    assert not demo().trainer.v1.in_steps


def test_the_plan_speaks_of_steps() -> None:
    config = demo(*SEPARATE, f"{SWITCH}.enable_switch=true", "trainer.v1.num_warmup_batches=2")
    numbers = budget_numbers(config)
    assert (numbers.required_samples, numbers.step_required_samples, numbers.max_required_samples) == (8, 32, 96)
    plan = make_plan(config, "cpu")
    assert (plan.mode, plan.policy, plan.in_steps, plan.wait_threshold) == ("separate_async", "step_switch", True, 16)
    rows = {name: value for name, value, _ in plan_rows(plan)}
    assert (rows["mini-batch"], rows["train_batch_size"], rows["warm-up"]) == ("8", "32", "64")
    turns = make_plan(demo(*SYNC), "cpu")
    assert (turns.mode, turns.policy, turns.wait_threshold) == ("sync", "every_step", 32)
    assert make_plan(demo(*SEPARATE), "cpu").policy is None


@pytest.mark.parametrize(
    ("overrides", "num_prompts", "num_cycles", "num_groups"),
    [
        ([*SEPARATE, "trainer.total_training_steps=7"], None, 7, 224),
        ([*SEPARATE, "trainer.total_training_steps=500"], None, 120, 3840),
        ([*SEPARATE, "trainer.total_training_steps=7"], 40, 2, 40),
        ([*SEPARATE, "trainer.total_training_steps=7", "rollout.total_rollout_steps=65"], None, 3, 65),
        ([*SYNC, "trainer.total_training_steps=7", "rollout.total_rollout_steps=null", UNREAD], None, 7, 224),
        ([*SYNC, "rollout.total_rollout_steps=null", UNREAD], None, None, None),
        ([], None, 120, 3840),
        ([], 33, 2, 33),
    ],
    ids=str,
)
def test_the_plan_the_progress_bar_and_the_profiler_know_when_it_ends(
    overrides: list[str], num_prompts: int | None, num_cycles: int | None, num_groups: int | None
) -> None:
    config = demo(*overrides)
    assert count_cycles(config, num_prompts) == num_cycles
    assert expected_groups(config, num_prompts) == num_groups
    if num_prompts is None:
        rows = {name: value for name, value, _ in plan_rows(make_plan(config, "cpu"))}
        shown = rows["global steps" if config.trainer.v1.in_steps else "sync cycles"]
        assert shown == ("known when the data are read" if num_cycles is None else str(num_cycles))
        late = demo(*overrides, "global_profiler.tool=torch", "global_profiler.steps=[1,10000]")
        warned = [line for line in check_config(late) if line.startswith("global_profiler.steps")]
        assert len(warned) == (num_cycles is not None) and all(f"after {num_cycles} steps" in line for line in warned)


# --- refusals -----------------------------------------------------------------------------------------------

REFUSED = [
    (
        [*SEPARATE, "data.train_batch_size=30"],
        "data.train_batch_size=30",
        r"must be trainer\.v1\.parameter_sync_step=4 × actor_rollout_ref\.actor\.ppo_mini_batch_size=8 = 32",
    ),
    (
        [*SYNC, "data.train_batch_size=64", "trainer.v1.parameter_sync_step=2"],
        "data.train_batch_size=64",
        "= 16; leave it out, or change one of them",
    ),
    (
        [*SEPARATE, "rollout.nnodes=0"],
        "rollout.nnodes=0",
        "separate_async needs a standalone rollout pool; give at least 1, or use trainer_mode=colocate_async",
    ),
    (
        [*SEPARATE, "trainer.v1.num_warmup_batches=0"],
        "trainer.v1.num_warmup_batches=0",
        r"give at least 1, or use trainer\.v1\.trainer_mode=sync",
    ),
    (
        [f"{MODE}=colocate_async", f"{LENDING}=false"],
        "rollout.nnodes=1",
        "colocate_async generates on the trainer's devices alone; set 0, or use trainer_mode=separate_async",
    ),
    ([f"{MODE}=sync", f"{LENDING}=false", "rollout.nnodes=2"], "rollout.nnodes=2", "set 0, or use"),
    # prefill/decode disaggregation
    (
        [*SEPARATE, f"{SWITCH}.enable_switch=true", DISAGGREGATION],
        DISAGGREGATION,
        r"cannot be combined with trainer\.v1\.separate_async\.hybrid_rollout\.enable_switch=true, .*"
        r"no engine can do it, so set it to false",
    ),
    (
        [DISAGGREGATION],
        DISAGGREGATION,
        r"cannot be combined with async_training\.use_dynamic_resource_scheduling=true, .*no engine can do it, "
        r"so set it to false",
    ),
    (
        [*COLOCATED, DISAGGREGATION],
        DISAGGREGATION,
        r"cannot be combined with trainer\.v1\.trainer_mode=colocate_async, .*so set it to false",
    ),
    ([*SYNC, DISAGGREGATION], DISAGGREGATION, r"cannot be combined with trainer\.v1\.trainer_mode=sync, "),
    ([*SEPARATE, DISAGGREGATION], DISAGGREGATION, r"no engine can do it: .*name=torch .* in one; set it to false"),
    ([f"{LENDING}=false", DISAGGREGATION], DISAGGREGATION, "no engine can do it: .* in one; set it to false"),
    # keys of the other mode
    (
        ["data.train_batch_size=32"],
        "data.train_batch_size=32",
        r"only training in global steps has it; set trainer\.v1\.",
    ),
    (
        ["trainer.total_training_steps=9"],
        "trainer.total_training_steps=9",
        r"only training in global steps has it; use rollout\.total_rollout_steps, or set",
    ),
    (
        ["algorithm.filter_groups.enable=true"],
        "algorithm.filter_groups.enable=true",
        "only the replay buffer .* filters",
    ),
    (
        [f"{BUFFER}.path=nomod:Cls"],
        f"{BUFFER}.path=nomod:Cls",
        r"only training in global steps has a replay buffer; set trainer\.v1\.",
    ),
    (
        [f"{SWITCH}.enable_switch=true"],
        f"{SWITCH}.enable_switch=true",
        r"in fully-asynchronous mode async_training\.use_dynamic_resource_scheduling lends; set",
    ),
]


@pytest.mark.parametrize(("overrides", "setting", "remedy"), REFUSED, ids=[" ".join(r[0]) for r in REFUSED])
def test_what_cannot_work_is_refused(overrides: list[str], setting: str, remedy: str) -> None:
    config = demo(*overrides)
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    [line] = str(caught.value).splitlines()
    assert line.startswith(f"{setting}: ") and re.search(remedy, line), line


def test_all_of_them_at_once() -> None:
    config = demo(*SEPARATE, "rollout.nnodes=0", "data.train_batch_size=9", "trainer.v1.num_warmup_batches=0")
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == [
        "data.train_batch_size",
        "rollout.nnodes",
        "trainer.v1.num_warmup_batches",
    ]


BAD_VALUES = [
    (f"{MODE}=seperate_async", f"{MODE}='seperate_async'", "did you mean separate_async?"),
    ("trainer.v1.parameter_sync_step=0", "trainer.v1.parameter_sync_step=0", "above 0"),
    ("trainer.v1.num_warmup_batches=-1", "trainer.v1.num_warmup_batches=-1", "at least 0"),
    (f"{SWITCH}.switch_threshold_ratio=0", f"{SWITCH}.switch_threshold_ratio=0", "above 0 and of at most 1"),
    (f"{SWITCH}.switch_threshold_ratio=1.5", f"{SWITCH}.switch_threshold_ratio=1.5", "above 0 and of at most 1"),
    (f"{SWITCH}.switch_threshold_step_up=-0.1", f"{SWITCH}.switch_threshold_step_up=-0.1", "at least 0"),
    (f"{SWITCH}.switch_threshold_step_down=-0.1", f"{SWITCH}.switch_threshold_step_down=-0.1", "at least 0"),
    (f"{SWITCH}.switch_threshold_release_steps=0", f"{SWITCH}.switch_threshold_release_steps=0", "above 0"),
    (f"{SWITCH}.switch_cost_window_size=0", f"{SWITCH}.switch_cost_window_size=0", "above 0"),
    (f"{SWITCH}.per_sample_time_decay=1", f"{SWITCH}.per_sample_time_decay=1", "below 1"),
    (f"{SWITCH}.benefit_margin=-1", f"{SWITCH}.benefit_margin=-1", "at least 0"),
    (f"{BUFFER}.max_off_policy_threshold=0", f"{BUFFER}.max_off_policy_threshold=0", "above 0"),
    (f"{BUFFER}.max_off_policy_strategy=dorp", f"{BUFFER}.max_off_policy_strategy='dorp'", "did you mean drop?"),
    (f"{BUFFER}.path=my_buffer", f"{BUFFER}.path='my_buffer'", "does not name a class; write module:Class"),
    (f"{BUFFER}.path=my:buffer:Mine", f"{BUFFER}.path='my:buffer:Mine'", "write module:Class"),
    (f"{BUFFER}.path=my.1:Mine", f"{BUFFER}.path='my.1:Mine'", "write module:Class"),
    ("algorithm.filter_groups.metric=acc", "algorithm.filter_groups.metric='acc'", "reward"),
    ("algorithm.filter_groups.max_num_gen_batches=0", "algorithm.filter_groups.max_num_gen_batches=0", "above 0"),
    ("trainer.total_training_steps=0", "trainer.total_training_steps=0", "above 0"),
    ("data.train_batch_size=0", "data.train_batch_size=0", "above 0"),
]


@pytest.mark.parametrize(("override", "setting", "remedy"), BAD_VALUES, ids=[bad[0] for bad in BAD_VALUES])
def test_values_out_of_range(override: str, setting: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        demo(*SEPARATE, override)
    [line] = str(caught.value).splitlines()
    assert line.startswith(setting) and remedy in line, line


# --- warnings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "setting", "text"),
    [
        (
            [f"{MODE}=separate_async", f"{LENDING}=true"],
            f"{LENDING}=true",
            r"is ignored in .*=separate_async; .*hybrid_rollout\.enable_switch lends there",
        ),
        (
            [f"{MODE}=sync", f"{LENDING}=true", "rollout.nnodes=0"],
            f"{LENDING}=true",
            "is ignored in .*=sync, where the devices are lent in every step",
        ),
        (
            [*SYNC, "trainer.v1.num_warmup_batches=1"],
            "trainer.v1.num_warmup_batches=1",
            "trains on responses of older weights; 0 keeps it on-policy",
        ),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(overrides: list[str], setting: str, text: str) -> None:
    [warning] = check_config(demo(*overrides))
    assert warning.startswith(f"{setting}: ") and re.search(text, warning) and "\n" not in warning


# --- the command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 2, 3, 6, 9])
def test_the_command_line_says_so_in_one_line_and_writes_nothing(
    number: int, capfd: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides, setting, remedy = REFUSED[number]
    for command in (["train"], ["config", "check"]):
        assert main([*command, *overrides]) == 2
        out, err = capfd.readouterr()
        [line] = err.splitlines()
        assert line.startswith(f"error: {setting}: ") and re.search(remedy, line)
        assert out == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nomod:Cls", "No module named 'nomod'"),
        ("os:getcwd", "has no method get_sampleable_count and no wait_for_sampleable and no sample"),
        ("collections:OrderedDict", "has no method get_sampleable_count"),
        ("collections:NoSuch", "NoSuch"),
    ],
)
@pytest.mark.parametrize("command", ["config check", "train --dry-run", "train", "plan --memory"])
def test_a_replay_buffer_that_cannot_be_used_is_refused_by_every_command(
    command: str, path: str, problem: str, capfd: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), *SEPARATE, f"{BUFFER}.path={path}"]) == 2
    out, err = capfd.readouterr()
    [line] = err.splitlines()
    assert line.startswith(f"error: {BUFFER}.path={path}: ") and problem in line and out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_bad_value_is_one_line_too(capfd: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *SEPARATE, f"{SWITCH}.switch_threshold_ratio=2"]) == 2
    out, err = capfd.readouterr()
    [line] = err.splitlines()
    assert f"{SWITCH}.switch_threshold_ratio=2" in line and out == ""


def test_a_dry_run_shows_the_steps(capfd: Any, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dry-run", *SEPARATE, f"{SWITCH}.enable_switch=true"]) == 0
    out = capfd.readouterr().out
    for part in ("separate_async", "step_switch", "train_batch_size", "warm-up", "global steps"):
        assert part in out
