"""What Prometheus sees of a run: the newest metric row and the newest ``LiveState``, as gauges.

Both are replaced as a whole by the control process, so the thread that answers scrapes reads them without a lock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from swingshift.core.lifecycle import LendingState
from swingshift.core.metric_table import METRICS, STEP_METRICS
from swingshift.core.types import DeviceState
from swingshift.observe.live_state import LiveState, ReplicaState, ReplicaStatus
from swingshift.observe.metric_document import WORKER_METRICS

PREFIX = "swingshift_"

_HELP: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"{text} ({unit})" if unit else text for name, unit, text in WORKER_METRICS},
        **{
            metric.name: f"{metric.formula} ({metric.unit}), per sync cycle: {metric.reduction}"
            for metric in (*METRICS.values(), *STEP_METRICS.values())
        },
    }
)

LIVE_GAUGES: tuple[tuple[str, str, Callable[[LiveState], float | None]], ...] = (
    ("live_time_seconds", "The clock of the run and of its timeline", lambda s: s.time_s),
    ("live_weight_version", "The trainer's weight version", lambda s: s.version),
    ("live_queue_samples", "Finished groups in the queue", lambda s: s.num_queued),
    ("live_queue_capacity_samples", "Groups the queue may hold", lambda s: s.queue_capacity),
    ("live_staleness_samples", "Groups counted against the staleness budget", lambda s: s.staleness_samples),
    ("live_max_required_samples", "The staleness budget in groups", lambda s: s.max_required_samples),
    ("live_in_flight_samples", "Groups being generated or scored", lambda s: s.num_inflight),
    ("live_max_concurrent_samples", "Groups that may be in flight", lambda s: s.max_concurrent_samples),
    ("live_lent", "1 while the trainer's devices are lent to rollout", lambda s: s.is_lent),
)


def prometheus_name(metric: str) -> str:
    """``fully_async/total_wait_time_s`` becomes ``swingshift_fully_async_total_wait_time_s``."""
    return PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", metric)


class RunCollector(Collector):
    """``run_labels`` (project, experiment) are on the info gauge alone: a scrape configuration adds its own."""

    def __init__(self, run_labels: Mapping[str, str], clock: Callable[[], float] = time.time) -> None:
        self._labels = dict(run_labels)
        self._clock = clock
        self._row: Mapping[str, float] = {}
        self._row_time_s: float | None = None
        self.live: LiveState | None = None

    def show_row(self, row: Mapping[str, float]) -> None:
        self._row, self._row_time_s = dict(row), self._clock()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        info = GaugeMetricFamily(f"{PREFIX}run_info", "Which run this is; always 1", labels=[*self._labels])
        info.add_metric([*self._labels.values()], 1.0)
        yield info
        yield from self._row_gauges()
        live = self.live
        if live is not None:
            yield from _live_gauges(live)

    def _row_gauges(self) -> Iterator[GaugeMetricFamily]:
        if self._row_time_s is not None:
            yield GaugeMetricFamily(
                f"{PREFIX}last_cycle_timestamp_seconds", "Unix time of the newest row", value=self._row_time_s
            )
        for name, value in self._row.items():
            yield GaugeMetricFamily(prometheus_name(name), _HELP.get(name, name), value=value)


def _live_gauges(live: LiveState) -> Iterator[GaugeMetricFamily]:
    for name, text, read in LIVE_GAUGES:
        value = read(live)
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, text, value=float(value))
    lending = GaugeMetricFamily(f"{PREFIX}live_lending_state", "1 for the state that lending is in", labels=["state"])
    for state in LendingState:
        lending.add_metric([state.value], float(live.lending == state))
    yield lending
    in_flight, serving = _replica_families(["replica", "kind"])
    for replica in live.replicas:
        _add_replica(in_flight, serving, replica, [replica.id, replica.kind])
    yield in_flight
    yield serving
    doing = GaugeMetricFamily(f"{PREFIX}live_devices", "Devices that are doing this", labels=["kind", "state"])
    for (kind, device_state), count in _count_devices(live.devices).items():
        doing.add_metric([kind, device_state], float(count))
    yield doing


def _count_devices(devices: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """By kind and state, every state of a kind present."""
    kinds = sorted({device.rpartition("-")[0] for device in devices})
    counts = {(kind, state.value): 0 for kind in kinds for state in DeviceState}
    for device, state in devices.items():
        counts[device.rpartition("-")[0], state] += 1
    return counts


def _replica_families(labels: list[str]) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(f"{PREFIX}replica_in_flight_requests", "Requests on the replica", labels=labels),
        GaugeMetricFamily(f"{PREFIX}replica_serving", "1 while the replica gets requests", labels=labels),
    )


def _add_replica(
    in_flight: GaugeMetricFamily, serving: GaugeMetricFamily, replica: ReplicaState, labels: list[str]
) -> None:
    in_flight.add_metric(labels, float(replica.num_inflight))
    serving.add_metric(labels, float(replica.status is ReplicaStatus.SERVING))


class ReplicaCollector(Collector):
    """One replica, without labels: those of its target in the scrape file say which it is."""

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = _replica_families([])
        _add_replica(*families, self._replica, [])
        yield from families
