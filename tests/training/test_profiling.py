"""Profiles: traces of the chosen steps and of no others, with the phases in them, that harm nothing."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from training_builders import actor, assert_equal, group, mixed_groups, tiny, weights

from swingshift.cluster.device_parts import build_parts
from swingshift.cluster.specs import DeviceSpec
from swingshift.config.checks import check_config
from swingshift.config.loading import load_config
from swingshift.config.run_dir import profile_dir_of
from swingshift.config.schema import ProfilerConfig, RolloutCorrectionConfig
from swingshift.core.types import GenerationRequest, SamplingParams
from swingshift.engines.torch_engine import TorchEngine
from swingshift.errors import ConfigError, TrainerError
from swingshift.training.profiling import RolloutProfiler, Traces, TrainProfiler
from swingshift.training.worker import TorchTrainWorker


def traces(folder: Path, device: str = "hybrid-0", **options: object) -> Traces:
    return Traces(ProfilerConfig(tool="torch", **options), folder, device)


def trainer(folder: Path, **options: object) -> TorchTrainWorker:
    """One that trains with every phase there is."""
    return TorchTrainWorker(
        tiny(),
        actor(use_kl_loss=True),
        correction=RolloutCorrectionConfig(bypass_mode=False),
        profiler=TrainProfiler(traces(folder, **options)),
    )


def events(path: Path) -> list[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def names(path: Path) -> set[object]:
    return {event["name"] for event in events(path)}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


# --- the train worker ---------------------------------------------------------------------------------------


def test_each_call_of_a_chosen_step_is_traced_with_its_phases(tmp_path: Path):
    worker = trainer(tmp_path / "profile", steps=[2])
    for version in (0, 1, 1, 2):
        worker.train(mixed_groups(), version)
    assert files(tmp_path / "profile") == {"step_2-hybrid-0-1.json.gz", "step_2-hybrid-0-2.json.gz"}
    for name in files(tmp_path / "profile"):
        assert names(tmp_path / "profile" / name) >= {"train", "adv", "old_log_prob", "ref", "update_actor"}


def test_operators_lie_within_their_phase(tmp_path: Path):
    worker = trainer(tmp_path, steps=[1])
    worker.train(mixed_groups(), 0)
    spans = [e for e in events(tmp_path / "step_1-hybrid-0-1.json.gz") if e.get("ph") == "X"]
    update = next(e for e in spans if e["name"] == "update_actor")
    backward = [e for e in spans if "Backward" in str(e["name"])]
    assert backward
    for event in backward:
        assert update["ts"] <= event["ts"] and event["ts"] + event["dur"] <= update["ts"] + update["dur"]


def test_profiling_changes_nothing_that_is_trained(tmp_path: Path):
    profiled, plain = trainer(tmp_path, steps=[1]), trainer(tmp_path, steps=[9])
    first, second = profiled.train(mixed_groups(), 0), plain.train(mixed_groups(), 0)
    assert_equal(weights(profiled), weights(plain))
    assert first.metrics == second.metrics
    assert first.timings_s.keys() == second.timings_s.keys()


def test_without_a_tool_no_step_is_profiled(tmp_path: Path):
    off = Traces(ProfilerConfig(steps=[1]), tmp_path, "hybrid-0")
    worker = TorchTrainWorker(tiny(), actor(), profiler=TrainProfiler(off))
    worker.train(mixed_groups(), 0)
    assert files(tmp_path) == set()
    assert off.range("update_actor") is off.range("ref"), "a range of its own costs time"


@pytest.mark.parametrize("option", ["record_shapes", "with_stack"])
def test_options_reach_the_profiler(tmp_path: Path, option: str):
    for value in (True, False):
        worker = trainer(tmp_path / str(value), steps=[1], **{option: value})
        worker.train(mixed_groups(), 0)
    found, plain = ([*events(tmp_path / value / "step_1-hybrid-0-1.json.gz")] for value in ("True", "False"))
    if option == "record_shapes":
        assert any("Input Dims" in e.get("args", {}) for e in found)
        assert not any("Input Dims" in e.get("args", {}) for e in plain)
    else:
        assert any("worker.py" in str(e["name"]) for e in found)
        assert not any("worker.py" in str(e["name"]) for e in plain)


def test_a_call_that_fails_is_not_traced_and_the_next_one_is(tmp_path: Path):
    worker = trainer(tmp_path, steps=[1])
    with pytest.raises(TrainerError):
        worker.train([group(0, [0.0, None])], 0)
    worker.train(mixed_groups(), 0)
    assert files(tmp_path) == {"step_1-hybrid-0-2.json.gz"}


def test_a_folder_that_cannot_be_written_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "profile").write_text("in the way")
    worker = trainer(tmp_path / "profile", steps=[1])
    with caplog.at_level(logging.WARNING):
        worker.train(mixed_groups(), 0)
    assert "global_profiler.save_path" in caplog.text and "step_1-hybrid-0-1.json.gz" in caplog.text
    assert worker.train(mixed_groups(), 1).metrics


# --- a rollout device ---------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[TorchEngine]:
    """Traces steps 2 and 3, each for four decode steps."""
    profiler = RolloutProfiler(traces(tmp_path, "standalone-0", steps=[2, 3]), 4)
    engine = TorchEngine(tiny(), max_num_seqs=4, max_model_len=64, profiler=profiler)
    yield engine
    engine.close()


def roll_out(engine: TorchEngine, version: int, num_tokens: int) -> None:
    """Take over a version's weights and answer one prompt with them."""
    engine.abort().result()
    engine.start_weight_update(version).result()
    engine.finish_weight_update(version).result()
    engine.resume_generation().result()
    request = GenerationRequest(f"r{version}", (1, 2, 3), ((), ()), (num_tokens,) * 2, SamplingParams(num_tokens))
    assert [len(output.token_ids) for output in engine.generate(request).result()] == [num_tokens] * 2


def test_the_first_decode_steps_of_chosen_steps_are_traced(tmp_path: Path, engine: TorchEngine):
    for version in (0, 1, 2, 3):
        roll_out(engine, version, num_tokens=6)
    assert files(tmp_path) == {"step_2-standalone-0.json.gz", "step_3-standalone-0.json.gz"}
    for name in files(tmp_path):
        found = [e["name"] for e in events(tmp_path / name) if e.get("ph") == "X"]
        counts = {name: found.count(name) for name in ("prefill", "decode", "sampling")}
        assert counts == {"prefill": 1, "decode": 4, "sampling": 4}


def test_a_step_with_fewer_decode_steps_is_traced_to_its_end(tmp_path: Path, engine: TorchEngine):
    roll_out(engine, 1, num_tokens=3)
    assert files(tmp_path) == set()
    engine.abort().result()
    engine.start_weight_update(2).result()
    found = [e["name"] for e in events(tmp_path / "step_2-standalone-0.json.gz")]
    assert found.count("decode") == 3


def test_an_engine_that_ends_keeps_its_trace(tmp_path: Path, engine: TorchEngine):
    roll_out(engine, 1, num_tokens=2)
    engine.close()
    assert "decode" in names(tmp_path / "step_2-standalone-0.json.gz")


def test_trainer_and_engine_in_different_threads(tmp_path: Path, engine: TorchEngine):
    """As on a device: an engine's trace holds nothing of what another thread trains."""
    roll_out(engine, 1, num_tokens=2)
    trainer(tmp_path, steps=[9]).train(mixed_groups(), 1)
    engine.close()
    found = names(tmp_path / "step_2-standalone-0.json.gz")
    assert "decode" in found and "update_actor" not in found


def test_device_processes_profile_as_configured(tmp_path: Path):
    """A trainer's device its training alone, a rollout device its engine, both into the run directory."""
    tiny().save_pretrained(tmp_path / "model")
    run = tmp_path / "run"
    config = load_config(
        [],
        [
            f"trainer.default_local_dir={run}",
            "async_training.use_dynamic_resource_scheduling=true",
            "global_profiler.tool=torch",
            "global_profiler.steps=[1]",
            "global_profiler.num_decode_steps=2",
        ],
    )
    model = str(tmp_path / "model")
    hybrid = build_parts(config, DeviceSpec("hybrid-3", "cpu", 0, rank=0), "cpu", model, None)
    standalone = build_parts(config, DeviceSpec("standalone-7", "cpu", 1), "cpu", model, None)
    assert hybrid.worker is not None and hybrid.engine is not None and standalone.engine is not None
    hybrid.engine.wake_up().result()
    for engine in (hybrid.engine, standalone.engine):
        roll_out(engine, 0, num_tokens=4)
        engine.close()
    hybrid.worker.train(mixed_groups(), 0)
    assert files(run / "profile") == {"step_1-hybrid-3-1.json.gz", "step_1-standalone-7.json.gz"}
    found = [event["name"] for event in events(run / "profile" / "step_1-standalone-7.json.gz")]
    assert found.count("decode") == 2


# --- configuration ------------------------------------------------------------------------------------------


def test_traces_go_into_the_run_directory_unless_told_otherwise(tmp_path: Path):
    assert profile_dir_of(load_config([], ["trainer.default_local_dir=runs/a"])) == Path("runs/a/profile")
    chosen = load_config([], [f"global_profiler.save_path={tmp_path}"])
    assert profile_dir_of(chosen) == tmp_path
    assert load_config([], ["global_profiler.steps=null"]).global_profiler.steps == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["tool=nsys"], r"global_profiler\.tool='nsys': is not a choice; give torch or null"),
        (["steps=[0]"], r"global_profiler\.steps.*0.* whole number above 0"),
        (["steps=3"], r"global_profiler\.steps=3: .*a list"),
        (["num_decode_steps=-1"], r"global_profiler\.num_decode_steps=-1: .*at least 0"),
    ],
)
def test_values_that_cannot_be(overrides: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_config([], [f"global_profiler.{text}" for text in overrides])


def test_a_tool_needs_steps_and_a_folder(tmp_path: Path):
    (tmp_path / "file").write_text("")
    config = load_config([], ["global_profiler.tool=torch", f"global_profiler.save_path={tmp_path / 'file'}"])
    with pytest.raises(ConfigError) as caught:
        check_config(config)
    first, second = str(caught.value).splitlines()
    assert first.startswith("global_profiler.save_path=") and "is a file" in first
    assert second.startswith("global_profiler.steps=[]: ") and "list them" in second


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["steps=[2]"], "global_profiler.steps=[2]: is ignored unless global_profiler.tool=torch"),
        (["steps=[1, 500]", "tool=torch"], "the run ends after 4 steps, so [500] never come"),
    ],
)
def test_steps_that_are_never_profiled(overrides: list[str], warning: str):
    (found,) = check_config(load_config([], [f"global_profiler.{text}" for text in overrides]))
    assert warning in found


def test_steps_that_come_need_no_warning():
    assert check_config(load_config([], ["global_profiler.tool=torch", "global_profiler.steps=[1, 4]"])) == []
