"""Student's t distribution for whole degrees of freedom. Pure."""

from __future__ import annotations

import math

ABOVE = 1000.0
"""The two-sided 95% quantile of one degree of freedom is 12.7; others are smaller."""


def students_t(degrees: int, share: float = 0.95) -> float:
    """The number that ``|t|`` does not exceed with a probability of ``share``."""
    assert degrees >= 1 and 0.0 < share < 0.99
    low, high = 0.0, ABOVE
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if share_within(middle, degrees) < share else (low, middle)
    return high


def share_within(t: float, degrees: int) -> float:
    """P(|T| ≤ t), in closed form: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine = math.cos(angle)
    term = cosine if degrees % 2 else 1.0
    total = 0.0
    for power in range(degrees % 2, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if degrees % 2 else total
