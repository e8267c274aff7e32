import runpy
from pathlib import Path

from swingshift.config.schema import DataConfig
from swingshift.tasks.prompts import load_prompts
from swingshift.tasks.rewards import RewardSpec, load_reward
from swingshift.tasks.tokenizer import load_tokenizer

FOLDER = Path(__file__).parents[2] / "examples" / "my_task"
DATA = str(FOLDER / "data.jsonl")


def test_the_data_suit_the_tiny_model_and_are_what_the_script_writes():
    tokenizer = load_tokenizer("builtin:tiny")
    prompts = load_prompts(DataConfig(train_files=[DATA]), tokenizer)
    assert len(prompts) == 200
    rows = runpy.run_path(str(FOLDER / "make_data.py"))["rows"]()
    assert [{k: p.data[k] for k in ("prompt", "answer", "num_digits")} for p in prompts] == rows
    for prompt in prompts:
        assert tokenizer.unk_token_id not in prompt.token_ids
        assert prompt.data["answer"] == max(prompt.data["prompt"].removesuffix(">"))


def test_the_reward_gives_partial_credit():
    reward = load_reward(RewardSpec(path=f"{FOLDER / 'reward.py'}:reward"))
    data = {"prompt": "3817>", "answer": "8", "data_source": DATA, "num_digits": 4}
    responses = ["8", "8x", "3", "33", "9", "x", "", ">"]
    scores = [reward("3817>", r, data) for r in responses]
    assert scores == [1.0, 0.9, 0.4, 0.4 - 0.1, 0.2, 0.0, 0.0, 0.0]
