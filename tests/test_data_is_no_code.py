"""Checkpoints, models and data are read as data: no pickle anywhere, no code that comes with a model."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import swingshift
from swingshift.cluster.device_parts import _load
from swingshift.cluster.inputs import check_model
from swingshift.config.loading import load_config
from swingshift.config.schema import DataConfig, ModelConfig
from swingshift.errors import CheckpointError, ConfigError, DataError
from swingshift.runtime.checkpoint import read_state
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.tasks.files import load_file
from swingshift.training.tiny_model import tiny_llama

ROOT = Path(swingshift.__file__).parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {"torch.load", "np.load", "numpy.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
FORBIDDEN_NAMES = {"eval", "exec", "__import__"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def findings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.partition(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN_CALLS or called in FORBIDDEN_NAMES:
                yield called
            for keyword in node.keywords:
                allowed = (False, None)
                if keyword.arg in ("allow_pickle", "weights_only"):
                    yield keyword.arg
                if keyword.arg == "trust_remote_code" and isinstance(keyword.value, ast.Constant):
                    yield from ["trust_remote_code"] if keyword.value.value not in allowed else []


def test_the_search_finds_what_it_looks_for():
    bad = ["import pickle", "from dill import loads", "torch.load(x)", "eval(y)", "f(trust_remote_code=True)"]
    found = list(findings(ast.parse("\n".join([*bad, "np.array(z, allow_pickle=True)"]))))
    assert sorted(found) == ["allow_pickle", "dill", "eval", "pickle", "torch.load", "trust_remote_code"]


def test_nothing_of_ours_reads_pickles_or_runs_text():
    found = {name: list(findings(tree)) for name, tree in trees()}
    assert len(found) > 100 and not {name: bad for name, bad in found.items() if bad}


def test_code_that_comes_with_a_model_is_off():
    assert ModelConfig().trust_remote_code is False


# --- what is not code, tried ---------------------------------------------------------------------------------


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def trap(tmp_path):
    touched = tmp_path / "touched"
    payload = pickle.dumps(Trap(touched))
    pickle.loads(payload)
    assert touched.exists(), "the trap works"
    touched.unlink()
    yield payload
    assert not touched.exists(), "something ran what it should only read"


def test_a_model_without_safetensors_is_refused(tmp_path, trap):
    folder = tmp_path / "model"
    folder.mkdir()
    config = load_config([], [f"actor_rollout_ref.model.path={folder}"])
    tiny_llama(char_tokenizer(), ModelConfig(num_layers=1)).config.save_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(trap)
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        check_model(config)
    with pytest.raises(ConfigError, match=r"cannot load a causal language model"):
        _load(config, folder)


def test_a_checkpoint_that_is_a_pickle_is_refused(tmp_path, trap):
    (tmp_path / "state.json").write_bytes(trap)
    with pytest.raises(CheckpointError):
        read_state(tmp_path)


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.parquet", "train.pkl", "train.py"])
def test_data_that_are_a_pickle_are_refused(tmp_path, trap, name):
    (tmp_path / name).write_bytes(trap)
    with pytest.raises(DataError):
        load_file(str(tmp_path / name), DataConfig())


@pytest.mark.parametrize("tag", ["!!python/object/apply:pathlib.Path.touch", "!!python/object/new:pathlib.Path"])
def test_a_configuration_makes_no_objects(tmp_path, trap, tag):
    (tmp_path / "my.yaml").write_text(f"data:\n  task_options: {{x: {tag} [{tmp_path / 'touched'}]}}\n")
    with pytest.raises(ConfigError, match=r"my\.yaml"):
        load_config([tmp_path / "my.yaml"], [])
