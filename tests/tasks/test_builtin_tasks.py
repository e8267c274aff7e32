import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.errors import ConfigError
from swingshift.tasks.builtin import BUILTIN_TASKS, get_task, split_of
from swingshift.tasks.char_tokenizer import CHARACTERS, VOCABULARY, char_tokenizer

TOKENIZER = char_tokenizer()
OPTIONS = [
    ("sort_digits", {}),
    ("sort_digits", {"min_digits": 2, "max_digits": 3}),
    ("add", {}),
    ("add", {"digits": 3, "scratch": True}),
    ("add", {"digits": 1}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_examples_are_right_deterministic_and_covered_by_the_tokenizer(name, options):
    task = get_task(name, options)
    examples = task.examples(50, seed=3)
    assert examples == get_task(name, options).examples(50, seed=3)
    assert examples != task.examples(50, seed=4)
    assert len(examples) == 50
    tokenizer = task.tokenizer()
    for example in examples:
        assert set(example) == {"prompt", "answer", "solution"}
        assert example["answer"] == _answer(name, example["prompt"])
        assert example["solution"].rpartition(">")[2] == example["answer"]
        text = example["prompt"] + example["solution"]
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def _answer(name: str, prompt: str) -> str:
    if name == "sort_digits":
        return "".join(sorted(prompt.removesuffix(">")))
    a, b = prompt.removesuffix("=").split("+")
    return str(int(a) + int(b))


def test_lengths_follow_the_options():
    lengths = {len(e["prompt"]) - 1 for e in get_task("sort_digits").examples(300, 0)}
    assert lengths == {4, 5, 6, 7, 8}
    lengths = {
        len(e["prompt"]) - 1 for e in get_task("sort_digits", {"min_digits": 3, "max_digits": 3}).examples(20, 0)
    }
    assert lengths == {3}
    assert all(len(e["prompt"]) == 6 for e in get_task("add").examples(50, 0))


def test_scratch_work_adds_column_by_column():
    task = get_task("add", {"scratch": True})
    example = next(e for e in task.examples(5000, 0) if e["prompt"] == "27+58=")
    assert example["solution"] == "7+8=15,2+5+1=8>85"
    assert task.reward_name == "final_answer"
    assert get_task("add").reward_name == get_task("sort_digits").reward_name == "exact_match"


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_train_and_val_never_overlap(train_seed, val_seed):
    task = get_task("add", {"digits": 1})
    train = {e["prompt"] for e in task.examples(60, train_seed)}
    val = {e["prompt"] for e in task.examples(20, val_seed, "val")}
    assert not train & val
    assert {split_of(p) for p in train} == {"train"}


def test_the_vocabulary_has_64_tokens_and_adds_nothing():
    assert len(TOKENIZER) == len(VOCABULARY) == 64
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.unk_token_id) == (0, 1, 2)
    assert TOKENIZER("52")["input_ids"] == [VOCABULARY.index("5"), VOCABULARY.index("2")]
    assert TOKENIZER.decode([VOCABULARY.index("7"), 1, 0], skip_special_tokens=True) == "7"
    assert TOKENIZER("É")["input_ids"] == [2]


@given(st.text(CHARACTERS))
def test_the_tokenizer_round_trips(text):
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) == len(text) or "<" in text  # "<eos>" written out is the token
    assert TOKENIZER.decode(ids) == text


def test_options_are_checked():
    for name, options, words in [
        ("sort_digit", {}, ["data.train_files", "did you mean 'sort_digits'"]),
        ("add", {"digit": 2}, ["data.task_options.digit", "did you mean 'digits'"]),
        ("add", {"digits": "2"}, ["data.task_options.digits='2'", "int"]),
        ("add", {"digits": 0}, ["data.task_options.digits=0", "1 to 18"]),
        ("add", {"digits": True}, ["data.task_options.digits=True", "int"]),
        ("sort_digits", {"min_digits": 9}, ["data.task_options.max_digits=8", "use 9"]),
        ("sort_digits", {"min_digits": 1}, ["data.task_options.min_digits=1", "2 to 40"]),
    ]:
        with pytest.raises(ConfigError) as error:
            get_task(name, options)
        assert all(word in str(error.value) for word in words), str(error.value)
        assert "\n" not in str(error.value)
    assert set(BUILTIN_TASKS) == {"sort_digits", "add"}


def test_importing_the_ring_loads_nothing_heavy():
    code = (
        "import sys, swingshift.tasks.prompts, swingshift.tasks.reward_pool, swingshift.tasks.tokenizer;"
        "heavy = {'torch', 'transformers', 'datasets', 'reasoning_gym', 'math_verify', 'ray'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
