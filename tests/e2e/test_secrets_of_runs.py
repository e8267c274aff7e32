"""What a run tells about secrets: nothing. Who can reach it is in ``test_local_ray``."""

import re
import shutil
from pathlib import Path

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
