"""Training in global steps over a replay buffer, from the command line: every mode, resume, refusals."""

import pytest
from test_modes import check_files

pytestmark = pytest.mark.ray

STEPS = ("async_training.use_dynamic_resource_scheduling=false", "trainer.v1.parameter_sync_step=2")
SEPARATE = (*STEPS, "trainer.v1.trainer_mode=separate_async")
SWITCH = "trainer.v1.separate_async.hybrid_rollout.enable_switch=true"


def test_separate_async_lends_between_steps(launch):
    run = launch(*SEPARATE, SWITCH).expect(0)
    check_files(run, groups=16, devices=["standalone-0", "hybrid-0"], lends=True)
    rows = run.metrics()
    assert len(rows) == 4 and run.stderr == "", run.report()
    assert all(row["separate_async/switch/threshold"] >= 2 for row in rows)
    assert rows[-1]["separate_async/decision/should_switch_to_rollout"] == 0
    lends = sum(row["separate_async/decision/should_switch_to_rollout"] for row in rows)
    # The devices begin in rollout; every later round trip was decided at the end of a step.
    assert run.summary["num_activations"] == lends + 1


def test_separate_async_without_switching_replaces_groups_that_teach_nothing(launch):
    run = launch(*SEPARATE, "algorithm.filter_groups.enable=true", "data.size=512").expect(0)
    rows = run.metrics()
    evicted = sum(row["replay_buffer/evicted_filtered"] for row in rows)
    refilled = sum(row["replay_buffer/refilled_samples"] for row in rows)
    consumed = run.summary["num_consumed_groups"]
    # 16 prompts in all: those that replace others leave fewer to train on.
    assert consumed + evicted == 16 and refilled <= evicted and consumed > 0
    assert run.summary["num_dropped_groups"] == evicted
    assert all(row["critic/rewards/max"] > row["critic/rewards/min"] for row in rows)
    assert run.summary["num_activations"] == 0


def test_sync_trains_on_what_the_current_weights_sampled(launch):
    run = launch(*STEPS, "trainer.v1.trainer_mode=sync", "rollout.nnodes=0", "trainer.n_gpus_per_node=2").expect(0)
    check_files(run, groups=16, devices=["hybrid-0", "hybrid-1"], lends=True)
    assert all(row["fully_async/staleness/max"] == 0 for row in run.metrics())


def test_colocate_async_carries_groups_over(launch):
    run = launch(*STEPS, "trainer.v1.trainer_mode=colocate_async", "rollout.nnodes=0").expect(0)
    check_files(run, groups=16, devices=["hybrid-0"], lends=True)
    assert max(row["fully_async/staleness/max"] for row in run.metrics()) > 0


def test_an_interrupted_run_goes_on_with_every_prompt_once(launch):
    """Ctrl-C in the middle; the resumed run trains what was finished, pending or running then, each once."""
    settings = (*SEPARATE, SWITCH, "rollout.total_rollout_steps=64", "data.size=64", "trainer.save_freq=2")
    first = launch(*settings)
    first.wait_for_cycles(3)
    first.signal()
    first.expect(130)
    consumed = first.state()["num_consumed"]
    assert 0 < consumed < 64
    second = launch(*settings, "trainer.resume_mode=auto", folder=first.folder).expect(0)
    state = second.state()
    assert (state["num_consumed"], state["queued"], state["pending"]) == (64, [], [])
    assert second.metrics()[-1]["fully_async/count/total_consumed_samples"] == 64


def test_validation_between_steps(launch):
    run = launch(
        *SEPARATE, SWITCH, "data.val_files=builtin:sort_digits", "trainer.test_freq=2", "data.size=32"
    ).expect(0)
    rows = run.metrics()
    validated = [row for row in rows if "val/reward/mean" in row]
    assert [row["val/version"] for row in validated] == [2, 4]
    assert all(row["separate_async/validate/seconds"] > 0 for row in validated)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4], "the last validation comes after the last step"
    assert run.summary["num_cycles"] == 4 and run.summary["validation"]["val/version"] == 4
