"""Data, reward functions and checkpoints: what ``train`` finds before it starts Ray or writes anything."""

from __future__ import annotations

import json

from .case import DEEP, LONG, Case, Content, Files, bad

_SMALL = "train -q trainer.device=cpu actor_rollout_ref.actor.ppo_mini_batch_size=2 trainer.default_local_dir=run"
_ROWS = "".join(json.dumps({"prompt": f"{i}>", "answer": "1"}) + "\n" for i in range(4))


def train(words: str, *parts: str, files: Files, code: int = 2) -> Case:
    return bad(f"{_SMALL} {words}", *parts, files=files, code=code)


def data(content: Content, *parts: str, name: str = "d.jsonl", words: str = "") -> Case:
    return train(f"data.train_files=[{name}] {words}", "data.train_files", name, *parts, files={name: content})


def reward(text: str | bytes, *parts: str, words: str = "", function: str = "reward") -> Case:
    files = {"d.jsonl": _ROWS, "mine.py": text}
    return train(f"data.train_files=[d.jsonl] reward.path=mine.py:{function} {words}", "reward", *parts, files=files)


def returning(text: str, *parts: str, words: str = "") -> Case:
    return reward(f"def reward(prompt, response, answer):\n    {text}\n", *parts, words=words)


def checkpoint(files: Files, *parts: str, code: int = 1) -> Case:
    words = "trainer.resume_mode=resume_path trainer.resume_from_path=old"
    return train(words, "old", *parts, files=files, code=code)


def resumed(state: Content, *parts: str) -> Case:
    """The newest checkpoint of the run that is to go on."""
    mark = "actor_rollout_ref: {}\nasync_training: {}\ntrainer: {}\n"
    files = {"run/config.yaml": mark, "run/metrics.jsonl": "", "run/checkpoints/global_step_4/state.json": state}
    return train("trainer.resume_mode=auto", "global_step_4", *parts, files=files, code=1)


DATA = [
    train("data.train_files=[gone.jsonl]", "gone.jsonl", "does not exist", files={}),
    train(f"data.train_files=[{LONG}.jsonl]", "data.train_files", "correct the path", files={}),
    train("'data.train_files=[~nobody-here/d.jsonl]'", "~nobody-here/d.jsonl", "no such user", files={}),
    train("'data.train_files=[builtin:sort]'", "'sort'", "sort_digits", files={}),
    train("data.task_options={min_digits:\\ x}", "data.task_options.min_digits='x'", "int", files={}),
    train("data.task_options={min_digits:\\ 99}", "data.task_options", files={}),
    train("data.task_options={digits:\\ 3}", "data.task_options.digits", files={}),
    data(None, "is a directory"),
    data("", "no rows"),
    data("\n\n", "no rows"),
    data(_ROWS, "unknown extension", name="d.csv"),
    data(b"\xff\xfe\x00", "not UTF-8"),
    data(_ROWS + '{"prompt": "1>", "ans', "line 5", "not valid JSON"),
    data("prompt,answer\n1>,1\n", "line 1", "not valid JSON"),
    data(f"{_ROWS}{DEEP}\n", "line 5", "not valid JSON"),
    data("[1, 2]\n", "line 1", "is a list"),
    data('"1>"\n', "line 1", "is a str"),
    data('{"question": "1>", "answer": "1"}\n', "no column 'prompt'", "data.prompt_key"),
    data('{"prompt": "1>"}\n', "no column 'answer'", "data.answer_key"),
    data('{"prompt": 3, "answer": "1"}\n', "is of type int"),
    data('{"prompt": null, "answer": "1"}\n', "is of type NoneType"),
    data('{"prompt": "", "answer": "1"}\n', "the prompt is empty"),
    data('{"prompt": [], "answer": "1"}\n', "empty list"),
    data('{"prompt": [{"role": "user"}], "answer": "1"}\n', "not a chat message"),
    data('{"prompt": [{"role": "user", "content": "1"}], "answer": "1"}\n', "no chat template"),
    data(json.dumps({"prompt": "1" * 40, "answer": "1"}) + "\n", "40 tokens", "data.max_prompt_length=16"),
    data("[{]", "not valid JSON", name="d.json"),
    data(DEEP, "not valid JSON", name="d.json"),
    data("[]", "no rows", name="d.json"),
    data(b"PAR1 not really PAR1", "Parquet", name="d.parquet"),
    data(b"", "Parquet", name="d.parquet"),
    train("data.train_files=[d.jsonl]", "ppo_mini_batch_size=2", "1 prompts", files={"d.jsonl": _ROWS[:32]}),
    train(
        "data.train_files=[d.jsonl] async_training.require_batches=4 rollout.total_rollout_steps=null",
        "async_training.require_batches=4",
        "4 × 1 epochs",
        files={"d.jsonl": _ROWS},
    ),
    train("data.val_files=[gone.jsonl] trainer.test_freq=1", "data.val_files", "gone.jsonl", files={}),
]

REWARDS = [
    train("reward.path=gone.py:reward", "reward.path=gone.py:reward", "correct the path", files={}),
    train(f"reward.path={LONG}.py:reward", "reward.path=", "correct the path", files={}),
    train("'reward.path=~nobody-here/r.py:reward'", "~nobody-here/r.py", "no such user", files={}),
    reward("def score(prompt, response, answer):\n    return 1\n", "no function 'reward'", "score"),
    reward("", "no function 'reward'", "it defines none"),
    reward("def reward(prompt, response, answer)\n    return 1\n", "SyntaxError", "mine.py:1"),
    reward(b"\xff\xfe\x00", "mine.py"),
    reward("raise RuntimeError('at import')\n", "at import", "mine.py:1"),
    reward("import no_such_module_anywhere\n", "no_such_module_anywhere", "mine.py:1"),
    reward("import sys\nsys.exit(3)\n", "SystemExit", "correct the file"),
    reward("import os\nos._exit(3)\n", "ended its process (exit code 3)"),
    reward("def reward(prompt):\n    return 1\n", "takes only 1", "def reward(prompt, response, answer"),
    reward("async def reward(prompt, response, answer):\n    return 1\n", "is an async function"),
    reward("reward = 3\n", "is a int, not a function"),
    returning("return float('nan')", "returned nan", "finite number"),
    returning("return '1.0'", "returned '1.0' of type str", "finite number"),
    returning("pass", "returned None", "finite number"),
    returning("raise KeyError(answer)", "KeyError", "mine.py:2"),
    returning("while True: pass", "did not return within reward.timeout_s=0.2", words="reward.timeout_s=0.2"),
]

CHECKPOINTS = [
    train("trainer.resume_mode=resume_path", "trainer.resume_from_path=null", "checkpoint folder", files={}),
    checkpoint({}, "no such folder", code=2),
    checkpoint({"old": "a file"}, "no such folder", code=2),
    checkpoint({"old": None}, "cannot read the checkpoint"),
    checkpoint({"old/state.json": None}, "cannot read the checkpoint"),
    checkpoint({"old/state.json": ""}, "cannot read the checkpoint"),
    checkpoint({"old/state.json": '{"format": 2, "step": 4, "que'}, "cannot read the checkpoint"),
    checkpoint({"old/state.json": b'{"format": 2, "step\xff\x00": 4}'}, "cannot read the checkpoint"),
    checkpoint({"old/state.json": DEEP}, "cannot read the checkpoint"),
    checkpoint({"old/state.json": '{"format": 1, "step": 4}'}, "not a checkpoint of this version", "format 2"),
    checkpoint({"old/state.json": '{"step": 4}'}, "not a checkpoint of this version", "format 2"),
    checkpoint({"old/state.json": "[2]"}, "not a checkpoint of this version", "format 2"),
    resumed('{"format": 2, "step": 4, "que', "cannot read the checkpoint"),
    resumed('{"format": 3}', "not a checkpoint of this version"),
]

CASES: list[Case] = [*DATA, *REWARDS, *CHECKPOINTS]
