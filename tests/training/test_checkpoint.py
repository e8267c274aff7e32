"""Checkpoints: exact resume, and clear errors for what cannot be resumed."""

from __future__ import annotations

import json

import pytest
import torch
from training_builders import actor, assert_equal, mixed_groups, tiny, weights
from transformers import AutoModelForCausalLM

from swingshift.config.schema import RolloutCorrectionConfig
from swingshift.errors import CheckpointError
from swingshift.training.worker import TorchTrainWorker

CONFIG = {"ppo_mini_batch_size": 2, "optim": {"lr": 1e-2, "lr_warmup_steps": 9}}


def worker(dtype: torch.dtype = torch.float32, seed: int = 0, **model: int) -> TorchTrainWorker:
    return TorchTrainWorker(tiny(seed=seed, dtype=dtype, **model), actor(**CONFIG), seed=seed)


@pytest.fixture
def saved(tmp_path):
    w = worker()
    w.train(mixed_groups(), 0)
    w.save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps", [0, 2])
def test_resume_is_exact(tmp_path, dtype, steps):
    straight, resumed = worker(dtype), worker(dtype, seed=5)
    for i in range(steps):
        straight.train(mixed_groups(seed=i), i)
    straight.save(tmp_path)
    resumed.train(mixed_groups(seed=8), 0)  # state to be forgotten
    resumed.load(tmp_path)
    assert_equal(weights(straight), weights(resumed))
    for i in range(2):
        a = straight.train(mixed_groups(seed=10 + i), i)
        b = resumed.train(mixed_groups(seed=10 + i), i)
        assert a.metrics == b.metrics
    assert_equal(weights(straight), weights(resumed))


def test_saved_and_loaded_while_lent(tmp_path):
    straight, resumed = worker(), worker(seed=5)
    straight.train(mixed_groups(), 0)
    straight.offload()
    straight.save(tmp_path)
    straight.onload()
    resumed.offload()
    resumed.load(tmp_path)
    assert resumed.offloaded
    resumed.onload()
    for w in (straight, resumed):
        w.train(mixed_groups(seed=1), 1)
    assert_equal(weights(straight), weights(resumed))


def test_a_resume_in_mid_cycle_begins_a_cycle_with_the_restored_weights(tmp_path):
    """Rollout is given those weights first, under the same version; no copy of older ones is in the checkpoint."""
    correction = RolloutCorrectionConfig(bypass_mode=False)
    first, resumed, fresh = (TorchTrainWorker(tiny(seed=s), actor(**CONFIG), correction=correction) for s in range(3))
    first.train(mixed_groups(), 7)
    first.save(tmp_path)
    resumed.train(mixed_groups(seed=1), 7)  # its copy for version 7 is not that of the checkpoint
    for each in (resumed, fresh):
        each.load(tmp_path)
    assert not any("prox" in file.name for file in tmp_path.iterdir())
    for i in range(2):
        a, b = (each.train(mixed_groups(seed=2 + i), 7).metrics for each in (resumed, fresh))
        assert a == b
    assert_equal(weights(resumed), weights(fresh))


def test_model_is_a_hugging_face_folder(saved):
    model, info = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    w = worker()
    w.load(saved)
    assert_equal(weights(w), {n: p.detach() for n, p in model.named_parameters()})


def test_tokenizer_files_are_copied(tmp_path):
    source, target = tmp_path / "tokenizer", tmp_path / "checkpoint"
    source.mkdir()
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "model.safetensors"):
        (source / name).write_text(name)
    TorchTrainWorker(tiny(), actor(), tokenizer_dir=source).save(target)
    assert (target / "chat_template.jinja").read_text() == "chat_template.jinja"
    assert (target / "tokenizer.json").is_file()
    TorchTrainWorker(tiny(), actor()).load(target)  # the model's own file was not overwritten


def test_no_pickle_anywhere(saved):
    assert {f.suffix for f in saved.iterdir()} == {".json", ".safetensors"}


FILES = ["model.safetensors", "optimizer.safetensors", "optimizer.json", "rng.json"]


def assert_refused(folder, match):
    """The error names the file, and nothing was changed."""
    w = worker(seed=5)
    before = weights(w)
    with pytest.raises(CheckpointError, match=match):
        w.load(folder)
    assert_equal(before, weights(w))
    untouched = worker(seed=5)
    for each in (w, untouched):
        each.train(mixed_groups(), 0)
    assert_equal(weights(w), weights(untouched))


@pytest.mark.parametrize("name", FILES)
def test_missing_file(saved, name):
    (saved / name).unlink()
    assert_refused(saved, f"{name}: missing")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.95])
def test_truncated_file(saved, name, keep):
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[: int(keep * len(content))])
    assert_refused(saved, name)


def test_other_model(saved):
    w = worker(hidden=32)
    with pytest.raises(CheckpointError, match="has shape"):
        w.load(saved)
    with pytest.raises(CheckpointError, match="missing"):
        worker(layers=3).load(saved)
    with pytest.raises(CheckpointError, match="unknown"):
        worker(layers=1).load(saved)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("optimizer.json", {"format": 99, "num_steps": 2}),
        ("optimizer.json", {"format": 1, "num_steps": "two"}),
        ("optimizer.json", [1]),
        ("optimizer.json", {"format": 1, "num_steps": 0}),
        ("rng.json", {"bit_generator": "MT19937"}),
        ("rng.json", {}),
        ("rng.json", {"bit_generator": "PCG64", "state": {"state": "x", "inc": 1}}),
    ],
)
def test_wrong_content(saved, name, content):
    (saved / name).write_text(json.dumps(content))
    assert_refused(saved, "optimizer" if name == "optimizer.json" else name)


def test_other_precision(saved):
    """A bfloat16 trainer needs master weights that a float32 checkpoint does not have."""
    with pytest.raises(CheckpointError, match="missing"):
        worker(torch.bfloat16).load(saved)


def test_saving_into_nowhere(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        worker().save(tmp_path / "nowhere")


def test_unwritable_file_is_a_checkpoint_error(tmp_path):
    (tmp_path / "rng.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        worker().save(tmp_path)
