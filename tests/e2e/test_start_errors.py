"""Mistakes that only the real start finds: one clear line, exit code 2, nothing written."""

import json

import pytest
from e2e_runs import SMALL, reward_file

from swingshift.cli import main

ENGINE, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model.path"


def rows(folder, *prompts):
    file = folder / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": p, "answer": "1"}) + "\n" for p in prompts))
    return f"data.train_files={file}"


def gpt2(folder, tiny_model):
    """A model of a family the engine cannot run, with a tokenizer that can be loaded."""
    model = folder / "gpt2"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_text((tiny_model / name).read_text())
    (model / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    return f"{MODEL}={model}"


def without_weights(folder, tiny_model):
    model = folder / "empty"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (model / name).write_text((tiny_model / name).read_text())
    return f"{MODEL}={model}"


CASES = {
    "a missing file": (lambda folder, model: "data.train_files=gone.jsonl", ["gone.jsonl"]),
    "an empty data set": (lambda folder, model: rows(folder), ["data.train_files", "no rows"]),
    "a long prompt": (
        lambda folder, model: rows(folder, "1>", "123456789>"),
        ["data.max_prompt_length=8", "10 tokens"],
    ),
    "a large mini-batch": (lambda folder, model: "data.size=1", ["ppo_mini_batch_size"]),
    "a reward that raises": (
        lambda folder, model: reward_file(folder, "raise ValueError('oh no')"),
        ["my_reward.py:reward", "oh no"],
    ),
    "a reward with a missing import": (
        lambda folder, model: reward_file(folder, "import nowhere_at_all"),
        ["nowhere_at_all"],
    ),
    "no model folder": (lambda folder, model: f"{MODEL}=./gone", [f"{MODEL}=./gone", "does not exist"]),
    "a folder that is no model": (lambda folder, model: f"{MODEL}={folder}", [MODEL]),
    "a model of another family": (gpt2, [MODEL, "'gpt2'", "llama"]),
    "a model without weights": (without_weights, [MODEL, "weights"]),
}


@pytest.mark.parametrize(("make", "words"), CASES.values(), ids=CASES.keys())
def test_one_line_and_nothing_written(make, words, capfd, tmp_path, monkeypatch, tiny_model):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    changes = [f"{MODEL}={tiny_model}", make(tmp_path, tiny_model), "trainer.default_local_dir=run"]
    assert main(["train", str(SMALL), *changes]) == 2
    out, err = capfd.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith(("WARNING ", "warning: "))]
    assert len(lines) == 1 and lines[0].startswith("error: ") and all(word in lines[0] for word in words), err
    assert out == "" and list(work.iterdir()) == []


@pytest.mark.ray
def test_a_cluster_that_is_too_small(launch):
    run = launch("rollout.n_gpus_per_node=7").expect(2)
    assert "= 8: the cluster has 3 devices" in run.error_line() and not run.folder.exists()
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("address", "word"),
    [("127.0.0.1:1", "no Ray cluster answers"), ("ray://127.0.0.1:1", "host:port"), ("x", "host:port")],
)
def test_no_cluster_at_the_address(address, word, capfd, tmp_path, monkeypatch, tiny_model):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(SMALL), f"{MODEL}={tiny_model}", "trainer.default_local_dir=run"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: RAY_ADDRESS={address}") and word in line
    assert list(tmp_path.iterdir()) == []
