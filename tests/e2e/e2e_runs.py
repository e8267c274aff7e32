"""Starting ``swingshift train`` as a user would, watching it, and looking at what it left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

COMMAND = Path(sys.executable).with_name("swingshift")
SMALL = Path(__file__).with_name("small.yaml")
PATIENCE_S = 120.0
_MARK = "E2E_TEST_RUN"


def reward_file(folder: Path, body: str) -> str:
    """The override that names a reward function with this body."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / "my_reward.py").write_text(f"import time\n\ndef reward(prompt, response, answer, **extra):\n{lines}")
    return f"reward.path={folder}/my_reward.py:reward"


class Run:
    """One ``swingshift train``, in a process group of its own like a shell's job."""

    def __init__(
        self, folder: Path, files: list[Path], arguments: list[str], environment: dict[str, str], cwd: Path
    ) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._descendants: set[psutil.Process] = set()
        self._out, self._err = cwd / "stdout.txt", cwd / "stderr.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [str(COMMAND), "train", *map(str, files), *arguments, f"trainer.default_local_dir={folder}"],
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={**environment, _MARK: self._mark},
                start_new_session=True,
            )

    # --- while it runs ---

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        """What ``condition`` returns once it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert self.process.poll() is None, f"ended before {what}:\n{self.report()}"
            assert time.monotonic() < deadline, f"not in {PATIENCE_S} s: {what}\n{self.report()}"
            time.sleep(0.02)
        return value

    def wait_for_cycles(self, count: int) -> None:
        self.wait_until(lambda: self.num_cycles >= count, f"{count} cycles")

    def wait_for_output(self, text: str) -> None:
        self.wait_until(lambda: text in self.stdout, repr(text))

    def signal(self, number: signal.Signals = signal.SIGINT) -> None:
        """To the whole process group, as a terminal does it."""
        os.killpg(self.process.pid, number)

    def device_pid(self, name: str) -> int:
        pattern = re.compile(rf"{name}: process (\d+)")
        return int(self.wait_until(lambda: pattern.search(self.log), f"{name} started").group(1))

    def processes(self) -> dict[int, str]:
        """Every process of this run, zombies excepted, by process id.

        Some write their title over their environment, and some outlive their parents: so whoever inherited the
        environment or was ever seen to descend from the control process.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            self._descendants.update(psutil.Process(self.process.pid).children(recursive=True))
        found = {}
        entry = f"{_MARK}={self._mark}".encode()
        known = {process.pid for process in self._descendants if process.is_running()}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                title = (folder / "cmdline").read_text().replace("\0", " ").strip()
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if title and (entry in environment or int(folder.name) in known):
                found[int(folder.name)] = title
        return found

    # --- afterwards ---

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        deadline = time.monotonic() + timeout_s
        while True:
            self.processes()  # those seen now are known when they outlive the others
            try:
                return self.process.wait(0.25)
            except subprocess.TimeoutExpired:
                assert time.monotonic() < deadline, f"did not end within {timeout_s} s:\n{self.report()}"

    def expect(self, code: int) -> Run:
        """The exit code, and that nothing is left of it."""
        assert self.wait() == code, self.report()
        assert self.processes() == {}
        return self

    def wait_until_gone(self) -> None:
        """After the control process was killed: until its device processes and everything else noticed."""
        deadline = time.monotonic() + PATIENCE_S
        while left := self.processes():
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)

    def end(self) -> None:
        """Whatever happened: leave nothing of it behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    @property
    def log(self) -> str:
        path = self.folder / "run.log"
        return path.read_text() if path.exists() else ""

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def num_cycles(self) -> int:
        """Rows written so far. A session that goes on cuts off those after its checkpoint."""
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def metrics(self) -> list[dict[str, Any]]:
        return self._lines("metrics.jsonl")

    def timeline(self) -> list[dict[str, Any]]:
        return self._lines("timeline.jsonl")

    def samples(self) -> list[dict[str, Any]]:
        return self._lines("samples.jsonl")

    def consumed(self) -> list[dict[str, Any]]:
        return self._lines("consumed.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def checkpoints(self) -> list[int]:
        """Steps of the complete checkpoints, sorted."""
        found = (self.folder / "checkpoints").glob("global_step_*[0-9]/state.json")
        return sorted(int(path.parent.name.rpartition("_")[2]) for path in found)

    def state(self) -> dict[str, Any]:
        """Control state of the newest checkpoint."""
        newest = self.folder / "checkpoints" / f"global_step_{self.checkpoints()[-1]}"
        assert (newest / "model.safetensors").stat().st_size > 0
        return json.loads((newest / "state.json").read_text())

    def error_line(self) -> str:
        """The last line on standard error, the only one beside single lines of the log."""
        *others, last = self.stderr.splitlines()
        logged = ("warning: ", "WARNING swingshift.", "ERROR swingshift.")
        assert last.startswith("error: ") and all(line.startswith(logged) for line in others), self.report()
        return last

    def report(self) -> str:
        return f"exit code {self.process.poll()}\n{self.stdout}\n{self.stderr}\n--- run.log\n{self.log[-6000:]}"


@dataclass(frozen=True)
class Cluster:
    """The shared cluster, through the process that started it."""

    address: str
    head: subprocess.Popen[str]

    def held(self) -> dict[str, float]:
        assert self.head.stdin is not None and self.head.stdout is not None
        self.head.stdin.write("\n")
        self.head.stdin.flush()
        return json.loads(self.head.stdout.readline())
