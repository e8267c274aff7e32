"""Making a process own one device: a GPU, or one pinned CPU core with one torch thread."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)


def claim_device(kind: str, core_index: int) -> str:
    """Call once, first thing in the process and before torch is imported. Returns torch's name of the device.

    On ``cpu`` the device is a core: every thread, present and future, is pinned to it. On ``cuda`` Ray has chosen
    the GPU.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # The engine's thread and the actor's event loop share the interpreter: let them alternate quickly.
    sys.setswitchinterval(1e-3)
    if kind == "cuda":
        return "cuda:0"
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        _pin(cores[core_index % len(cores)])
    return "cpu"


def _pin(core: int) -> None:
    # Linux pins threads, not processes, and Ray's own threads run already.
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.sched_setaffinity(int(thread.name), {core})
        except ProcessLookupError:
            continue  # it ended meanwhile
    logger.info("pinned to core %d", core)
