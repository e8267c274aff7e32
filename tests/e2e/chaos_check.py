"""One training run through everything that can happen to its processes (``make chaos``, a few minutes).

A standalone engine is killed, then stopped for longer than its deadline; the trainer's process is killed; the disk
under the run directory fills up; the control process is killed. After each end the run is resumed. At last every
prompt was trained once, as the sample log and the checkpoint agree, and the model has learnt.

Not collected with the other tests: it needs minutes, and the right to mount a small file system (else no disk fills).
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
from pathlib import Path

import pytest
from e2e_runs import Run

CONFIGS = Path(__file__).parents[2] / "configs"
NUM_GROUPS = 1280
SETTINGS = [
    "async_training.trigger_parameter_sync_step=1",  # a cycle is a collection, so that all its groups are logged
    "async_training.health_check_interval_s=2",
    "async_training.call_timeout_s=6",
    "async_training.watchdog_timeout_s=120",
    "trainer.log_samples_per_cycle=1000",
    "trainer.save_freq=1",
    "trainer.resume_mode=auto",
    "data.size=1280",
    f"rollout.total_rollout_steps={NUM_GROUPS}",
]


class Campaign:
    """The sessions of one run, and what is trained for good."""

    def __init__(self, folder: Path, work: Path) -> None:
        self._folder = folder
        self._work = work
        self._num_seen = 0
        self._num_sessions = 0
        self.trained: list[tuple[int, str]] = []
        self.run = self._start()

    def _start(self) -> Run:
        self._num_sessions += 1
        cwd = self._work / f"session-{self._num_sessions}"
        cwd.mkdir()
        return Run(self._folder, [CONFIGS / "demo.yaml"], SETTINGS, dict(os.environ), cwd)

    def more_cycles(self, count: int = 8) -> None:
        self.run.wait_for_cycles(len(self.run.metrics()) + count)

    def signal_device(self, name: str, number: signal.Signals) -> None:
        os.kill(newest_pid(self.run, name), number)

    def standalone_comes_back(self, number: signal.Signals) -> None:
        before = self.run.log.count("standalone-0 is back")
        self.signal_device("standalone-0", number)
        self.run.wait_until(lambda: self.run.log.count("standalone-0 is back") > before, f"a restart after {number}")
        self.more_cycles()

    def account(self) -> None:
        """After a session: what came after its last checkpoint is lost, and will be trained again."""
        samples, kept = self.run.samples(), self.run.checkpoints()[-1]
        new = [(sample["cycle"], sample["prompt_uid"]) for sample in samples[self._num_seen :]]
        self.trained = [(cycle, uid) for cycle, uid in [*self.trained, *new] if cycle <= kept]
        self._num_seen = len(samples)

    def goes_on(self) -> None:
        self.run.wait_until_gone()
        self.account()
        self.run = self._start()
        self.more_cycles()


def newest_pid(run: Run, name: str) -> int:
    """The process a device has now, after restarts and resumes."""
    lines = [line for line in run.log.splitlines() if f"{name}: process " in line]
    return int(lines[-1].partition(f"{name}: process ")[2].split()[0])


@pytest.fixture
def small_disk(tmp_path: Path):
    """The run directory, on a file system of 40 MB if one may be mounted; and whether it was."""
    folder = tmp_path / "run"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)], check=False)
    yield folder, mounted.returncode == 0
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_chaos(small_disk: tuple[Path, bool], tmp_path: Path) -> None:
    folder, can_fill = small_disk
    campaign = Campaign(folder, tmp_path)
    try:
        campaign.more_cycles()
        campaign.standalone_comes_back(signal.SIGKILL)
        campaign.standalone_comes_back(signal.SIGSTOP)

        campaign.signal_device("hybrid-0", signal.SIGKILL)
        campaign.run.expect(1)
        campaign.goes_on()

        if can_fill:
            fill(folder / "filler")
            campaign.run.expect(1)
            assert "Checkpoint" in campaign.run.log or "No space" in campaign.run.stderr, campaign.run.report()
            (folder / "filler").unlink()
            campaign.goes_on()

        campaign.run.process.kill()
        campaign.run.wait()
        campaign.goes_on()
        campaign.run.expect(0)
        campaign.account()
    finally:
        campaign.run.end()
    uids = [uid for _, uid in campaign.trained]
    assert len(uids) == len(set(uids)) == NUM_GROUPS
    state = campaign.run.state()
    assert (state["num_consumed"], state["num_failed"], state["queued"], state["pending"]) == (NUM_GROUPS, 0, [], [])
    rewards = [row["critic/rewards/mean"] for row in campaign.run.metrics()]
    tenth = len(rewards) // 10
    assert statistics.mean(rewards[-tenth:]) > statistics.mean(rewards[:tenth]) + 0.2, "it learned nothing"


def fill(path: Path) -> None:
    """Until nothing more fits."""
    with path.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        except OSError:
            return
