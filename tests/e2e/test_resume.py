"""Going on from a checkpoint."""

import pytest
from campaign import Campaign
from e2e_runs import SMALL

from swingshift.cli import main

SHORT = ["rollout.nnodes=0", "trainer.max_actor_ckpt_to_keep=null"]
AUTO = "trainer.resume_mode=auto"


def consumed(rows):
    return [row["fully_async/count/total_consumed_samples"] for row in rows]


def passes(run):
    """Groups trained on after each collection."""
    return [line["num_consumed"] for line in run.consumed()]


def prompts(lines):
    return {uid for line in lines for uid in line["prompt_uids"]}


@pytest.mark.ray
def test_resume_goes_on_where_the_run_ended(launch, tmp_path):
    first = launch(*SHORT, "rollout.total_rollout_steps=8", "trainer.save_freq=1").expect(0)
    assert first.checkpoints() == [1, 2] and consumed(first.metrics()) == [4, 8]
    assert passes(first) == [2, 4, 6, 8]
    before = first.metrics()

    # As after a kill while another checkpoint was about to take its place.
    kept = first.folder / "checkpoints"
    (kept / "global_step_2").rename(kept / ".global_step_2.old")
    more = launch(*SHORT, "rollout.total_rollout_steps=16", AUTO).expect(0)
    assert "resuming from" in more.stdout and more.stderr == ""
    assert more.checkpoints() == [1, 2, 4] and not list(kept.glob(".*"))
    assert more.metrics()[:2] == before and consumed(more.metrics()) == [4, 8, 12, 16]
    assert more.summary["num_consumed_groups"] == 16 and more.summary["num_cycles"] == 4
    assert passes(more) == list(range(2, 17, 2))
    times = [row["training/time_s"] for row in more.metrics()]
    assert times == sorted(times)
    assert more.state()["num_consumed"] == 16 and more.state()["prompts"]["cursor"] == 16

    # From the first checkpoint, into another directory: the prompts that followed it then follow it again.
    start = first.folder / "checkpoints" / "global_step_1"
    again = launch(
        *SHORT,
        "rollout.total_rollout_steps=8",
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={start}",
        folder=tmp_path / "again",
    ).expect(0)
    assert consumed(again.metrics()) == [8] and again.checkpoints() == [2] and passes(again) == [6, 8]
    assert prompts(again.consumed()) == prompts(first.consumed()[2:4])
    assert again.summary["num_consumed_groups"] == 4

    # From an older one, in the same directory: what came after it is another way now, in the logs too.
    back = launch(
        *SHORT,
        "rollout.total_rollout_steps=12",
        "trainer.save_freq=-1",
        "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={kept}/global_step_2",
    ).expect(0)
    assert back.checkpoints() == [1, 2, 3] and (kept / "global_step_4.abandoned" / "state.json").exists()
    assert passes(back) == list(range(2, 13, 2)) and consumed(back.metrics()) == [4, 8, 12]
    assert back.summary["num_consumed_groups"] == 12 and "set aside" in back.log

    (first.folder / "checkpoints" / "global_step_3" / "model.safetensors").write_bytes(b"damaged")
    damaged = launch(*SHORT, "rollout.total_rollout_steps=20", AUTO).expect(1)
    line = damaged.error_line()
    assert "global_step_3/model.safetensors" in line and "damaged" in line
    assert damaged.summary["exit_reason"].startswith("CheckpointError")


def test_a_damaged_state_is_seen_before_anything_starts(tiny_model, tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    step = tmp_path / "run" / "checkpoints" / "global_step_4"
    step.mkdir(parents=True)
    (step / "state.json").write_text('{"format": 1, "version"')
    arguments = [
        str(SMALL),
        f"actor_rollout_ref.model.path={tiny_model}",
        f"trainer.default_local_dir={tmp_path}/run",
    ]
    (tmp_path / "run" / "config.yaml").write_text("actor_rollout_ref: {}\nasync_training: {}\ntrainer: {}\n")
    assert main(["train", *arguments, AUTO]) == 1
    out, err = capfd.readouterr()
    [line] = err.splitlines()
    assert line.startswith("error: ") and "global_step_4" in line and out == ""


@pytest.mark.ray
def test_after_kill_9_every_prompt_is_trained_once_in_global_steps_too(launch):
    """Killed twice without a warning: what was trained since the last checkpoint is trained again, nothing else.

    The fully-asynchronous mode goes through this and more in ``test_chaos``.
    """
    settings = ["trainer.v1.trainer_mode=separate_async", "async_training.use_dynamic_resource_scheduling=false"]
    campaign = Campaign(lambda overrides: launch(*settings, *overrides))
    campaign.more_cycles(2)
    campaign.control_dies()
    campaign.goes_on()
    campaign.more_cycles(6)
    campaign.control_dies()
    campaign.finishes(num_batches=4, batch=2)
