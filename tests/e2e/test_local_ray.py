"""The Ray cluster a run starts for itself: what it uses, who reaches it, and that it ends with the run."""

import ipaddress
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from e2e_runs import reward_file
from test_modes import check_console, check_files

pytestmark = pytest.mark.ray

RAY_FOLDER = r"/tmp/swingshift-ray-\w+"

KNOCK = """
import sys
from ray._raylet import GcsClient

try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)
except Exception as error:
    sys.exit(f"refused: {type(error).__name__}")
"""


def threads(pid):
    return [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]


def test_a_run_on_a_cluster_of_its_own(launch_own):
    """Two trainer ranks that meet, an engine, Prometheus: what each process uses, and that nobody else reaches it."""
    run = launch_own("trainer.n_gpus_per_node=2", "trainer.prometheus.port=0", "rollout.total_rollout_steps=40")
    run.wait_for_output("ready after")
    os.kill(run.process.pid, signal.SIGSTOP)  # while we look around
    check_devices(run)
    check_ports(run)
    folder = check_ray(run)
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    os.kill(run.process.pid, signal.SIGCONT)
    run.expect(0)
    assert not folder.exists()
    check_files(run, groups=40, devices=["standalone-0", "hybrid-0", "hybrid-1"], lends=True)
    check_console(run)


def check_devices(run):
    cores = sorted(os.sched_getaffinity(0))
    for index, name in enumerate(("hybrid-0", "hybrid-1", "standalone-0")):
        pid = run.device_pid(name)
        assert {frozenset(os.sched_getaffinity(t)) for t in threads(pid)} == {frozenset({cores[index % len(cores)]})}
        environment = psutil.Process(pid).environ()
        assert environment["OMP_NUM_THREADS"] == "1" and environment["TOKENIZERS_PARALLELISM"] == "false"


def check_ports(run):
    """Every port of every process is on loopback."""
    bound, ranks = [], 0
    for pid, title in run.processes().items():
        process = psutil.Process(pid)
        found = [c.laddr for c in process.net_connections("inet") if not c.raddr and c.laddr]
        bound += [(address.ip, title) for address in found]
        ranks += "DeviceActor" in title and len(found) > 1
        assert not re.search(r"RAY_AUTH_TOKEN=|--token", title), "a command line shows no secret"
    assert len(bound) > 8 and ranks == 2, "gloo and the meeting place are among them"
    for ip, title in bound:
        address = ipaddress.ip_address(ip)
        assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, (ip, title)


def check_ray(run):
    """Other users of this machine: they cannot look into Ray's folder, and Ray refuses who has no token."""
    [folder] = set(re.findall(RAY_FOLDER, " ".join(run.processes().values())))
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    [server] = [pid for pid, title in run.processes().items() if "gcs_server" in title.partition(" ")[0]]
    [port] = [c.laddr.port for c in psutil.Process(server).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    environment = psutil.Process(server).environ()
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0", "Ray tells nobody"
    token = environment["RAY_AUTH_TOKEN"]
    own_token = Path.home() / ".ray" / "auth_token"
    assert not own_token.exists() or own_token.read_text().strip() != token, "each run has a token of its own"
    without = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    for settings, expected in (
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}, 0),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, 1),
        ({"RAY_AUTH_MODE": "disabled"}, 1),
    ):
        command = [sys.executable, "-c", KNOCK, f"127.0.0.1:{port}"]
        done = subprocess.run(command, env={**without, **settings}, capture_output=True, text=True, timeout=60)
        assert done.returncode == expected, (settings.keys(), done.stderr)
    return Path(folder)


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
