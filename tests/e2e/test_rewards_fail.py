"""Reward functions that fail or hang in the middle of a run."""

import pytest
from e2e_runs import reward_file

pytestmark = pytest.mark.ray

FAILS_LATER = """
from pathlib import Path
calls = Path(__file__).with_name("calls.txt")
calls.open("a").write("x")
if calls.stat().st_size > 40:
    raise ValueError("cannot score this")
return len(set(response))
"""

IS_BEING_EDITED = """
import os
from pathlib import Path
calls = Path(__file__).with_name("calls.txt")
calls.open("a").write("x")
if calls.stat().st_size > 40:
    Path(__file__).write_text("def reward(:")
    os._exit(3)
return len(set(response))
"""

HANGS_SOMETIMES = """
if len(answer) == 3 and response:
    time.sleep(600)
return len(set(response))
"""


def test_a_reward_that_begins_to_fail_ends_the_run(launch, tmp_path):
    run = launch(
        reward_file(tmp_path, FAILS_LATER),
        "rollout.nnodes=0",
        "reward.max_retries=0",
        "rollout.total_rollout_steps=60",
    )
    run.expect(1)
    line = run.error_line()
    assert "groups failed" in line and "max_failed_ratio" in line and "cannot score this" in line
    assert run.summary["exit_reason"].startswith("TooManyFailuresError")
    assert run.summary["num_failed_groups"] >= 2
    # What was trained in the cycle under way has no row in the metrics, but it is saved.
    assert 0 <= run.state()["num_consumed"] - run.summary["num_consumed_groups"] <= 4


def test_a_reward_file_that_no_longer_imports_fails_groups_until_they_are_too_many(launch, tmp_path):
    """Not at once, as bad input would: somebody may be editing it while a worker happens to be replaced."""
    run = launch(
        reward_file(tmp_path, IS_BEING_EDITED),
        "rollout.nnodes=0",
        "rollout.total_rollout_steps=60",
        "async_training.max_failed_ratio=0.2",
    )
    run.expect(1)
    line = run.error_line()
    assert "groups failed" in line and "max_failed_ratio" in line and "SyntaxError" in line
    assert run.summary["num_failed_groups"] >= 2 and run.state()["num_consumed"] > 0


def test_a_reward_that_hangs_is_killed_and_counted(launch, tmp_path):
    run = launch(
        reward_file(tmp_path, HANGS_SOMETIMES),
        "rollout.nnodes=0",
        "reward.timeout_s=0.3",
        "reward.max_retries=0",
        "async_training.max_failed_ratio=1",
        "rollout.total_rollout_steps=8",
    ).expect(0)
    failed = run.summary["num_failed_groups"]
    assert 0 < failed < 8 and run.summary["num_consumed_groups"] == 8 - failed
    assert run.log.count("did not return within reward.timeout_s=0.3 seconds") >= failed
