"""A process that claims a device computes with one thread on one core."""

import json
import os
import subprocess
import sys

# Threads that exist before and start after the claim, and torch's own idea of how many it may use.
PROGRAM = """
import json, os, threading
from pathlib import Path
from swingshift.cluster.device import claim_device

stop = threading.Event()
threading.Thread(target=stop.wait).start()
name = claim_device("cpu", CORE)
threading.Thread(target=stop.wait).start()
import torch
torch.ones(300, 300) @ torch.ones(300, 300)
cores = {int(t.name): sorted(os.sched_getaffinity(int(t.name))) for t in Path("/proc/self/task").iterdir()}
print(json.dumps([name, torch.get_num_threads(), os.environ["TOKENIZERS_PARALLELISM"], list(cores.values())]))
stop.set()
"""


def test_every_thread_is_pinned_to_the_core():
    available = sorted(os.sched_getaffinity(0))
    index = len(available) + 1  # more devices than cores: they share
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    program = PROGRAM.replace("CORE", str(index))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    name, num_threads, parallelism, cores = json.loads(done.stdout)
    assert (name, num_threads, parallelism) == ("cpu", 1, "false")
    assert len(cores) >= 3
    assert all(own == [available[index % len(available)]] for own in cores)
