"""Bad input: one clear line each that names the key, exit code 2, no traceback, nothing written."""

import pytest

from swingshift.cli import main

LENDING = "async_training.use_dynamic_resource_scheduling"
POLICY = "async_training.dynamic_schedule_policy"
ENGINE = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"

BAD = [
    # unknown keys
    (["trainer.staleness_threshold=0.5"], "trainer.staleness_threshold=0.5", "async_training.staleness_threshold?"),
    (["async_training.stalenes_threshold=1"], "async_training.stalenes_threshold=1", "did you mean"),
    (["data.trian_files=x"], "data.trian_files", "data.train_files"),
    (["critic.optim.lr=1e-5"], "critic.optim.lr", "actor_rollout_ref.actor.optim.lr"),
    (["rollout.n=4"], "rollout.n=4", "actor_rollout_ref.rollout.n?"),
    (["qqq=1"], "qqq=1", "unknown key"),
    ([f"{ENGINE}.tensor_model_parallel_size=2"], f"{ENGINE}.tensor_model_parallel_size", "nearest key"),
    (["~trainer.seed=1"], "~trainer.seed", "section.key=value"),
    # wrong types
    (["trainer.nnodes=3.5"], "trainer.nnodes=3.5", "whole number"),
    (["trainer.nnodes='3.5'"], "trainer.nnodes='3.5'", "whole number"),
    (["trainer.seed=abc"], "trainer.seed='abc'", "whole number"),
    (["async_training.staleness_threshold=abc"], "async_training.staleness_threshold='abc'", "number of at least 0"),
    (["trainer.nnodes=true"], "trainer.nnodes=true", "truth value"),
    ([f"{ENGINE}.top_p=on"], f"{ENGINE}.top_p=true", "truth value"),
    ([f"{LENDING}=maybe"], f"{LENDING}='maybe'", "true or false"),
    (["trainer.overwrite=2"], "trainer.overwrite=2", "true or false"),
    (["data.size="], "data.size=null", "whole number above 0"),
    (["trainer.seed=[1]"], "trainer.seed=[1]", "whole number"),
    (["reward=null"], "reward=null", "reward.name"),
    (["data=3"], "data=3", "not a section"),
    (["data.train_files.0=x"], "data.train_files", "a list"),
    (["data.val_files=[[a]]"], "data.val_files[0]", "each item text"),
    ([f"{ACTOR}.optim.betas=0.9"], f"{ACTOR}.optim.betas=0.9", "list of 2 numbers"),
    ([f"{ACTOR}.optim.betas=[0.9]"], f"{ACTOR}.optim.betas", "too few"),
    ([f"{ACTOR}.optim.betas=[0.9,0.9,0.9]"], f"{ACTOR}.optim.betas", "too many"),
    (["data.task_options=3"], "data.task_options=3", "a mapping"),
    (["data.task_options={a:3}"], "data.task_options", "space after each colon"),
    (["trainer.default_local_dir="], "trainer.default_local_dir=null", "text"),
    # out of range
    (["async_training.staleness_threshold=-0.1"], "async_training.staleness_threshold=-0.1", "at least 0"),
    ([f"{POLICY.replace('policy', 'deactivate_ratio')}=0"], "deactivate_ratio=0", "above 0 and of at most 1"),
    ([f"{POLICY.replace('policy', 'deactivate_ratio')}=2"], "deactivate_ratio=2", "above 0 and of at most 1"),
    ([f"{ACTOR}.ppo_mini_batch_size=0"], f"{ACTOR}.ppo_mini_batch_size=0", "above 0"),
    ([f"{ENGINE}.gpu_memory_utilization=1.5"], f"{ENGINE}.gpu_memory_utilization=1.5", "at most 1"),
    ([f"{ENGINE}.temperature=0"], f"{ENGINE}.temperature=0", "above 0"),
    ([f"{ENGINE}.top_k=0"], f"{ENGINE}.top_k=0", "-1"),
    ([f"{ACTOR}.optim.lr=.inf"], f"{ACTOR}.optim.lr=inf", "not finite"),
    ([f"{ACTOR}.optim.lr=.nan"], f"{ACTOR}.optim.lr=nan", "not finite"),
    ([f"{ACTOR}.optim.betas=[0.9,1]"], f"{ACTOR}.optim.betas", "below 1"),
    (["trainer.test_freq=-2"], "trainer.test_freq=-2", "at least -1"),
    (["rollout.nnodes=-1"], "rollout.nnodes=-1", "at least 0"),
    (["data.train_files=[]"], "data.train_files=[]", "too few"),
    (["actor_rollout_ref.model.num_heads=3"], "actor_rollout_ref.model.hidden_size=64", "num_heads=3"),
    (["trainer.default_local_dir=''"], "trainer.default_local_dir=''", "empty"),
    # not one of the choices
    (["trainer.device=gpu"], "trainer.device='gpu'", "auto, cpu, cuda"),
    (["trainer.logger=[console,comet]"], "trainer.logger[1]='comet'", "console, jsonl"),
    (["reward.name=exact_mach"], "reward.name='exact_mach'", "did you mean exact_match?"),
    ([f"{ENGINE}.name=vllm"], f"{ENGINE}.name='vllm'", "torch"),
    (["trainer.resume_mode=false"], "trainer.resume_mode=false", "disable"),
    (["reward.path=reward.py"], "reward.path='reward.py'", "file.py:function"),
    (["reward.path=reward.py:1st"], "reward.path='reward.py:1st'", "file.py:function"),
    # not even an override or a file
    (["trainer.seed"], "trainer.seed", "needs '='"),
    (["=3"], "=3", "section.key=value"),
    (["trainer..seed=3"], "trainer..seed=3", "section.key=value"),
    (["data.train_files[0]=x"], "data.train_files[0]=x", "section.key=value"),
    (["data.train_files=[a"], "data.train_files=[a", "not YAML"),
    (["trainer.seed=${trainer.sed}"], "trainer.seed=${trainer.sed}", "${trainer.seed}"),
    (["trainer.seed=${"], "trainer.seed", "broken interpolation"),
    (["trainer.seed=${trainer.seed}"], "trainer.seed", "Recursive"),
    (["nowhere.yaml"], "nowhere.yaml", "no such file"),
    (["."], ".", "cannot be read"),
    # contradictions
    (["rollout.nnodes=0", f"{LENDING}=false"], "rollout.nnodes=0", f"{LENDING}=true"),
    (["trainer.resume_mode=resume_path"], "trainer.resume_from_path=null", "checkpoint folder"),
    (["trainer.resume_mode=auto", "trainer.overwrite=true"], "trainer.overwrite=true", "resume_mode"),
    (["rollout.total_rollout_steps=7"], "rollout.total_rollout_steps=7", "8 groups"),
    (["trainer.test_freq=5"], "trainer.test_freq=5", "data.val_files"),
    ([f"{ENGINE}.response_length=20000"], f"{ACTOR}.ppo_max_token_len_per_gpu=16384", "at least 20016"),
    ([f"{ENGINE}.n=1"], f"{ENGINE}.n=1", "at least 2"),
    ([f"{POLICY}=defalt"], POLICY, "did you mean 'default'?"),
    ([f"{POLICY}=no_such_module:Policy"], POLICY, "no_such_module"),
    ([f"{POLICY}=collections:OrderedDict"], POLICY, "subclass"),
    ([f"{POLICY}_kwargs.speed=9"], POLICY, "speed"),
    ([f"{POLICY}_kwargs.only_hybrid=true"], f"{POLICY}_kwargs.only_hybrid", "rollout.nnodes"),
    # the run directory
    (["trainer.default_local_dir=/dev/null/run"], "trainer.default_local_dir=/dev/null/run", "another directory"),
    (["trainer.resume_mode=resume_path", "trainer.resume_from_path=gone"], "trainer.resume_from_path=gone", "folder"),
]


@pytest.mark.parametrize(
    ("argv", "key", "remedy"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_one_clear_line(argv, key, remedy, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *argv]) == 2
    out, err = capfd.readouterr()
    [line] = err.splitlines()
    assert line.startswith("error: ") and key in line and remedy in line
    assert out == "" and list(tmp_path.iterdir()) == []


FILES = [
    ("a: [1\n", "line 2", "correct the YAML"),
    ("trainer:\n  seed: 1\n  seed: 2\n", "line 3", "duplicate key seed"),
    ("- 1\n", "bad.yaml", "not a mapping"),
    ("trainer.seed: 1\n", "trainer.seed=1", "nest it"),
    ("trainer:\n  seed: x\n", "trainer.seed='x'", "bad.yaml"),
    ("async_training:\n", "async_training=null", "leave it out"),
]


@pytest.mark.parametrize(("text", "key", "remedy"), FILES)
def test_one_clear_line_about_a_file(text, key, remedy, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(text)
    assert main(["config", "check", "bad.yaml"]) == 2
    out, err = capfd.readouterr()
    [line] = err.splitlines()
    assert line.startswith("error: ") and key in line and remedy in line
    assert out == ""


@pytest.mark.parametrize(
    "argv", [[], ["trian"], ["config"], ["config", "chekc"], ["train", "--dry"], ["train", "--trainer.seed=3"]]
)
def test_bad_command_lines(argv, capfd):
    assert main(argv) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and "--help" in line


def test_several_mistakes_are_several_lines(capfd):
    assert main(["config", "check", "trainer.seed=x", "data.size=0", "nope=1"]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert [line.split("=")[0] for line in lines] == ["error: data.size", "error: nope", "error: trainer.seed"]
