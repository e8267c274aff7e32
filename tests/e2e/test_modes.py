"""Every mode, from the command line to the files a run leaves."""

import itertools
import math
import re

import pytest
from PIL import Image

pytestmark = pytest.mark.ray

SUMMARY_KEYS = {
    "wall_s", "num_consumed_groups", "reward_first_tenth", "reward_last_tenth", "num_activations",
    "num_deactivations", "switch_s", "tokens_per_s", "train_resource_utilization", "rollout_resource_utilization",
    "resource_utilization", "exit_reason",
}  # fmt: skip
METRICS = {
    "dynamic_resource/mq_size", "dynamic_resource/resource_utilization",
    "dynamic_resource/rollout_resource_utilization", "dynamic_resource/train_resource_utilization",
    "dynamic_resource/train_allocated_time_s", "dynamic_resource/train_compute_time_s",
    "fully_async/trainer/idle_ratio", "fully_async/rollouter/idle_ratio", "fully_async/total_wait_time_s",
    "fully_async/rollouter/step_generated_samples", "fully_async/count/staleness_samples",
    "fully_async/partial/partial_ratio", "timing_s/param_sync", "timing_s/wait_for_enough_samples", "timing_s/step",
    "timing_s/update_actor", "critic/rewards/mean",
}  # fmt: skip


def check_files(run, *, groups, devices, lends):
    """The files exist and tell one story."""
    summary, rows, spans = run.summary, run.metrics(), run.timeline()
    assert summary.keys() >= SUMMARY_KEYS and all(row.keys() >= METRICS for row in rows)
    assert summary["exit_reason"] == "finished" and summary["num_failed_groups"] == 0
    assert summary["num_consumed_groups"] == groups
    assert sum(row["fully_async/trainer/step_consumed_samples"] for row in rows) == groups
    assert rows[-1]["fully_async/count/total_consumed_samples"] == groups
    assert any(row.get("actor/grad_norm", 0) > 0 for row in rows), "it learned nothing"
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(math.isfinite(value) for row in rows for value in row.values())
    for name in ("train_resource_utilization", "rollout_resource_utilization", "resource_utilization"):
        assert 0 < summary[name] <= 1
    assert (summary["num_activations"] > 0) == lends
    assert summary["num_activations"] - summary["num_deactivations"] in (0, 1)
    # Each device's states add up to the whole run, in the summary and in the timeline.
    assert set(summary["device_seconds"]) == {span["device"] for span in spans} == set(devices)
    for device, states in summary["device_seconds"].items():
        assert sum(states.values()) == pytest.approx(summary["wall_s"], rel=0.05, abs=0.05)
        own = [span for span in spans if span["device"] == device]
        assert all(a["end_s"] == pytest.approx(b["start_s"], abs=1e-5) for a, b in itertools.pairwise(own))
        assert own[-1]["end_s"] - own[0]["start_s"] == pytest.approx(sum(states.values()), abs=1e-3)
    assert len(run.samples()) == 2 * len(rows) - (groups % 2)
    assert all(len(sample["responses"]) == 4 for sample in run.samples())
    assert re.search(r"total_rollout_steps: \d+|total_epochs", (run.folder / "config.yaml").read_text())
    state = run.state()
    assert (state["version"], state["num_consumed"], state["queued"], state["pending"]) == (len(rows), groups, [], [])
    with Image.open(run.folder / "run.png") as picture:
        picture.verify()


def check_console(run):
    """On a plain stream: notes, lines of cycles, the summary. Nothing else, and nothing on standard error."""
    assert run.stderr == "", run.report()
    notes = r"starting |ready after |resuming from |metrics for Prometheus: "
    known = notes + r"|\[[\d.:]+( s)?\] cycle |Run summary|ended |everything is in "
    head = run.stdout.partition("Run summary")[0]
    assert all(re.match(known, line) for line in head.splitlines()), run.report()
    assert "finished" in run.stdout and "everything is in" in run.stdout


def test_static(launch):
    run = launch("async_training.use_dynamic_resource_scheduling=false").expect(0)
    check_files(run, groups=16, devices=["standalone-0", "hybrid-0"], lends=False)
    check_console(run)


def test_colocated_on_two_ranks(launch):
    """13 groups are neither whole cycles of 4 nor whole collections of 2: all are trained on, synced and saved."""
    run = launch("rollout.nnodes=0", "trainer.n_gpus_per_node=2", "rollout.total_rollout_steps=13").expect(0)
    check_files(run, groups=13, devices=["hybrid-0", "hybrid-1"], lends=True)
    check_console(run)
    states = [run.summary["device_seconds"][device] for device in ("hybrid-0", "hybrid-1")]
    assert all(seconds["train"] > 0 and seconds["rollout"] > 0 for seconds in states)


def test_colocated_with_the_static_policy(launch):
    run = launch("rollout.nnodes=0", "async_training.dynamic_schedule_policy=static_fully_async").expect(0)
    check_files(run, groups=16, devices=["hybrid-0"], lends=True)
