"""Closed by default: who can reach a run, and what it tells about secrets."""

import ipaddress
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.ray

SECRET = "q8Zt3vN0aWx71LmPz5Kd2"
FROM_ENVIRONMENT = "Jw3kfT9sQ1xVb7Yh2RcM"

POLICY = '''
import logging

from swingshift.schedule import StaticFullyAsyncPolicy


class Careless(StaticFullyAsyncPolicy):
    """Needs a key, talks about it, and fails because of it."""

    def __init__(self, deactivate_ratio=0.5, only_hybrid=False, api_key=""):
        super().__init__(deactivate_ratio, only_hybrid)
        self.api_key = api_key

    def update_after_step(self, global_steps, ctx):
        logging.getLogger("swingshift.mine").info("asking with %s", self.api_key)
        if global_steps > 1:
            raise ValueError(f"401 Unauthorized for {self.api_key}")
'''

KNOCK = """
import sys
from ray._raylet import GcsClient

try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)
except Exception as error:
    sys.exit(f"refused: {type(error).__name__}")
"""


def test_nobody_else_reaches_a_run(launch_own):
    """Two trainer ranks that meet, an engine, Prometheus, Ray: every port of every process is on loopback."""
    run = launch_own("trainer.n_gpus_per_node=2", "trainer.prometheus.port=0", "rollout.total_rollout_steps=40")
    run.wait_for_output("ready after")
    os.kill(run.process.pid, signal.SIGSTOP)  # while we look around
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
    check_ray(run)
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700
    os.kill(run.process.pid, signal.SIGCONT)
    run.expect(0)


def check_ray(run):
    """Other users of this machine: they cannot look into Ray's folder, and Ray refuses who has no token."""
    [folder] = set(re.findall(r"/tmp/swingshift-ray-\w+", " ".join(run.processes().values())))
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


def test_a_run_keeps_its_secrets(launch_own, tmp_path):
    (tmp_path / "careless.py").write_text(POLICY)
    run = launch_own(
        "async_training.dynamic_schedule_policy=careless:Careless",
        f"async_training.dynamic_schedule_policy_kwargs.api_key={SECRET}",
        "trainer.project_name=run-${oc.env:SERVICE_PASSWORD}",
        "trainer.logger=[jsonl]",
        "rollout.total_rollout_steps=24",
        environment={"SERVICE_PASSWORD": FROM_ENVIRONMENT},
    )
    assert run.wait() != 0
    assert "401 Unauthorized for ***" in run.summary["exit_reason"]
    assert "asking with ***" in run.log and "dynamic_schedule_policy_kwargs.api_key=***" in run.log
    config = (run.folder / "config.yaml").read_text()
    assert "api_key: '***'" in config and "project_name: run-***" in config
    [ray_logs] = set(re.findall(r"its logs are in (/tmp/swingshift-ray-\w+)", run.log))
    files = [path for folder in (run.folder, Path(ray_logs)) for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 16
    for path in files:
        content = path.read_bytes()
        assert SECRET.encode() not in content and FROM_ENVIRONMENT.encode() not in content, path
    shutil.rmtree(ray_logs)
    # The configuration a run leaves behind does not start another one with a mask for a key.
    again = launch_own(files=[run.folder / "config.yaml"], folder=tmp_path / "again")
    again.expect(2)
    assert "dynamic_schedule_policy_kwargs.api_key=***" in again.stderr and not again.folder.exists()
