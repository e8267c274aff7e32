"""A model named by hub id or with ``~``: its stop tokens, its weights, and its tokenizer in checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from swingshift.cluster.inputs import stop_token_ids
from swingshift.cluster.memory import model_sizes
from swingshift.config.loading import load_config
from swingshift.config.schema import ModelConfig
from swingshift.errors import ConfigError
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.training.tiny_model import tiny_llama

RUN = """
import asyncio, json, sys
from pathlib import Path
from swingshift.cluster.device_parts import build_parts
from swingshift.cluster.inputs import read_inputs
from swingshift.cluster.memory import model_sizes
from swingshift.cluster.specs import DeviceSpec
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.training.warm_start import WarmStart

found = {}
for path in sys.argv[1:]:
    config = load_config([DEFAULT_FILE], [f"actor_rollout_ref.model.path={path}"])
    inputs = read_inputs(config)
    model_path = asyncio.run(WarmStart(config, Path("init_model")).model_path())
    parts = build_parts(config, DeviceSpec("hybrid-0", "cpu", 0, rank=0), "cpu", model_path, None)
    folder = Path(f"saved_{len(found)}")
    folder.mkdir()
    parts.worker.save(folder)
    parts.engine.close()
    found[path] = {
        "stops": inputs.stop_token_ids,
        "params": model_sizes(config).num_params,
        "saved": sorted(file.name for file in folder.iterdir()),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model of sorts: its responses end at more tokens than the tokenizer's one."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(char_tokenizer(), ModelConfig(num_layers=1, hidden_size=16)).save_pretrained(folder)
    char_tokenizer().save_pretrained(folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "eos_token_id": [1, 5]}))
    return folder


def test_every_way_to_name_a_model_leads_to_all_of_it(model: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cache" / "hub" / "models--night--shift"
    shutil.copytree(model, cached / "snapshots" / "0123abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123abc")
    shutil.copytree(model, tmp_path / "m")
    cache = {"HF_HUB_CACHE": str(tmp_path / "cache" / "hub"), "HF_HUB_OFFLINE": "1"}
    paths = ("night/shift", "~/m", "./m", "m", str(tmp_path / "m"))
    done = subprocess.run(
        [sys.executable, "-c", RUN, *paths],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "HF_HOME": str(tmp_path / "cache"),
            **cache,
            "OMP_NUM_THREADS": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == list(paths)
    sizes = model_sizes(load_config([], [f"actor_rollout_ref.model.path={model}"]))
    for path in paths:
        assert found[path]["stops"] == [1, 5], path
        assert found[path]["params"] == sizes.num_params
        assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(found[path]["saved"]), path


@pytest.mark.parametrize(
    ("content", "stops"), [("{}", (1,)), ('{"eos_token_id": null}', (1,)), ('{"eos_token_id": 7}', (1, 7))]
)
def test_stop_tokens(content: str, stops: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    assert stop_token_ids(char_tokenizer(), tmp_path) == stops
    assert stop_token_ids(char_tokenizer(), None) == (1,)


@pytest.mark.parametrize(
    "content", ["", "[1]", "null", '{"eos_token_id": "</s>"}', '{"eos_token_id": [[1]]}', b"\xff"]
)
def test_stop_tokens_that_cannot_be_read(content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=r"model\.path.*generation_config\.json.*correct or remove"):
        stop_token_ids(char_tokenizer(), tmp_path)
