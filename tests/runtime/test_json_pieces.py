"""JSON in pieces is the JSON of the standard library, and no piece is long."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.core.types import FinishReason, Prompt, Sample, SampleGroup
from swingshift.runtime.checkpoint import group_to_json
from swingshift.runtime.json_pieces import MOST_ITEMS, json_pieces

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
LONG = st.integers(MOST_ITEMS - 2, 2 * MOST_ITEMS + 2).map(lambda n: list(range(n)))
VALUES = st.recursive(
    SCALARS | LONG,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers() | st.none() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_the_pieces_together_are_what_the_standard_library_writes(value: Any) -> None:
    assert "".join(json_pieces(value)) == json.dumps(value)


@pytest.mark.parametrize("value", [object(), {"a": [object()]}, [{"a": {1, 2}}], [*range(2000), object()]])
def test_what_is_no_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        list(json_pieces(value))


def test_no_piece_of_a_checkpoint_grows_with_its_groups_or_their_responses() -> None:
    def longest(num_tokens: int) -> int:
        tokens = tuple(150_000 for _ in range(num_tokens))
        sample = Sample(tokens, (-0.5,) * num_tokens, ((0, num_tokens),), FinishReason.LENGTH, reward=1.0)
        group = SampleGroup(0, Prompt("p", tokens, {"prompt": "x"}), (sample,) * 8, 0)
        state = {"queued": [group_to_json(group)] * 20, "metrics": {"a": 1.0}}
        return max(map(len, json_pieces(state)))

    assert max(longest(num_tokens) for num_tokens in (MOST_ITEMS, 2 * MOST_ITEMS, 5000)) < 10 * MOST_ITEMS
