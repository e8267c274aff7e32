"""Device processes that are killed in the middle of a run."""

import os
import signal

import pytest
from e2e_runs import reward_file

pytestmark = pytest.mark.ray

STATIC = "async_training.use_dynamic_resource_scheduling=false"
STAY_OUT = "async_training.max_replica_restarts=0"
# Runs at the start of every process: once the flag is there, the next decode step of a hybrid engine raises.
SABOTAGE = """
import os, sys, threading, time

def fail(step):
    def failing(self):
        if self._weights.shared:
            try:
                os.unlink({flag!r})
            except FileNotFoundError:
                pass
            else:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return step(self)
    return failing

def patch():
    while (core := getattr(sys.modules.get("swingshift.engines.engine_core"), "EngineCore", None)) is None:
        time.sleep(0.02)
    core.step = fail(core.step)

if "default_worker" in " ".join(sys.orig_argv):
    threading.Thread(target=patch, daemon=True).start()
"""


@pytest.fixture
def slow_reward(tmp_path):
    """Scoring a group takes 0.12 s, so that there is time to watch and to interfere."""
    return reward_file(tmp_path, "time.sleep(0.03)\nreturn len(set(response))")


def test_rollout_goes_on_without_standalone_replicas(launch, slow_reward):
    """One of two dies: the run goes on with the other. When that dies too, with the trainer's own device."""
    run = launch(slow_reward, STAY_OUT, "rollout.n_gpus_per_node=2", "rollout.total_rollout_steps=40")
    for name, cycles in (("standalone-0", 2), ("standalone-1", 5)):
        run.wait_for_cycles(cycles)
        os.kill(run.device_pid(name), signal.SIGKILL)
        run.wait_for_cycles(cycles + 1)
    run.expect(0)
    assert run.summary["num_consumed_groups"] == 40 and run.summary["num_failed_groups"] == 0
    assert "standalone-0 is taken out" in run.log and "standalone-1 is taken out" in run.log
    assert run.stderr.count("lending the trainer's devices") <= 1, "said once, not every cycle"
    assert run.stderr.count("\n") <= 12 and "Traceback" not in run.stderr


def test_without_any_replica_left_the_run_ends_and_saves(launch, slow_reward):
    run = launch(slow_reward, STAY_OUT, STATIC, "rollout.total_rollout_steps=40")
    run.wait_for_cycles(1)
    os.kill(run.device_pid("standalone-0"), signal.SIGKILL)
    run.expect(1)
    assert "standalone-0" in run.error_line() and "no replica" in run.error_line()
    assert run.summary["exit_reason"].startswith("NoReplicaError")
    assert run.state()["num_consumed"] == run.summary["num_consumed_groups"] >= 4


def test_the_only_standalone_replica_comes_back(launch, slow_reward):
    """A new process with the weights of now goes on with what the old one had; nothing is lost."""
    run = launch(slow_reward, STATIC, "rollout.total_rollout_steps=40")
    run.wait_for_cycles(2)
    first = run.device_pid("standalone-0")
    os.kill(first, signal.SIGKILL)
    run.wait_until(lambda: "standalone-0 is back" in run.log, "the restart")
    run.expect(0)
    assert run.log.count("standalone-0: process") == 2 and run.stderr.count("\n") <= 5
    assert run.summary["num_consumed_groups"] == 40 and run.summary["num_failed_groups"] == 0


def test_the_run_ends_with_its_trainer(launch, slow_reward):
    run = launch(slow_reward, "rollout.total_rollout_steps=40")
    run.wait_for_cycles(1)
    os.kill(run.device_pid("hybrid-0"), signal.SIGKILL)
    run.expect(1)
    assert "trainer" in run.error_line() and "hybrid-0" in run.error_line()
    assert run.summary["exit_reason"].startswith("TrainerError")


def test_a_hybrid_engine_that_fails_is_made_anew_beside_the_trainer(launch_own, tmp_path, slow_reward):
    """Its process lives on: training needs it. The new engine gets weights and is lent again."""
    flag = tmp_path / "flag"
    (tmp_path / "sitecustomize.py").write_text(SABOTAGE.format(flag=str(flag)))
    run = launch_own(slow_reward, "rollout.total_rollout_steps=64", environment={"PYTHONPATH": str(tmp_path)})
    run.wait_for_cycles(1)
    flag.touch()
    run.wait_until(lambda: "hybrid-0 is back" in run.log, "the restart")
    num_cycles = len(run.metrics())
    run.expect(0)
    assert sum(row["dynamic_resource/num_activations"] for row in run.metrics()[num_cycles + 1 :]) > 0
    assert "illegal memory access" in run.log and run.log.count("hybrid-0: process") == 1
    assert run.summary["num_consumed_groups"] == 64 and run.summary["num_failed_groups"] == 0
    after = run.log.partition("hybrid-0 is back")[2]
    assert "taken out" not in after
