"""GRPO advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_builders import reference_advantages

from swingshift.training.advantages import group_advantages

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


@given(rewards, st.booleans())
def test_matches_the_reference(values, norm):
    result = group_advantages(values, norm_by_std=norm)
    if len(set(values)) == 1:
        assert result is None
    else:
        assert result == pytest.approx(reference_advantages(values, norm), rel=1e-6, abs=1e-6)


@given(rewards)
def test_centred_and_in_the_order_of_rewards(values):
    result = group_advantages(values, norm_by_std=True)
    if result is not None:
        assert sum(result) == pytest.approx(0, abs=1e-5)
        assert all(a <= b for a, b in zip(np.array(result)[np.argsort(values)], sorted(result), strict=True))


@pytest.mark.parametrize("values", [[], [0.7], [0.1] * 3, [0.0, -0.0]])
def test_nothing_to_compare_is_no_signal(values):
    assert group_advantages(values, norm_by_std=True) is None


def test_known_values():
    assert group_advantages([1.0, 0.0, 0.0, 0.0], norm_by_std=False) == (0.75, -0.25, -0.25, -0.25)
    assert group_advantages([1.0, 0.0], norm_by_std=True) == pytest.approx((0.5**0.5, -(0.5**0.5)), rel=1e-5)
