import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.core.types import Prompt
from swingshift.errors import CheckpointError, DataError
from swingshift.tasks.prompts import DatasetPromptSource, epoch_order


def prompts(num):
    return [Prompt(str(i), (i,), {"answer": i}) for i in range(num)]


def drain(source):
    found = []
    while (prompt := source.next()) is not None:
        found.append(prompt)
    return found


sizes, epoch_counts, seeds = st.integers(1, 12), st.integers(1, 4), st.integers(0, 9)


@given(sizes, epoch_counts, seeds, st.booleans())
def test_each_epoch_is_a_permutation(num, epochs, seed, shuffle):
    source = DatasetPromptSource(prompts(num), epochs=epochs, seed=seed, shuffle=shuffle)
    assert source.remaining() == num * epochs
    found = drain(source)
    assert source.remaining() == 0 and source.next() is None
    for epoch in range(epochs):
        part = found[epoch * num : (epoch + 1) * num]
        assert sorted(p.token_ids[0] for p in part) == list(range(num))
        assert [p.uid for p in part] == [f"{epoch}-{p.token_ids[0]}" for p in part]
        if not shuffle:
            assert [p.token_ids[0] for p in part] == list(range(num))


@given(sizes, epoch_counts, seeds, st.booleans(), st.data(), st.one_of(st.none(), st.integers(1, 40)))
def test_resuming_at_any_cursor_goes_on_identically(num, epochs, seed, shuffle, data, limit):
    def make():
        return DatasetPromptSource(prompts(num), epochs=epochs, seed=seed, shuffle=shuffle, limit=limit)

    whole = drain(make())
    cut = data.draw(st.integers(0, len(whole)))
    first = make()
    for _ in range(cut):
        first.next()
    state = json.loads(json.dumps(first.state_dict()))
    second = make()
    second.load_state_dict(state)
    assert second.remaining() == len(whole) - cut
    assert drain(second) == whole[cut:]


@given(sizes, epoch_counts, st.integers(1, 50))
def test_whatever_comes_first_ends_it(num, epochs, limit):
    source = DatasetPromptSource(prompts(num), epochs=epochs, limit=limit)
    total = min(limit, num * epochs)
    assert source.remaining() == total
    found = drain(source)
    assert len(found) == total
    assert len({p.uid for p in found}) == total, "uids stay unique however often it goes round"


def test_epochs_and_seeds_differ_and_processes_agree():
    orders = {tuple(epoch_order(30, epoch, seed, True)) for epoch in range(3) for seed in range(3)}
    assert len(orders) == 9
    code = "from swingshift.tasks.prompts import epoch_order; print(epoch_order(30, 2, 7, True))"
    env = {"PYTHONHASHSEED": "123", "PATH": ""}
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
    assert json.loads(other.stdout) == epoch_order(30, 2, 7, True)


def test_the_original_prompts_stay_as_they_are():
    rows = prompts(2)
    DatasetPromptSource(rows).next()
    assert [p.uid for p in rows] == ["0", "1"]


def test_a_checkpoint_of_other_data_is_refused():
    state = DatasetPromptSource(prompts(3), seed=1).state_dict()
    for source in (DatasetPromptSource(prompts(4), seed=1), DatasetPromptSource(prompts(3), seed=2)):
        with pytest.raises(CheckpointError, match=r"data\.train_files"):
            source.load_state_dict(state)
    with pytest.raises(CheckpointError, match="cursor is None"):
        DatasetPromptSource(prompts(3), seed=1).load_state_dict({**state, "cursor": None})


def test_a_shorter_run_than_the_checkpoint_has_nothing_left():
    source = DatasetPromptSource(prompts(3), epochs=2)
    drain(source)
    shorter = DatasetPromptSource(prompts(3), epochs=1)
    shorter.load_state_dict(source.state_dict())
    assert shorter.remaining() == 0 and shorter.next() is None


def test_no_prompts():
    with pytest.raises(DataError, match=r"data\.train_files"):
        DatasetPromptSource([])
