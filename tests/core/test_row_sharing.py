"""How wide rows get that several responses share."""

import pytest

from swingshift.core.row_sharing import MAX_SHARED_ROW, responses_per_row, widest_shared_row


@pytest.mark.parametrize(
    ("prompt", "response", "n", "hidden"),
    [(16, 11, 16, 64), (512, 512, 8, 64), (512, 512, 8, 4096), (2000, 100, 4, 1024), (1, 1, 2, 64), (8, 3, 1, 64)],
)
def test_no_row_of_any_length_is_wider_by_far(prompt, response, n, hidden):
    widest = widest_shared_row(prompt, response, n, hidden)
    found = 0
    for p in range(1, prompt + 1, max(1, prompt // 23)):
        for r in range(1, response + 1, max(1, response // 23)):
            per_row = responses_per_row(p, [r] * n, hidden)
            if per_row > 1:
                found = max(found, p + per_row * (r - 1))
    assert found <= 1.25 * widest and widest <= MAX_SHARED_ROW
    assert (widest == 0) == (found == 0)


def test_long_responses_share_no_row():
    assert widest_shared_row(16, 8192, 8, 64) < 1000, "only short responses do"
    assert responses_per_row(16, [8192] * 8, 64) == 1
