"""Metric sinks: what they write can be read back, and whatever they do, training goes on."""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from swingshift.config import checks
from swingshift.config.checks import check_config
from swingshift.config.loading import load_config
from swingshift.errors import ConfigError
from swingshift.observe.background_sink import BackgroundSink
from swingshift.observe.loggers import open_loggers
from swingshift.observe.sinks import FanOut
from swingshift.runtime.ports import RunOutcome

ROWS = {
    1: {"critic/rewards/mean": 0.25, "dynamic_resource/mq_size": 3.0, "actor/lr": 1e-6},
    2: {"critic/rewards/mean": 0.5, "dynamic_resource/mq_size": 0.0, "actor/lr": 1e-6, "val/reward/mean": 0.75},
}


def log_rows(folder: Path, logger: str, outcome: RunOutcome = RunOutcome.FINISHED) -> None:
    config = load_config([], [f"trainer.logger=[{logger}]", "trainer.project_name=p", "trainer.experiment_name=e"])
    sinks = FanOut(open_loggers(config, folder))
    for step, row in ROWS.items():
        sinks.log(step, row)
    sinks.close(outcome)


# --- in the background --------------------------------------------------------------------------------------


class Recorder:
    """A sink that waits for ``go`` before it takes its first row."""

    def __init__(self, go: Event | None = None, fails: bool = False) -> None:
        self.go = go
        self.fails = fails
        self.steps: list[int] = []
        self.outcome: RunOutcome | None = None

    def log(self, step: int, row: object) -> None:
        if self.go is not None:
            self.go.wait()
        self.steps.append(step)
        if self.fails:
            raise OSError("no space left")

    def close(self, outcome: RunOutcome) -> None:
        self.outcome = outcome


def test_a_slow_sink_holds_nobody_up_and_loses_nothing() -> None:
    go = Event()
    recorder = Recorder(go)
    sink = BackgroundSink("slow", lambda: recorder)
    for step in range(100):
        sink.log(step, {})
    assert recorder.steps == [], "it still waits; the caller does not"
    go.set()
    sink.close(RunOutcome.INTERRUPTED)
    assert recorder.steps == list(range(100)) and recorder.outcome is RunOutcome.INTERRUPTED


def test_a_failing_sink_warns_once_and_gets_every_row(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(fails=True)
    sink = BackgroundSink("shaky", lambda: recorder)
    for step in range(5):
        sink.log(step, {})
    sink.close(RunOutcome.FAILED)
    assert recorder.steps == [0, 1, 2, 3, 4] and recorder.outcome is RunOutcome.FAILED
    assert [r.getMessage() for r in caplog.records] == ["metric sink shaky failed; training goes on without it"]


def test_a_sink_that_cannot_be_opened_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    def refuse() -> Recorder:
        raise ConnectionError("no such server")

    sink = BackgroundSink("far", refuse)
    for step in range(3):
        sink.log(step, {})
    sink.close(RunOutcome.FINISHED)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "no such server" in caplog.text


def test_rows_that_a_hung_sink_cannot_take_are_left_out_and_the_run_can_end(caplog: pytest.LogCaptureFixture) -> None:
    go = Event()
    recorder = Recorder(go)
    sink = BackgroundSink("hung", lambda: recorder, max_rows=2, close_timeout_s=0.01)
    for step in range(10):
        sink.log(step, {})
    assert sink.num_left_out >= 7, "one row is being written and two wait"
    sink.close(RunOutcome.FINISHED)
    messages = [r.getMessage() for r in caplog.records]
    assert len(messages) == 2
    assert "does not keep up" in messages[0] and "did not finish within 0.01 s" in messages[1]
    go.set()


# --- what each one writes -----------------------------------------------------------------------------------


def test_tensorboard_shows_what_was_logged(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_rows(tmp_path, "tensorboard")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {*ROWS[1], *ROWS[2]}
    for name in ROWS[2]:
        points = [(point.step, point.value) for point in events.Scalars(name)]
        assert points == [(step, pytest.approx(row[name])) for step, row in ROWS.items() if name in row]


def test_tensorboard_forgets_what_a_resumed_run_computes_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from swingshift.observe.tensorboard_sink import TensorBoardSink

    for steps in ((1, 2, 3), (2, 3)):
        sink = TensorBoardSink(tmp_path)
        for step in steps:
            sink.log(step, {"critic/rewards/mean": float(10 * len(steps) + step)})
        sink.close(RunOutcome.FINISHED)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(p.step, p.value) for p in events.Scalars("critic/rewards/mean")] == [(1, 31.0), (2, 22.0), (3, 23.0)]


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: after a header of 7 bytes, LevelDB's log format in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, block, header = file.read_bytes(), 32 * 1024, 7
    assert data.startswith(b":W&B")
    position, parts = header, b""
    while position + header <= len(data):
        if block - position % block < header:
            position += block - position % block
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + header])
        if kind == 0:
            break
        parts += data[position + header : position + header + length]
        position += header + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def test_wandb_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    log_rows(tmp_path, "wandb")
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = list(wandb_records(file))
    [run] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == ("p", "e")
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config["trainer"]["project_name"] == "p" and "actor_rollout_ref" in config
    found = {}
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            found[int(items["_step"])] = {name: value for name, value in items.items() if not name.startswith("_")}
    assert found == ROWS


@pytest.mark.parametrize(("outcome", "code"), [("finished", 0), ("failed", 1), ("interrupted", 130)])
def test_wandb_knows_how_the_run_ended(
    outcome: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    log_rows(tmp_path, "wandb", RunOutcome(outcome))
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    [ended] = [record.exit for record in wandb_records(file) if record.WhichOneof("record_type") == "exit"]
    assert ended.exit_code == code


@pytest.mark.parametrize(
    ("outcome", "status"), [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED")]
)
def test_mlflow_knows_how_the_run_ended(
    outcome: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    log_rows(tmp_path, "mlflow", RunOutcome(outcome))
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("p")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == status


def test_mlflow_keeps_the_run_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    log_rows(tmp_path, "mlflow")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("p")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("e", "FINISHED")
    assert run.data.params["trainer.project_name"] == "p" and len(run.data.params) > 60
    for name in ROWS[2]:
        history = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert history == [(step, row[name]) for step, row in ROWS.items() if name in row]
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


# --- the configuration --------------------------------------------------------------------------------------


def test_console_and_jsonl_need_no_further_sink(tmp_path: Path) -> None:
    assert open_loggers(load_config([], []), tmp_path) == []


def test_a_missing_package_is_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.LOGGER_PACKAGES, "wandb", "a_package_that_nobody_has")
    config = load_config([], ["trainer.logger=[console,wandb]"])
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    assert str(caught.value) == (
        "trainer.logger=['console', 'wandb']: the package a_package_that_nobody_has is not installed; "
        "pip install 'swingshift[wandb]', or leave wandb out"
    )


def test_an_unknown_logger_is_an_error() -> None:
    with pytest.raises(ConfigError, match="wandb"):
        load_config([], ["trainer.logger=[console,wandbb]"])
