"""Where a model is: a folder of one's own, or what the Hugging Face cache holds of a hub id. No network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import constants

from swingshift.errors import ConfigError
from swingshift.tasks.model_folder import fetch_model, find_model

WHOLE = ("config.json", "model.safetensors", "tokenizer.json")
SHARDS = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a model into a cache of the test's own, of which the hub's library believes that it is offline."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def add(*names: str, hub_id: str = "night/shift") -> Path:
        model = cache / f"models--{hub_id.replace('/', '--')}"
        snapshot = model / "snapshots" / "0123abc"
        snapshot.mkdir(parents=True)
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text("0123abc")
        for name in names:
            (snapshot / name).write_text(json.dumps(SHARDS) if "index" in name else "{}")
        return snapshot

    return add


def test_a_cached_hub_id_is_its_snapshot(cached: Callable[..., Path]) -> None:
    snapshot = cached(*WHOLE)
    assert find_model("night/shift") == fetch_model("night/shift") == snapshot


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "tokenizer.model", "vocab.txt"])
def test_shards_and_other_tokenizers(cached: Callable[..., Path], tokenizer: str) -> None:
    shards = ("model.safetensors.index.json", "model-1.safetensors", "model-2.safetensors")
    snapshot = cached("config.json", tokenizer, *shards)
    assert find_model("night/shift") == snapshot
    (snapshot / "model-2.safetensors").unlink()
    assert find_model("night/shift") is None


@pytest.mark.parametrize("missing", WHOLE)
def test_half_a_model_is_not_found_but_fetched(cached: Callable[..., Path], missing: str) -> None:
    """Offline, what there is must do: what is missing may be missing on the hub too."""
    snapshot = cached(*(name for name in WHOLE if name != missing))
    assert find_model("night/shift") is None
    assert fetch_model("night/shift") == snapshot


def test_a_link_into_nowhere_is_no_file(cached: Callable[..., Path], tmp_path: Path) -> None:
    snapshot = cached("config.json", "tokenizer.json")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "gone")
    assert find_model("night/shift") is None


@pytest.mark.parametrize("hub_id", ["night/other", "no id/at all", "-x/y", "a--b/c"])
def test_a_hub_id_that_is_not_cached(cached: Callable[..., Path], hub_id: str) -> None:
    cached(*WHOLE)
    assert find_model(hub_id) is None
    with pytest.raises(ConfigError) as caught:
        fetch_model(hub_id)
    text = str(caught.value)
    assert text.startswith(f"actor_rollout_ref.model.path={hub_id}: cannot be fetched") and "\n" not in text


def test_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: Callable[..., Path]) -> None:
    cached(*WHOLE, hub_id="models/mine")
    (tmp_path / "models" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / "models" / "mine"
    for path in ("models/mine", "./models/mine", "~/models/mine", str(own)):
        assert find_model(path) == fetch_model(path) == own, "a folder hides a hub id"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("./none", "does not exist"),
        ("none", "does not exist"),
        ("/none/at/all", "does not exist"),
        ("~/none", "does not exist"),
        ("~nobody-here/m", "no such user"),
        ("file", "is a file"),
        ("x" * 300, "cannot be read"),
        ("a\0b", "does not exist"),
    ],
)
def test_what_is_neither(path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for look in (find_model, fetch_model):
        with pytest.raises(ConfigError, match=why) as caught:
            look(path)
        assert str(caught.value).startswith("actor_rollout_ref.model.path=") and "\n" not in str(caught.value)
