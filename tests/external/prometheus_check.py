"""A real Prometheus scrapes a real run: ``make prometheus-test``.

Not among the tests that always run, since it needs Debian's package ``prometheus`` and a minute and a half.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from swingshift.observe.metric_rows import read_cycle_rows

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
# Cycles long enough for Prometheus, which takes up new targets every five seconds, to see every lending.
OVERRIDES = (
    "trainer.device=cpu", "trainer.prometheus.port=0", "trainer.experiment_name=scraped", "trainer.test_freq=1",
    "data.val_files=[builtin:sort_digits]", "data.size=1024", "trainer.total_epochs=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64", "async_training.trigger_parameter_sync_step=16",
    "rollout.total_rollout_steps=4096",
)  # fmt: skip
PATIENCE_S = 240.0


@contextmanager
def process(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        started = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
        started.wait(60)


class Prometheus:
    """Its HTTP interface, and patience."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def ask(self, query: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return result

    def targets(self) -> set[str]:
        """Of the run's targets those that answer: ``session`` or the name of the replica."""
        active = self.get("targets", state="active")["activeTargets"]
        return {t["labels"].get("replica", t["labels"]["role"]) for t in active if t["health"] == "up"}


def eventually(condition: Callable[[], Any], what: str, *needs: subprocess.Popen[bytes]) -> None:
    """Wait for the condition, but no longer than the processes it ``needs`` live."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except OSError:
            pass  # not up yet
        for needed in needs:
            assert needed.poll() is None, f"{needed.args} ended before {what}"
        assert time.monotonic() < deadline, f"not in {PATIENCE_S:g} s: {what}"
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.timeout(600)
def test_prometheus_scrapes_a_run(tmp_path: Path) -> None:
    binary = shutil.which("prometheus")
    assert binary is not None, "this test needs Prometheus; apt-get install prometheus"
    run, port = tmp_path / "run", free_port()
    scrape = {
        "job_name": "swingshift", "scrape_interval": "1s",
        "file_sd_configs": [{"files": [str(run / "prometheus_targets.json")], "refresh_interval": "5s"}],
    }  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scrape]}))
    command = str(Path(sys.executable).with_name("swingshift"))
    train = process(
        command, "train", str(DEMO), *OVERRIDES, f"trainer.default_local_dir={run}", log=tmp_path / "train.log"
    )
    server = process(
        binary, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", log=tmp_path / "prometheus.log",
    )  # fmt: skip
    prometheus = Prometheus(port)
    with train as training, server as scraping:
        eventually(lambda: "session" in prometheus.targets(), "the session is scraped", training, scraping)
        eventually(
            lambda: "standalone-0" in prometheus.targets(), "the standalone replica is scraped", training, scraping
        )
        eventually(lambda: "hybrid-0" in prometheus.targets(), "the lent replica is scraped", training, scraping)
        eventually(
            lambda: "hybrid-0" not in prometheus.targets(), "it is gone when the devices are taken back", training
        )
        eventually(
            lambda: prometheus.ask("swingshift_val_reward_mean"), "a validation is exported", training, scraping
        )
        check_dashboard(prometheus)
        print("targets seen:", sorted({s["metric"].get("replica", "session") for s in seen_targets(prometheus)}))
        assert training.wait(PATIENCE_S) == 0, (tmp_path / "train.log").read_text()
        eventually(lambda: not prometheus.targets(), "nothing is left to scrape", scraping)
        check_values(prometheus, list(read_cycle_rows(run / "metrics.jsonl")))


def check_dashboard(prometheus: Prometheus) -> None:
    """Every query is valid and finds something."""
    dashboard = json.loads(files("swingshift.observe").joinpath("grafana_dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in queries:
        found = prometheus.ask(query.replace("$experiment", "scraped"))
        assert found, f"nothing found: {query}"
    print(f"{len(queries)} queries of the dashboard answered")


def seen_targets(prometheus: Prometheus) -> list[dict[str, Any]]:
    seen = prometheus.ask("max_over_time(up[10m])")
    labels = [series["metric"] for series in seen]
    assert {(m["role"], m.get("kind")) for m in labels} == {
        ("session", None), ("replica", "standalone"), ("replica", "hybrid"),
    }  # fmt: skip
    assert all(m["experiment"] == "scraped" and m["project"] == "swingshift" for m in labels)
    return seen


def check_values(prometheus: Prometheus, rows: list[dict[str, Any]]) -> None:
    """What was scraped over the run is what the run wrote, save for rows that came and went between two scrapes."""
    for name in ("critic/rewards/mean", "dynamic_resource/resource_utilization"):
        exported = "swingshift_" + name.replace("/", "_")
        [series] = prometheus.ask(f"{exported}[10m]")
        scraped = {float(value) for _, value in series["values"]}
        assert scraped <= {row[name] for row in rows}
        assert len(scraped) >= len(rows) - 1
    [lent] = prometheus.ask("swingshift_live_lent[10m]")
    assert {value for _, value in lent["values"]} == {"0", "1"}
