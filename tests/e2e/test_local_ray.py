"""The Ray cluster a run starts for itself: what it uses, and that it ends with the run, however that ends."""

import ipaddress
import os
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from e2e_runs import reward_file
from test_modes import check_console, check_files

pytestmark = pytest.mark.ray

RAY_FOLDER = r"/tmp/swingshift-ray-\w+"


def threads(pid):
    return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]


def test_dynamic_on_a_cluster_of_its_own(launch_own):
    run = launch_own("rollout.total_rollout_steps=60")
    run.wait_for_output("ready after")
    os.kill(run.process.pid, signal.SIGSTOP)  # while we look around
    cores = sorted(os.sched_getaffinity(0))
    for index, name in enumerate(("hybrid-0", "standalone-0")):
        pid = run.device_pid(name)
        assert {frozenset(os.sched_getaffinity(t)) for t in threads(pid)} == {frozenset({cores[index % len(cores)]})}
        environment = psutil.Process(pid).environ()
        assert environment["OMP_NUM_THREADS"] == "1" and environment["TOKENIZERS_PARALLELISM"] == "false"
    listening = [
        (pid, connection.laddr.ip)
        for pid in run.processes()
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) > 4
    for pid, ip in listening:
        address = ipaddress.ip_address(ip)
        address = getattr(address, "ipv4_mapped", None) or address
        assert address.is_loopback, (ip, psutil.Process(pid).cmdline())
    folders = set(re.findall(RAY_FOLDER, " ".join(run.processes().values())))
    assert len(folders) == 1
    os.kill(run.process.pid, signal.SIGCONT)
    run.expect(0)
    assert not Path(*folders).exists()
    check_files(run, groups=60, devices=["standalone-0", "hybrid-0"], lends=True)
    check_console(run)


def all_in(names, text):
    return text if all(name in text for name in names) else None


def test_everything_ends_with_a_killed_run(launch_own, tmp_path):
    """Killed without a chance to clean up, while a reward worker hangs."""
    run = launch_own(reward_file(tmp_path, "response and time.sleep(600)\nreturn 1.0"), "reward.timeout_s=500")
    # Ray's agents have their titles once they are up, and then no environment to be known by.
    names = ("raylet", "gcs_server", "DeviceActor", "reward_worker", "ray::DashboardAgent", "ray::RuntimeEnvAgent")
    titles = run.wait_until(lambda: all_in(names, " ".join(run.processes().values())), f"{names} are up")
    [folder] = set(re.findall(RAY_FOLDER, titles))
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 20
    while left := run.processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)
