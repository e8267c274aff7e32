"""The commands: what they print, how they end, and that they start fast."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from swingshift import __version__
from swingshift.cli import main
from swingshift.config.document import to_markdown
from swingshift.config.loading import DEFAULT_FILE, load_config
from swingshift.errors import DataError, TrainerError

ROOT = Path(__file__).parents[2]


def swingshift(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "swingshift", *argv], capture_output=True, text=True, timeout=60, **options
    )


@pytest.fixture
def launch(monkeypatch):
    """Stands where the launcher is; records how it was called and returns or raises what it is told."""
    calls = []
    module = types.ModuleType("swingshift.cluster.launch")
    module.calls, module.result = calls, 0

    def run_training(config, sources):
        calls.append((config, sources))
        if isinstance(module.result, BaseException):
            raise module.result
        return module.result

    module.run_training = run_training
    monkeypatch.setitem(sys.modules, "swingshift.cluster.launch", module)
    return module


def test_the_command_line_starts_without_heavy_imports():
    code = (
        "import sys, swingshift.cli\n"
        "assert swingshift.cli.main(['--help']) == 0\n"
        "heavy = {'torch', 'ray', 'transformers', 'datasets', 'numpy', 'pydantic', 'omegaconf', 'yaml', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_checking_a_configuration_needs_neither_torch_nor_ray():
    code = (
        "import sys, swingshift.cli\n"
        "assert swingshift.cli.main(['train', '--dry-run', 'trainer.device=cpu']) == 0\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_version_and_help(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"swingshift {__version__}\n"
    assert main(["train", "--help"]) == 0
    assert "--dry-run" in capfd.readouterr().out


def test_train_gets_the_demo_when_given_nothing(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train"]) == 0
    [(config, sources)] = launch.calls
    assert config == load_config([DEFAULT_FILE], [])
    assert sources == "the built-in demo"
    assert list(tmp_path.iterdir()) == [], "only the launcher writes"


def test_train_gets_files_and_overrides_in_order(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("trainer: {seed: 1}")
    (tmp_path / "lr=1").mkdir()
    (tmp_path / "lr=1" / "b.yaml").write_text("trainer: {seed: 2}")
    assert main(["-v", "train", "a.yaml", "data.seed=3", "./lr=1/b.yaml", "-q", "data.seed=4"]) == 0
    [(config, sources)] = launch.calls
    assert (config.trainer.seed, config.data.seed) == (2, 4)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 256, "files replace the built-in demo"
    assert sources == "a.yaml ./lr=1/b.yaml data.seed=3 data.seed=4"


def test_warnings_go_to_standard_error_unless_quiet(capfd):
    argv = ["config", "check", "actor_rollout_ref.rollout.top_p=0.9"]
    assert main(argv) == 0
    out, err = capfd.readouterr()
    assert out == "ok\n" and err.startswith("warning: actor_rollout_ref.rollout.top_p=0.9")
    assert main([*argv, "-q"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("result", "code", "line"),
    [
        (0, 0, None),
        (1, 1, None),
        (DataError("data.train_files=x.jsonl: is empty; give data"), 2, "error: data.train_files=x.jsonl: is empty"),
        (TrainerError("the train worker died"), 1, "error: the train worker died"),
        (TrainerError(), 1, "error: TrainerError"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(launch, capfd, tmp_path, monkeypatch, result, code, line):
    monkeypatch.chdir(tmp_path)
    launch.result = result
    assert main(["train"]) == code
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == (line is not None) and (line is None or lines[0].startswith(line))


def test_a_bug_keeps_its_traceback(launch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launch.result = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        main(["train"])


def test_dry_run_prints_the_plan_and_starts_nothing(launch, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--dry-run", "trainer.device=cpu", "rollout.n_gpus_per_node=3"]) == 0
    out, err = capfd.readouterr()
    plan = {line[:26].strip(): line[26:].split("  ")[0] for line in out.splitlines()}
    assert plan["mode"] == "dynamic" and plan["policy"] == "default"
    assert (plan["hybrid replicas"], plan["standalone replicas"]) == ("1", "3")
    assert (plan["required_samples"], plan["max_required_samples"], plan["buffer_samples"]) == ("8", "48", "16")
    assert plan["max_concurrent_samples"] == "12 standalone, 16 with hybrid"
    assert (plan["wait threshold"], plan["sync cycles"]) == ("19", "120")
    assert err == "" and launch.calls == [] and list(tmp_path.iterdir()) == []


def test_dry_run_warns_of_a_directory_that_cannot_be_used(capfd, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    argv = ["train", "--dry-run", "trainer.device=cpu", f"trainer.default_local_dir={tmp_path}"]
    assert main(argv) == 0
    assert capfd.readouterr().err.startswith("warning: trainer.default_local_dir=")
    assert main([argv[0], *argv[2:]]) == 2


def test_show_prints_what_loads_back(capfd, tmp_path):
    for options in ([], ["--defaults"]):
        assert main(["config", "show", "trainer.seed=7", *options]) == 0
        shown = tmp_path / "shown.yaml"
        shown.write_text(capfd.readouterr().out)
        assert load_config([shown], []) == load_config([DEFAULT_FILE], ["trainer.seed=7"])
    assert "sticky_cache_size: 10000" in shown.read_text()


def test_schema_is_json_schema(capfd):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capfd.readouterr().out)
    assert "AsyncTrainingConfig" in schema["$defs"] and schema["additionalProperties"] is False


def test_the_reference_page_is_up_to_date(capfd):
    assert main(["config", "schema", "--markdown"]) == 0
    assert capfd.readouterr().out == to_markdown()
    assert (ROOT / "docs" / "configuration.md").read_text() == to_markdown(), (
        "run: swingshift config schema --markdown > docs/configuration.md"
    )


def test_policies_are_listed(capfd):
    assert main(["policies"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} >= {"default", "fixed_ratio", "static_fully_async"}
    assert all(len(line.split("  ")) >= 3 for line in lines)


def test_policies_survive_a_broken_package(tmp_path):
    (tmp_path / "broken_policies.py").write_text("1 / 0\n")
    info = tmp_path / "broken_policies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-policies\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[swingshift.policies]\nbroken = broken_policies:Policy\n")
    done = swingshift("policies", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "entry point broken_policies:Policy" in done.stdout and "cannot be loaded" in done.stdout
    assert "static_fully_async" in done.stdout


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_error(unbuffered):
    for argv in (["config", "show", "--defaults"], ["config", "schema"], ["--help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "swingshift", *argv],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        os.close(write)
        # argparse itself drops its help when nobody reads it and the stream is not buffered.
        assert done.returncode in ((141, 0) if argv == ["--help"] else (141,))
        assert done.stderr == ""


def test_the_process_ends_with_the_code_and_the_line(tmp_path):
    done = swingshift("train", "trainer.nodes=2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: trainer.nodes=2: unknown key; did you mean trainer.nnodes?\n"
    assert list(tmp_path.iterdir()) == []


def test_policies_of_the_current_directory_can_be_named(tmp_path):
    (tmp_path / "mine.py").write_text("from swingshift.schedule import StaticFullyAsyncPolicy as Mine\n")
    command = Path(sys.executable).with_name("swingshift")
    argv = [command, "config", "check", "async_training.dynamic_schedule_policy=mine:Mine"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
