"""Building the tiny model in a process of its own."""

import asyncio
import json

import pytest

from swingshift.config.schema import ActorRolloutRefConfig, DataConfig, ModelConfig, SwingshiftConfig, WarmStartConfig
from swingshift.errors import TrainerError
from swingshift.training.warm_start import WarmStart


def config(steps, files=("builtin:sort_digits",), path="builtin:tiny"):
    warm_start = WarmStartConfig(steps=steps, batch_size=4)
    model = ModelConfig(path=path, hidden_size=8, num_layers=1, num_heads=2, warm_start=warm_start)
    return SwingshiftConfig(
        data=DataConfig(train_files=list(files)), actor_rollout_ref=ActorRolloutRefConfig(model=model)
    )


async def build(settings, folder):
    warm_start = WarmStart(settings, folder)
    try:
        await warm_start.start()
        return await warm_start.model_path()
    finally:
        await warm_start.kill()


def test_the_model_appears_whole_and_only_once(tmp_path):
    folder = tmp_path / "init_model"
    assert asyncio.run(build(config(1), folder)) == str(folder)
    shape = json.loads((folder / "config.json").read_text())
    assert (shape["hidden_size"], shape["num_hidden_layers"]) == (8, 1)
    assert (folder / "model.safetensors").is_file() and (folder / "tokenizer.json").is_file()
    assert [p.name for p in tmp_path.iterdir()] == ["init_model"]
    assert not WarmStart(config(1), folder).is_needed


def test_other_models_need_nothing(tmp_path):
    warm_start = WarmStart(config(1, path="/models/mine"), tmp_path / "init_model")
    assert not warm_start.is_needed
    assert asyncio.run(warm_start.model_path()) == "/models/mine"


def test_it_can_be_ended_at_any_time(tmp_path):
    async def start_and_kill():
        warm_start = WarmStart(config(10**9), tmp_path / "init_model")
        await warm_start.kill()
        await warm_start.start()
        await warm_start.kill()
        await warm_start.kill()

    asyncio.run(start_and_kill())
    assert not (tmp_path / "init_model").exists()


def test_a_failure_is_one_line(tmp_path):
    (tmp_path / ".init_model.partial").write_text("in the way")
    with pytest.raises(TrainerError, match=r"the warm start of builtin:tiny failed: .*FileExistsError") as caught:
        asyncio.run(build(config(1), tmp_path / "init_model"))
    assert "\n" not in str(caught.value)
