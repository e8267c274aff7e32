"""Ends what a run's control process leaves behind, even when that was killed.

A small process of its own waits until the control process is gone and then kills every process that carries the
run's mark in its environment. Ray's servers end with their driver by themselves, but two of its agents linger for
a minute; they write their process title over their environment, so they are known by the files they write: those
in the Ray folder, whose name carries the mark too. Needs ``/proc``; elsewhere it does nothing.

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
from collections.abc import Iterator
from pathlib import Path

MARK = "SWINGSHIFT_RUN_MARK"
RAY_FOLDER = "swingshift-ray-"
"""How the folder of a run's own Ray begins; the mark follows."""
_ROUNDS = 100
_PAUSE_S = 0.05


class OrphanWatch:
    """Processes started between entering and leaving inherit the mark. On leaving none of them is left."""

    def __enter__(self) -> OrphanWatch:
        mark = uuid.uuid4().hex[:8]  # short, since paths of sockets in the folder named after it must be
        # Its own session, so that neither Ctrl-C nor a closing terminal reaches it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, mark, str(os.getpid())],
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


def main(mark: str, control_pid: str) -> None:
    """Wait for the end of standard input, then kill whoever has ``mark`` until nobody but the control process has.

    That one may only have left the ``with`` block; Ray has it write a log of its own.
    """
    sys.stdin.buffer.read()
    for _ in range(_ROUNDS):
        processes = [folder for folder in Path("/proc").glob("[0-9]*") if folder.name != control_pid]
        marked = [folder for folder in processes if _has_mark(folder, mark)]
        if not marked:
            return
        for folder in marked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(folder.name), signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _has_mark(process: Path, mark: str) -> bool:
    with contextlib.suppress(OSError):  # it ended, or is somebody else's
        if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        return any(f"/{RAY_FOLDER}{mark}/" in path for path in _written(process))
    return False


def _written(process: Path) -> Iterator[str]:
    """Paths of the files it has open for writing."""
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            path = str(descriptor.readlink())
            if RAY_FOLDER in path:
                flags = (process / "fdinfo" / descriptor.name).read_text().split("flags:")[1].split()[0]
                if int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:  # whoever reads a log is left alone
                    yield path


if __name__ == "__main__":
    main(*sys.argv[1:])
