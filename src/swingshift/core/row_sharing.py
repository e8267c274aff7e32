"""How many responses to one prompt share a row of a training micro-batch. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

MAX_SHARED_ROW = 4096
"""Tokens of a row that several responses share, at most: its mask grows with the square."""


def responses_per_row(prompt_length: int, lengths: Sequence[int], hidden_size: int) -> int:
    """How many responses should share a row for the least arithmetic.

    Sharing saves reading the prompt again but makes rows longer, and attention costs grow with the square:
    per layer, a token of a row of T costs about 24·hidden² in the linear layers plus 4·T·hidden in dense
    attention (half of that with causal attention, which skips what is hidden).
    """
    num, mean = len(lengths), sum(lengths) / len(lengths) - 1

    def cost(per_row: int) -> float:
        width = prompt_length + per_row * mean
        attention = width / (6 * hidden_size) / (2 if per_row == 1 else 1)
        return math.ceil(num / per_row) * width * (1 + attention)

    fitting = [k for k in range(2, num + 1) if prompt_length + k * mean <= MAX_SHARED_ROW]
    return min([1, *fitting], key=cost)


@lru_cache(maxsize=64)
def widest_shared_row(prompt_length: int, response_length: int, num_responses: int, hidden_size: int) -> int:
    """Tokens of the widest row with several responses, over prompts and responses up to these lengths; 0: none.

    Lengths of all sizes are tried, four for each doubling.
    """
    widest = 0
    for prompt in _sizes(prompt_length):
        for length in _sizes(response_length):
            per_row = responses_per_row(prompt, [length] * num_responses, hidden_size)
            if per_row > 1:
                widest = max(widest, prompt + per_row * (length - 1))
    return widest


def _sizes(largest: int) -> list[int]:
    steps = 4 * math.ceil(math.log2(largest)) + 1
    return sorted({max(1, round(largest / 2 ** (step / 4))) for step in range(steps)})
