"""One training run of a few minutes through everything that can happen to its processes (``make chaos``).

Round after round, in an order drawn from a seed: a standalone engine is killed, then stopped for longer than its
deadline; the trainer's process is killed; the disk under the run directory fills up; the control process is killed.
After each end the run is resumed. At last every prompt was trained once, as the two logs and the checkpoint agree,
and the model has learnt. ``CHAOS_SEED`` repeats an order, ``CHAOS_ROUNDS`` gives it more or fewer rounds.

Not collected with the other tests, which have a shorter form of it (``test_chaos.py``): it needs minutes, and the
right to mount a small file system (else no disk fills).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from campaign import Campaign
from e2e_runs import Run

CONFIGS = Path(__file__).parents[2] / "configs"
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "2"))
SETTINGS = (
    "async_training.health_check_interval_s=2",
    "async_training.call_timeout_s=6",
    "async_training.watchdog_timeout_s=120",
    "data.size=1024",
)


@pytest.fixture
def small_disk(tmp_path: Path):
    """The run directory, on a file system of 64 MB if one may be mounted; and whether it was."""
    folder = tmp_path / "run"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], check=False)
    yield folder, mounted.returncode == 0
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.timeout(1200)
def test_chaos(small_disk: tuple[Path, bool], tmp_path: Path) -> None:
    folder, can_fill = small_disk
    seed = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))
    rng, began = random.Random(seed), time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    def launch(overrides: Sequence[str]) -> Run:
        cwd = tmp_path / f"session-{len(list(tmp_path.glob('session-*')))}"
        cwd.mkdir()
        return Run(folder, [CONFIGS / "demo.yaml"], [*SETTINGS, *overrides], dict(os.environ), cwd)

    print(f"\nCHAOS_SEED={seed}, {ROUNDS} rounds{'' if can_fill else ', no disk is filled: none may be mounted'}")
    campaign = Campaign(launch, tell)
    try:
        campaign.more_cycles(4)
        for number in range(ROUNDS):
            faults = ["kill standalone", "stop standalone", "kill trainer", "kill control", *["fill disk"] * can_fill]
            rng.shuffle(faults)
            tell(f"round {number + 1}: {', '.join(faults)}")
            for fault in faults:
                disturb(campaign, fault, folder)
                campaign.more_cycles(rng.randint(4, 12))
        campaign.control_dies()
        num_groups = campaign.finishes(num_batches=20, batch=8)
    finally:
        campaign.run.end()
    rewards = [row["critic/rewards/mean"] for row in campaign.run.metrics()]
    tenth = len(rewards) // 10
    before, after = statistics.mean(rewards[:tenth]), statistics.mean(rewards[-tenth:])
    tell(
        f"{num_groups} groups in {campaign.num_sessions} sessions, each once; reward from {before:.2f} to {after:.2f}"
    )
    assert after > before + 0.2, "it learned nothing"


def disturb(campaign: Campaign, fault: str, folder: Path) -> None:
    match fault:
        case "kill standalone":
            campaign.standalone_gets(signal.SIGKILL)
        case "stop standalone":
            campaign.standalone_gets(signal.SIGSTOP)
        case "kill trainer":
            campaign.trainer_dies()
            campaign.goes_on()
        case "kill control":
            campaign.control_dies()
            campaign.goes_on()
        case "fill disk":
            fill(folder / "filler")
            campaign.disk_is_full()
            (folder / "filler").unlink()
            campaign.goes_on()


def fill(path: Path) -> None:
    """Until nothing more fits."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
