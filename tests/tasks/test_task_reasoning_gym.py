import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.config.schema import DataConfig, RewardConfig
from swingshift.errors import ConfigError, DataError
from swingshift.tasks.char_tokenizer import char_tokenizer
from swingshift.tasks.prompts import load_prompts
from swingshift.tasks.reasoning_gym import load_reasoning_gym, pack, unpack
from swingshift.tasks.rewards import RewardSpec, load_reward, resolve_reward

TOKENIZER = char_tokenizer()


def config(name, **options):
    values = {"size": 8, "seed": 1, "max_prompt_length": 4096, **options}
    return DataConfig(train_files=[f"reasoning_gym:{name}"], **values)


@pytest.mark.parametrize("name", ["chain_sum", "gcd", "number_sequence", "arc_agi", "word_ladder"])
def test_rows_are_scored_by_their_data_set(name):
    # arc_agi needs its tuples back after JSON, word_ladder is not the same in every process.
    data = config(name, size=2)
    reward = load_reward(resolve_reward(RewardConfig(), data))
    for prompt in load_prompts(data, TOKENIZER):
        row = json.loads(json.dumps(dict(prompt.data)))
        assert row["data_source"] == f"reasoning_gym:{name}"
        assert reward(row["prompt"], f"  {row['answer']}\n", row) == 1.0
        assert reward(row["prompt"], f"so <answer>{row['answer']}</answer>.", row) == 1.0
        assert reward(row["prompt"], "~", row) < 1.0
        assert reward(row["prompt"], "", row) < 1.0


def test_size_seed_and_options_reach_the_data_set():
    few = load_reasoning_gym("chain_sum", config("chain_sum", task_options={"min_terms": 5, "max_terms": 5}))
    assert len(few) == 8 and all(row.prompt.count("+") + row.prompt.count(" - ") == 4 for row in few)
    assert [r.prompt for r in few] == [
        r.prompt
        for r in load_reasoning_gym("chain_sum", config("chain_sum", task_options={"min_terms": 5, "max_terms": 5}))
    ]
    one = {r.prompt for r in load_reasoning_gym("chain_sum", config("chain_sum", size=40))}
    val = {r.prompt for r in load_reasoning_gym("chain_sum", config("chain_sum", size=40), "val")}
    assert len(one & val) <= 2


def test_unknown_names_and_options():
    with pytest.raises(
        ConfigError, match=r"data\.train_files: reasoning-gym has no data set 'chain_sums'.*'chain_sum'"
    ):
        load_reasoning_gym("chain_sums", config("chain_sum"))
    for options in ({"no_such": 1}, {"min_terms": 9, "max_terms": 2}):
        with pytest.raises(ConfigError, match=r"data\.task_options: chain_sum refuses"):
            load_reasoning_gym("chain_sum", config("chain_sum", task_options=options))


def test_the_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigError, match=r"pip install 'swingshift\[reasoning-gym\]'"):
        load_reasoning_gym("chain_sum", config("chain_sum"))


def test_rows_of_another_source_cannot_be_scored():
    reward = load_reward(RewardSpec(name="reasoning_gym"))
    with pytest.raises(DataError, match=r"reward\.name=reasoning_gym.*set another reward\.name"):
        reward("p", "r", {"answer": 1, "prompt": "p"})


keys = st.one_of(st.text(max_size=8), st.sampled_from(["__tuple", "__dict"]), st.integers())
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda v: st.one_of(
        st.lists(v, max_size=3), st.lists(v, max_size=3).map(tuple), st.dictionaries(keys, v, max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_packing_survives_json(value):
    again = unpack(json.loads(json.dumps(pack(value))))
    assert again == value and repr(again) == repr(value)


def test_what_cannot_be_packed():
    with pytest.raises(DataError, match="row 3: holds a set"):
        pack({"a": {1, 2}}, "row 3")
