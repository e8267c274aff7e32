"""``live.json``: what a run does now, for whoever looks from outside. It is there only while the run goes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swingshift.observe.live_state import LiveState

LIVE_FILE = "live.json"


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """``wall_time`` is Unix seconds; ``state`` is None while devices start."""

    wall_time: float
    pid: int
    num_cycles: int | None
    state: LiveState | None


class LiveFile:
    def __init__(self, folder: Path, num_cycles: int | None, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / LIVE_FILE
        self._num_cycles = num_cycles
        self._clock = clock

    def write(self, state: LiveState | None) -> None:
        """All or nothing: a reader never sees half a file."""
        record = {
            "wall_time": round(self._clock(), 3),
            "pid": os.getpid(),
            "num_cycles": self._num_cycles,
            "state": None if state is None else state.to_json(),
        }
        partial = self._path.with_name(f"{LIVE_FILE}.tmp")
        partial.write_text(json.dumps(record), encoding="utf-8")
        partial.replace(self._path)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)


def read_live(folder: Path) -> LiveRecord | None:
    """None if the run has ended, or if the file is not one this version wrote."""
    try:
        record = json.loads((folder / LIVE_FILE).read_text(encoding="utf-8"))
        state = record["state"]
        return LiveRecord(
            record["wall_time"],
            record["pid"],
            record["num_cycles"],
            None if state is None else LiveState.from_json(state),
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
