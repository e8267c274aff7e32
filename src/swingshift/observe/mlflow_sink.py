"""Metric rows to MLflow: to ``MLFLOW_TRACKING_URI`` where that is set, else to ``mlflow.db`` in the run directory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from swingshift.runtime.ports import RunOutcome

_STATUSES = {RunOutcome.FINISHED: "FINISHED", RunOutcome.FAILED: "FAILED", RunOutcome.INTERRUPTED: "KILLED"}
_MAX_PARAMS_A_CALL = 100
_MAX_PARAM_LENGTH = 500
"""What every version of the tracking server takes."""


class MlflowSink:
    """One MLflow run in the experiment ``project``, with the configuration as parameters."""

    def __init__(self, tracking_uri: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param  # an extra
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient(tracking_uri)
        found = self._client.get_experiment_by_name(project)
        experiment_id = self._client.create_experiment(project) if found is None else found.experiment_id
        self._run_id = self._client.create_run(experiment_id, run_name=name).info.run_id
        params = iter([Param(key, str(value)[:_MAX_PARAM_LENGTH]) for key, value in _flat(config)])
        while chunk := list(islice(params, _MAX_PARAMS_A_CALL)):
            self._client.log_batch(self._run_id, params=chunk)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in row.items()]
        self._client.log_batch(self._run_id, metrics)

    def close(self, outcome: RunOutcome) -> None:
        self._client.set_terminated(self._run_id, status=_STATUSES[outcome])


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
