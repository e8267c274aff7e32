"""One training run through sessions that are disturbed, each of which the next goes on from; and its books."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from e2e_runs import Run

SETTINGS = (
    "async_training.trigger_parameter_sync_step=1",  # a cycle is a collection, so that all its groups are logged
    "trainer.v1.parameter_sync_step=1",
    "trainer.log_samples_per_cycle=1000",
    "trainer.save_freq=1",
    "trainer.resume_mode=auto",
    "trainer.total_epochs=10000",
)
ENOUGH = 100_000
"""Groups: a session must not finish before it is disturbed, however fast the machine."""


class Campaign:
    """``launch(overrides)`` starts a session in the run's directory. ``tell`` hears what is done to it.

    Only the last session finishes: all before it have more to do than they will ever come to.
    """

    def __init__(
        self, launch: Callable[[Sequence[str]], Run], tell: Callable[[str], None] = lambda text: None
    ) -> None:
        self._launch = launch
        self._tell = tell
        self.num_sessions = 0
        self.goes_on()

    def goes_on(self, num_groups: int = ENOUGH) -> None:
        """The next session."""
        self.num_sessions += 1
        self._tell(f"session {self.num_sessions}")
        self.run = self._launch([*SETTINGS, f"rollout.total_rollout_steps={num_groups}"])

    def more_cycles(self, count: int) -> None:
        self.run.wait_for_cycles(self.run.num_cycles + count)

    def ends(self, code: int | None = None) -> None:
        """Of itself with this exit code, or killed."""
        if code is None:
            self.run.wait()
        else:
            self.run.expect(code)
        self.run.wait_until_gone()
        check_books(self.run)

    # --- what may happen to a session -------------------------------------------------------------------------

    def standalone_gets(self, number: signal.Signals) -> None:
        """It comes back by itself."""
        self._tell(f"{number.name} to the standalone engine")
        before = self.run.log.count("standalone-0 is back")
        os.kill(newest_pid(self.run, "standalone-0"), number)
        self.run.wait_until(lambda: self.run.log.count("standalone-0 is back") > before, f"a restart after {number}")

    def trainer_dies(self) -> None:
        self._tell("SIGKILL to the trainer and its hybrid engine")
        os.kill(newest_pid(self.run, "hybrid-0"), signal.SIGKILL)
        self.ends(1)

    def control_dies(self) -> None:
        self._tell("SIGKILL to the control process")
        self.run.process.kill()
        self.ends()

    def disk_is_full(self) -> None:
        self._tell("full disk")
        self.ends(1)
        assert "Checkpoint" in self.run.log or "No space" in self.run.stderr, self.run.report()

    # --- the end ----------------------------------------------------------------------------------------------

    def finishes(self, num_batches: int, batch: int) -> int:
        """The last session, of so many batches: every group was trained on, each once. Returns how many."""
        state = self.run.state()
        num_known = state["num_consumed"] + len(state["queued"]) + len(state["pending"])
        num_groups = (-(-num_known // batch) + num_batches) * batch
        self.goes_on(num_groups)
        self.ends(0)
        state = self.run.state()
        assert state["num_consumed"] == state["prompts"]["cursor"] == len(consumed(self.run)) == num_groups
        assert state["num_failed"] == 0 and state["queued"] == state["pending"] == []
        return num_groups


def newest_pid(run: Run, name: str) -> int:
    """The process a device has now, after restarts and resumes."""
    lines = [line for line in run.log.splitlines() if f"{name}: process " in line]
    return int(lines[-1].partition(f"{name}: process ")[2].split()[0])


def consumed(run: Run) -> list[tuple[int, str]]:
    """Cycle and prompt of every group trained on, in order."""
    return [(line["cycle"], uid) for line in run.consumed() for uid in line["prompt_uids"]]


def check_books(run: Run) -> None:
    """After a session, however it ended: up to its newest checkpoint its two logs agree with each other and with it.

    With one collection a cycle and all groups logged. What came after the checkpoint the next session cuts off.
    """
    state: dict[str, Any] = run.state() if run.checkpoints() else {"num_consumed": 0, "version": 0}
    lines, trained = run.consumed(), consumed(run)
    sizes = [len(line["prompt_uids"]) for line in lines]
    assert [line["num_consumed"] for line in lines] == [sum(sizes[: i + 1]) for i in range(len(sizes))]
    cycles = [line["cycle"] for line in lines]
    assert cycles == list(range(1, len(lines) + 1)), f"cycles {cycles}"
    twice = [uid for uid, times in Counter(uid for _, uid in trained).items() if times > 1]
    assert not twice, f"trained twice: {twice}"
    for_good = [(cycle, uid) for cycle, uid in trained if cycle <= state["version"]]
    assert len(for_good) == state["num_consumed"]
    samples = [(sample["cycle"], sample["prompt_uid"]) for sample in run.samples()]
    assert [sample for sample in samples if sample[0] <= state["version"]] == for_good
    unborn = {item["prompt"]["uid"] for key in ("queued", "pending") for item in state.get(key, ())}
    assert not unborn & {uid for _, uid in for_good}, "trained, and to be trained"
