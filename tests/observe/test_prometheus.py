"""Prometheus: legal names, true values, targets that follow the replicas, a dashboard that asks for what is there."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from live_states import ASLEEP, DEAD, KEPT, LENT, PAUSED, lent, replica
from prometheus_client.parser import text_string_to_metric_families

from swingshift.cli import main
from swingshift.config.loading import load_config
from swingshift.core.metric_table import METRICS, STEP_METRICS
from swingshift.errors import ConfigError
from swingshift.observe.live_run import LiveRun, check_exporter
from swingshift.observe.metric_document import WORKER_METRICS
from swingshift.observe.prometheus_metrics import LIVE_GAUGES, prometheus_name
from swingshift.observe.prometheus_server import PrometheusExporter
from swingshift.sim.replica import ReplicaCost
from swingshift.sim.workload import lognormal_lengths
from swingshift.sim.world import World, WorldConfig, simulate

LABELS = {"project": "p", "experiment": "e"}
NAMES = [*METRICS, *STEP_METRICS, *(name for name, _, _ in WORKER_METRICS)]
ROW = {name: float(i) for i, name in enumerate(NAMES)}
DASHBOARD = json.loads(files("swingshift.observe").joinpath("grafana_dashboard.json").read_text(encoding="utf-8"))

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[PrometheusExporter]:
    made = PrometheusExporter(tmp_path, "127.0.0.1", 0, LABELS)
    yield made
    made.close()


def fetch(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
    return text


def scrape(address: str, path: str = "/metrics") -> Samples:
    """Value by metric name and sorted labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(fetch(address, path)):
        assert family.type == "gauge" and family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def targets(folder: Path) -> list[tuple[str, str | None]]:
    groups = json.loads((folder / "prometheus_targets.json").read_text())
    assert all(len(group["targets"]) == 1 for group in groups)
    return [(group["labels"]["role"], group["labels"].get("replica")) for group in groups]


# --- names --------------------------------------------------------------------------------------------------


def test_every_metric_has_a_legal_name_of_its_own() -> None:
    names = {prometheus_name(name) for name in NAMES}
    live = {f"swingshift_{name}" for name, _, _ in LIVE_GAUGES}
    assert len(names | live) == len(NAMES) + len(LIVE_GAUGES)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names | live)
    assert prometheus_name("fully_async/total_wait_time_s") == "swingshift_fully_async_total_wait_time_s"


def test_every_metric_says_what_it_means(exporter: PrometheusExporter) -> None:
    exporter.show_row(ROW)
    families = text_string_to_metric_families(fetch(exporter.address))
    helps = {family.name: family.documentation for family in families}
    meanings = {name: metric.formula for name, metric in (METRICS | STEP_METRICS).items()}
    meanings |= {name: meaning for name, _, meaning in WORKER_METRICS}
    assert meanings.keys() == ROW.keys()
    assert {name for name, meaning in meanings.items() if meaning not in helps[prometheus_name(name)]} == set()


def test_the_documentation_names_every_gauge_of_the_moment(exporter: PrometheusExporter) -> None:
    exporter.show_row({})
    exporter.show_live(LENT)
    page = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    assert set(scrape(exporter.address)) <= set(re.findall(r"swingshift_\w+", page))


# --- the page -----------------------------------------------------------------------------------------------


def test_before_the_first_row_the_run_is_there(exporter: PrometheusExporter) -> None:
    assert scrape(exporter.address) == {"swingshift_run_info": {(("experiment", "e"), ("project", "p")): 1.0}}


def test_the_newest_row_and_the_newest_state_are_exported(exporter: PrometheusExporter) -> None:
    exporter.show_row({"critic/rewards/mean": 0.1})
    exporter.show_row({**ROW, "critic/rewards/mean": 0.25, "actor/pg_loss": float("inf")})
    exporter.show_live(LENT)
    found = scrape(exporter.address)
    assert {prometheus_name(name) for name in NAMES} <= found.keys()
    assert found["swingshift_critic_rewards_mean"] == {(): 0.25}
    assert found["swingshift_actor_pg_loss"] == {(): float("inf")}
    assert found["swingshift_live_queue_samples"] == {(): 12.0}
    assert found["swingshift_live_staleness_samples"] == {(): 31.0}
    assert found["swingshift_live_lent"] == {(): 1.0}
    assert found["swingshift_replica_in_flight_requests"] == {
        (("kind", "standalone"), ("replica", "standalone-0")): 4.0,
        (("kind", "hybrid"), ("replica", "hybrid-0")): 3.0,
    }
    lending = {dict(labels)["state"]: value for labels, value in found["swingshift_live_lending_state"].items()}
    assert lending == {"STANDALONE_ONLY": 0, "ACTIVATING": 0, "HYBRID_ACTIVE": 1, "DEACTIVATING": 0}
    doing = found["swingshift_live_devices"]
    assert len(doing) == 10 and sum(doing.values()) == 2
    assert doing[(("kind", "hybrid"), ("state", "rollout"))] == 1.0
    exporter.show_live(KEPT)
    found = scrape(exporter.address)
    assert found["swingshift_live_lent"] == {(): 0.0}
    assert found["swingshift_replica_serving"][(("kind", "hybrid"), ("replica", "hybrid-0"))] == 0.0


def test_what_global_steps_do_not_have_is_not_exported(exporter: PrometheusExporter) -> None:
    exporter.show_live(lent(queue_capacity=None, staleness_samples=None, max_required_samples=None))
    found = scrape(exporter.address)
    assert "swingshift_live_queue_samples" in found and "swingshift_live_staleness_samples" not in found


def test_a_replica_has_a_page_while_it_is_a_member(exporter: PrometheusExporter) -> None:
    exporter.show_live(LENT)
    page = scrape(exporter.address, "/replicas/hybrid-0/metrics")
    assert page == {
        "swingshift_replica_in_flight_requests": {(): 3.0},
        "swingshift_replica_serving": {(): 1.0},
    }, "its labels are those of the target"
    exporter.show_live(KEPT)
    for path in ("/replicas/hybrid-0/metrics", "/replicas/none/metrics", "/", "/metrics/x"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            fetch(exporter.address, path)
        caught.value.close()
        assert caught.value.code == 404


# --- targets ------------------------------------------------------------------------------------------------


def test_targets_follow_the_members(exporter: PrometheusExporter, tmp_path: Path) -> None:
    assert targets(tmp_path) == [("session", None)]
    exporter.show_live(LENT)
    assert targets(tmp_path) == [("session", None), ("replica", "standalone-0"), ("replica", "hybrid-0")]
    [_, _, hybrid] = json.loads((tmp_path / "prometheus_targets.json").read_text())
    assert hybrid == {
        "targets": [exporter.address],
        "labels": {
            **LABELS, "role": "replica", "replica": "hybrid-0", "kind": "hybrid",
            "__metrics_path__": "/replicas/hybrid-0/metrics",
        },
    }  # fmt: skip
    exporter.show_live(KEPT)
    assert targets(tmp_path) == [("session", None), ("replica", "standalone-0")]
    paused = lent(replicas=(replica("standalone-0", 0, PAUSED), replica("hybrid-0", 0, DEAD)))
    exporter.show_live(paused)
    assert targets(tmp_path) == [("session", None), ("replica", "standalone-0")], "paused is not gone"


def test_the_file_is_written_only_when_members_change(exporter: PrometheusExporter, tmp_path: Path) -> None:
    exporter.show_live(LENT)
    file = tmp_path / "prometheus_targets.json"
    written = file.stat()
    exporter.show_live(lent(num_queued=0, replicas=(replica("standalone-0", 9), replica("hybrid-0", 0))))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    exporter.show_live(lent(replicas=(replica("standalone-0"), replica("hybrid-0", 0, ASLEEP))))
    assert file.stat().st_ino != written.st_ino, "replaced as a whole"
    assert [path.name for path in tmp_path.iterdir()] == ["prometheus_targets.json"]


def test_after_the_end_there_is_nothing_to_scrape(tmp_path: Path) -> None:
    exporter = PrometheusExporter(tmp_path, "127.0.0.1", 0, LABELS)
    exporter.show_live(LENT)
    exporter.close()
    assert targets(tmp_path) == []
    with pytest.raises(OSError):
        fetch(exporter.address)


def test_during_a_run_targets_come_and_go_with_lending(tmp_path: Path) -> None:
    """The real session in virtual time, watched as a training run is."""
    config = load_config([], ["trainer.prometheus.port=0", "trainer.experiment_name=e"])
    live = LiveRun(tmp_path, config, None, 10, lambda: None)
    seen: list[tuple[bool, list[tuple[str, str | None]]]] = []

    def script(world: World) -> None:
        live.watch(world.session)
        live.start()

        def look() -> None:
            seen.append((world.session.controller.is_hybrid_active, targets(tmp_path)))
            asyncio.get_running_loop().call_later(0.05, look)

        asyncio.get_running_loop().call_later(0.0, look)

    cost = ReplicaCost(step_base_s=0.01, step_per_sequence_s=0.002, max_num_seqs=4)
    simulate(WorldConfig(lengths=lognormal_lengths(60, 0.8, 300), max_tokens=300, replica_cost=cost), script)
    live.stop()
    live.close()
    lent_targets = [("session", None), ("replica", "standalone-0"), ("replica", "hybrid-0")]
    assert any(is_lent for is_lent, _ in seen) and any(not is_lent for is_lent, _ in seen)
    for is_lent, found in seen:
        # While lending is under way the hybrid replica may be a member already, or no longer.
        assert (found == lent_targets) if is_lent else found in (lent_targets, lent_targets[:2], lent_targets[:1])
    assert any(found == lent_targets[:2] for _, found in seen)
    assert targets(tmp_path) == [] and not (tmp_path / "live.json").exists()


# --- where it listens ---------------------------------------------------------------------------------------


def test_a_port_in_use_is_an_error_of_the_configuration(exporter: PrometheusExporter) -> None:
    port = exporter.address.rpartition(":")[2]
    config = load_config([], [f"trainer.prometheus.port={port}"])
    with pytest.raises(ConfigError) as caught:
        check_exporter(config)
    assert str(caught.value).startswith(
        f"trainer.prometheus.port={port}: cannot listen on 127.0.0.1:{port} (Address already in use); give another"
    )


def test_an_address_that_is_not_ours_is_an_error() -> None:
    config = load_config([], ["trainer.prometheus.port=0", "trainer.prometheus.host=192.0.2.1"])
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        check_exporter(config)


def test_by_default_nothing_listens_and_if_so_only_here() -> None:
    prometheus = load_config([], []).trainer.prometheus
    assert prometheus.port is None and prometheus.host == "127.0.0.1"
    check_exporter(load_config([], []))


def test_a_port_out_of_range_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "trainer.prometheus.port=70000"]) == 2
    assert "trainer.prometheus.port=70000" in capsys.readouterr().err


# --- the dashboard ------------------------------------------------------------------------------------------


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_asks_only_for_what_is_exported(exporter: PrometheusExporter) -> None:
    exporter.show_row(ROW)
    exporter.show_live(LENT)
    exported = scrape(exporter.address)
    asked = {name for query in queries() for name in re.findall(r"swingshift_\w+", query)}
    assert len(asked) >= 25
    assert asked <= exported.keys(), asked - exported.keys()
    variable = DASHBOARD["templating"]["list"][1]["query"]
    assert re.findall(r"swingshift_\w+", variable["query"]) == ["swingshift_live_time_seconds"]


def test_the_dashboard_groups_by_labels_that_exist(exporter: PrometheusExporter) -> None:
    exporter.show_live(LENT)
    labels = {key for samples in scrape(exporter.address).values() for found in samples for key, _ in found}
    groups = json.loads(exporter.targets_path.read_text())
    of_targets = {label for group in groups for label in group["labels"]}
    for query in queries():
        for listed in re.findall(r"by ?\(([^)]*)\)", query):
            for label in re.split(r",\s*", listed):
                assert label in labels | of_targets, f"{label} in {query}"


def test_the_dashboard_is_laid_out_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        area = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not area & taken, panel["title"]
        taken |= area
