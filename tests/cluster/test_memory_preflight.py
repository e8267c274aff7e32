"""``swingshift plan --memory`` and the same check before a run takes devices."""

import json
import logging
import subprocess
import sys

import pytest

from swingshift.cli import main
from swingshift.cluster import memory
from swingshift.cluster.memory_command import parse_size
from swingshift.config.loading import load_config
from swingshift.config.memory_plan import GIB, MIB
from swingshift.errors import ConfigError

ON_CPU = "trainer.device=cpu"


@pytest.fixture
def small_machine(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 1300 * MIB)


def test_the_command_shows_tables(capfd):
    assert main(["plan", "--memory", ON_CPU]) == 0
    out, err = capfd.readouterr()
    assert err == "" and "201,152 parameters as float32, devices: cpu" in out
    for words in ("one device", "trainer, training", "KV cache", "this machine's memory", "weight sync", "total"):
        assert words in out


def test_the_command_as_json(capfd, tmp_path):
    (tmp_path / "my.yaml").write_text("trainer: {device: cpu}\nactor_rollout_ref: {rollout: {max_num_seqs: 3}}\n")
    assert main(["plan", str(tmp_path / "my.yaml"), "data.max_prompt_length=20", "--memory", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert record["fits"] is True and record["num_slots"] == {"rollout": 3}
    assert record["machine_capacity_bytes"] == memory.machine_memory() > GIB // 4
    [rollout] = [d for d in record["devices"] if d["state"] == "rollout"]
    assert rollout["parts"]["KV cache"] == 3 * record["slot_bytes"] == 3 * (20 + 512) * 2 * 3 * 64 * 4


def test_the_command_needs_no_torch_on_a_cpu():
    code = (
        "import sys, swingshift.cli\n"
        "assert swingshift.cli.main(['plan', '--memory', 'trainer.device=cpu']) == 0\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_what_does_not_fit_is_refused_after_it_is_shown(capfd, small_machine):
    many = ["actor_rollout_ref.actor.ppo_mini_batch_size=2048"]
    assert main(["plan", "--memory", "-q", ON_CPU, *many]) == 2
    out, err = capfd.readouterr()
    assert "activations" in out
    [line] = err.splitlines()
    assert line.startswith("error: actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384: ")
    limit = line.rpartition("lower it to ")[2].split()[0]
    assert main(["plan", "--memory", ON_CPU, *many, line[7:].partition("=")[0] + f"={limit}"]) == 0
    capfd.readouterr()
    assert main(["plan", "--memory", ON_CPU, *many, "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["fits"] is False


def test_a_gpu_can_be_described(capfd):
    assert main(["plan", "--memory", "--json", "--device-memory", "80GB"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert (record["device_kind"], record["device_capacity_bytes"]) == ("cuda", 80 * 10**9)
    assert record["machine_capacity_bytes"] is None, "that of the described machine is not known"
    assert main(["plan", "--memory", ON_CPU, "--device-memory", "80GB"]) == 2
    assert "--device-memory=80GB" in capfd.readouterr().err


@pytest.mark.parametrize(("text", "size"), [("80e9", 80 * 10**9), ("1.5GiB", 3 * 2**29), (" 2 tb ", 2 * 10**12)])
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1GB", "0", "1e999", "1.2.3", "80 G"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="--device-memory="):
        parse_size(text)


def test_a_preset_of_the_simulator(capfd):
    assert main(["plan", "--memory", "qwen3.5-35b-a3b-dapo", "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    training, lent, rollout = record["devices"]
    assert training["parts"] == {
        "weights": round(35e9 * 2 / 16),
        "gradients": round(35e9 * 4 / 16),
        "optimizer": round(35e9 * 12 / 16),
    }
    # A memory share of 0.45 while lent and 0.7 otherwise, of 96 GB.
    assert lent["total_bytes"] == pytest.approx(0.45 * 96e9, rel=1e-4)
    assert rollout["total_bytes"] == pytest.approx(0.7 * 96e9, rel=1e-4)
    assert main(["plan", "--memory", "qwen3.5-35b-a3b-dapo"]) == 0
    assert "activations are not known" in capfd.readouterr().out


def test_a_scenario_that_does_not_fit(capfd, tmp_path):
    (tmp_path / "mine.yaml").write_text("cluster: {trainer_devices: 1}\n")
    assert main(["plan", "--memory", str(tmp_path / "mine.yaml")]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("error: cluster.trainer_devices=1: a trainer device while training takes 127.4 GiB")
    assert "give at least 2 devices" in line
    assert main(["plan", "--memory", str(tmp_path / "mine.yaml"), "cluster.trainer_devices=2"]) == 0


def test_without_memory_the_number_of_devices_is_needed(capfd):
    assert main(["plan", "rollout-bound-8"]) == 2
    assert capfd.readouterr().err.startswith("error: --devices: is missing")
    assert main(["plan", "rollout-bound-8", "--devices", "4", "--device-memory", "80GB"]) == 2
    assert "--memory" in capfd.readouterr().err


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "folder"])
def test_a_model_that_is_not_there(capfd, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert main(["plan", "--memory", ON_CPU, f"actor_rollout_ref.model.path={path}"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: actor_rollout_ref.model.path={path}: ") and "give a model folder" in line


# --- before training ----------------------------------------------------------------------------------------


def test_train_refuses_before_it_writes_or_starts_anything(capfd, small_machine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    many = ["actor_rollout_ref.actor.ppo_mini_batch_size=2048", "rollout.total_rollout_steps=null"]
    assert main(["train", "-q", ON_CPU, *many, "trainer.default_local_dir=run"]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("error: actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384: this machine's memory")
    assert list(tmp_path.iterdir()) == []
    import ray

    assert not ray.is_initialized()


def test_on_a_cluster_of_other_machines_it_is_only_a_warning(small_machine, caplog):
    config = load_config([], [ON_CPU])
    with pytest.raises(ConfigError, match="ppo_max_token_len_per_gpu"):
        memory.check_memory(config, "cpu", is_shared=False)
    with caplog.at_level(logging.WARNING):
        line = memory.check_memory(config, "cpu", is_shared=True)
    assert "ppo_max_token_len_per_gpu" in caplog.text
    assert line.startswith("memory expected: trainer device training ")


def test_a_container_has_less_memory_than_its_machine(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    whole = memory.machine_memory()
    assert whole > GIB // 4
    monkeypatch.setattr(memory, "_LIMITS", (str(limit), str(tmp_path / "missing")))
    for text, expected in (("max\n", None), (f"{GIB // 8}\n", GIB // 8)):
        limit.write_text(text)
        assert memory.machine_memory() == expected or (expected is None and memory.machine_memory() >= whole)
