"""Making a process own one device: a GPU, or one pinned CPU core with one torch thread."""

from __future__ import annotations

import logging
import os
import sys

import torch

logger = logging.getLogger(__name__)


def claim_device(kind: str, core_index: int) -> torch.device:
    """Call once, first thing in the process. On ``cpu`` the device is a core; on ``cuda`` Ray has chosen the GPU."""
    torch.set_num_threads(1)
    # The engine's thread and the actor's event loop share the interpreter: let them alternate quickly.
    sys.setswitchinterval(1e-3)
    if kind == "cuda":
        return torch.device("cuda", 0)
    cores = sorted(os.sched_getaffinity(0))
    core = cores[core_index % len(cores)]
    os.sched_setaffinity(0, {core})
    logger.info("pinned to core %d", core)
    return torch.device("cpu")
