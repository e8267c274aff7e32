"""Ends what a run's control process leaves behind, even when that was killed.

A small process of its own waits until the control process is gone and then kills every process that carries the
run's mark in its environment. Ray's servers end with their driver by themselves, but two of its agents linger for
a minute. Needs ``/proc``; elsewhere it does nothing.

The watching half runs this file as a program, so it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "SWINGSHIFT_RUN_MARK"
_ROUNDS = 20
_PAUSE_S = 0.05


class OrphanWatch:
    """Processes started between entering and leaving inherit the mark. On leaving none of them is left."""

    def __enter__(self) -> OrphanWatch:
        mark = uuid.uuid4().hex
        # Its own session, so that neither Ctrl-C nor a closing terminal reaches it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, f"{MARK}={mark}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.environ[MARK] = mark
        return self

    def __exit__(self, *error: object) -> None:
        os.environ.pop(MARK, None)
        self._process.communicate()


def main(entry: str) -> None:
    """Wait for the end of standard input, then kill whoever has ``entry`` in its environment until nobody has."""
    sys.stdin.buffer.read()
    for _ in range(_ROUNDS):
        marked = _marked(entry.encode())
        if not marked:
            return
        for pid in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _marked(entry: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or is somebody else's
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
