"""Ctrl-C and SIGTERM in every phase."""

import signal
import time

import pytest
from e2e_runs import reward_file

pytestmark = pytest.mark.ray

INTERRUPTED = "interrupted"
COLOCATED = "rollout.nnodes=0"
POLICY = """
import os, signal
from pathlib import Path
from swingshift.schedule import StaticFullyAsyncPolicy


class Interrupting(StaticFullyAsyncPolicy):
    def __init__(self, when, **kwargs):
        super().__init__(**kwargs)
        self.when = when

    def should_deactivate(self, global_steps, is_hybrid_active, ctx):
        self.perhaps("deactivating", global_steps)
        return super().should_deactivate(global_steps, is_hybrid_active, ctx)

    def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
        self.perhaps("activating", global_steps)
        return True

    def perhaps(self, moment, global_steps):
        if moment == self.when and global_steps == 1:
            os.killpg(os.getpgrp(), signal.SIGINT)
"""


def check_ended_in_order(run):
    run.expect(130)
    assert run.summary["exit_reason"] == INTERRUPTED and run.stderr == "", run.report()
    assert run.state()["num_consumed"] == run.summary["num_consumed_groups"]


def test_while_starting(launch_own):
    """Ray and the warm start are under way, or even finished: nothing has been trained, nothing is left."""
    run = launch_own("actor_rollout_ref.model.path=builtin:tiny", "actor_rollout_ref.model.warm_start.steps=100000")
    run.wait_for_output("starting Ray")
    run.signal()
    run.expect(130)
    assert run.summary["exit_reason"] == INTERRUPTED and run.stderr.strip() == INTERRUPTED
    assert run.checkpoints() == [] and run.metrics() == []


def test_while_generating(launch, tmp_path):
    """SIGTERM while the trainer waits for groups that take for ever to score."""
    run = launch(reward_file(tmp_path, "response and time.sleep(600)\nreturn 1.0"), "reward.timeout_s=500")
    run.wait_for_output("ready after")
    time.sleep(1.0)
    run.signal(signal.SIGTERM)
    check_ended_in_order(run)
    assert run.summary["num_consumed_groups"] == 0 and len(run.state()["pending"]) > 0


def test_while_training(launch):
    """The collection under way is finished, synced and saved. It takes some seconds."""
    run = launch(COLOCATED, "actor_rollout_ref.actor.ppo_epochs=400")
    run.wait_for_cycles(1)
    run.signal()
    run.wait_for_output("stopping after the collection under way")
    check_ended_in_order(run)
    assert 4 <= run.summary["num_consumed_groups"] <= 8


def test_twice_while_training(launch):
    """The second Ctrl-C does not wait for a collection that takes hours."""
    run = launch(COLOCATED, "actor_rollout_ref.actor.ppo_epochs=10000000")
    run.wait_for_output("ready after")
    time.sleep(1.0)
    run.signal()
    run.wait_for_output("stopping after the collection under way")
    time.sleep(0.5)
    run.signal()
    run.expect(130)
    assert run.summary["exit_reason"] == INTERRUPTED and run.stderr.strip() == INTERRUPTED


@pytest.mark.parametrize("moment", ["activating", "deactivating"])
def test_during_a_switch(launch, tmp_path, moment):
    (tmp_path / "interrupting.py").write_text(POLICY)
    run = launch(
        COLOCATED,
        "async_training.dynamic_schedule_policy=interrupting:Interrupting",
        f"async_training.dynamic_schedule_policy_kwargs={{when: {moment}}}",
    )
    check_ended_in_order(run)
    assert run.summary["num_cycles"] == 1 and run.summary["num_consumed_groups"] == 4
    assert 0 <= run.summary["num_activations"] - run.summary["num_deactivations"] <= 1
