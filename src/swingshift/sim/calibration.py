"""Fits of cost parameters to measured numbers. Pure: numbers in, numbers out; randomness arrives as a seed.

Every cost of a scenario is a coefficient: seconds a cycle took = Σ parameter × how often it was paid in that cycle.
Least squares with coefficients of at least 0 finds them. Columns that do not improve the fit are left out (by the
Bayesian information criterion), because two columns that always go together cannot be told apart. Intervals come
from fitting again to cycles drawn with replacement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

_RESAMPLES = 400
_EXACT = 1e-9
"""Relative residual below which a fit counts as exact."""
_TOGETHER = 0.999
"""Share of a column's variation that others explain, from which on they cannot be told apart."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95% interval."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class LinearFit:
    """``coefficients`` of the columns that were kept; ``left_out`` says why others were not.

    ``relative_error``: root of the mean squared residual over the mean. ``r2`` compares with a constant.
    """

    coefficients: dict[str, Estimate]
    left_out: dict[str, str]
    r2: float
    relative_error: float
    num_rows: int


def fit_nonnegative(columns: Mapping[str, Column], seconds: Column, *, seed: int = 0) -> LinearFit:
    """The first column is always kept, if it is not all zero; needs at least two rows."""
    assert len(seconds) >= 2 and all(len(column) == len(seconds) for column in columns.values())
    names = [name for name, column in columns.items() if column.any()]
    matrix = np.stack([columns[name] for name in names], axis=1)
    kept = _best_subset(matrix, seconds)
    chosen = matrix[:, kept]
    coefficients, residual = _solve(chosen, seconds)
    rng = np.random.default_rng(seed)
    draws = np.stack([_resampled(chosen, seconds, rng) for _ in range(_RESAMPLES)])
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    estimates = {
        names[index]: Estimate(float(value), float(min(a, value)), float(max(b, value)))
        for index, value, a, b in zip(kept, coefficients, low, high, strict=True)
    }
    left_out = {
        name: _why_left_out(columns[name], chosen, [names[i] for i in kept])
        for name in columns
        if name not in estimates
    }
    total = float(((seconds - seconds.mean()) ** 2).sum())
    error = math.sqrt(residual / len(seconds)) / float(seconds.mean())
    r2 = 1.0 - residual / total if total > 0.0 else 1.0
    return LinearFit(estimates, left_out, r2, error, len(seconds))


def _best_subset(matrix: Column, seconds: Column) -> list[int]:
    """Column indices, the first among them, with the best criterion and no negative coefficient."""
    num_rows, num_columns = matrix.shape
    floor = (_EXACT * float(seconds.mean())) ** 2
    best, best_score = [0], math.inf
    others = range(1, num_columns)
    for size in range(min(num_columns, num_rows)):
        for extra in itertools.combinations(others, size):
            chosen = [0, *extra]
            coefficients, residual = _least_squares(matrix[:, chosen], seconds)
            if (coefficients < 0.0).any():
                continue
            score = num_rows * math.log(residual / num_rows + floor) + len(chosen) * math.log(num_rows)
            if score < best_score:
                best, best_score = chosen, score
    return best


def _solve(matrix: Column, seconds: Column) -> tuple[Column, float]:
    """Least squares without negative coefficients, exactly: the best of all subsets of the few columns."""
    num_columns = matrix.shape[1]
    best, best_residual = np.zeros(num_columns), float((seconds**2).sum())
    for size in range(num_columns, 0, -1):
        for chosen in itertools.combinations(range(num_columns), size):
            found, residual = _least_squares(matrix[:, chosen], seconds)
            if (found >= 0.0).all() and residual < best_residual:
                best = np.zeros(num_columns)
                best[list(chosen)], best_residual = found, residual
    return best, best_residual


def _least_squares(matrix: Column, seconds: Column) -> tuple[Column, float]:
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0.0] = 1.0
    found = np.linalg.lstsq(matrix / scale, seconds, rcond=1e-10)[0]
    return found / scale, float(((matrix / scale @ found - seconds) ** 2).sum())


def _resampled(matrix: Column, seconds: Column, rng: np.random.Generator) -> Column:
    rows = rng.integers(len(seconds), size=len(seconds))
    return _solve(matrix[rows], seconds[rows])[0]


def _why_left_out(column: Column, chosen: Column, names: Sequence[str]) -> str:
    if not column.any():
        return "it never occurs"
    _, residual = _least_squares(chosen, column)
    if 1.0 - residual / float(((column - column.mean()) ** 2).sum() or residual or 1.0) > _TOGETHER:
        return f"cycles differ too little to tell it from {' and '.join(names)}"
    return "no measurable effect"


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean and its 95% interval (normal approximation; none from a single value)."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean())
    half = 1.96 * float(array.std(ddof=1)) / math.sqrt(len(array)) if len(array) > 1 else 0.0
    return Estimate(mean, max(0.0, mean - half), mean + half)


# --- response lengths -----------------------------------------------------------------------------------------------


def lognormal_of(mean: float, std: float, longest: float) -> tuple[float, float]:
    """Median and sigma of the lognormal that has this mean and standard deviation once cut at ``longest``."""
    wanted = min(std, 0.999 * math.sqrt(max(0.0, mean * (longest - mean))))
    low, high = 1e-4, 8.0
    for _ in range(60):
        sigma = (low + high) / 2
        mu = _mu_of(mean, sigma, longest)
        spread = _cut_moment(mu, sigma, longest, 2) - mean**2
        low, high = (sigma, high) if spread < wanted**2 else (low, sigma)
    return math.exp(_mu_of(mean, sigma, longest)), sigma


def _mu_of(mean: float, sigma: float, longest: float) -> float:
    low, high = math.log(mean) - 40.0, math.log(longest) + 40.0
    for _ in range(80):
        mu = (low + high) / 2
        low, high = (mu, high) if _cut_moment(mu, sigma, longest, 1) < mean else (low, mu)
    return mu


def _cut_moment(mu: float, sigma: float, longest: float, power: int) -> float:
    """Mean of ``min(X, longest) ** power`` for a lognormal X."""
    cdf, edge = NormalDist().cdf, (math.log(longest) - mu) / sigma
    body = cdf(edge - power * sigma)
    # The exponential may overflow where the factor beside it vanishes.
    inside = math.exp(min(700.0, power * mu + (power * sigma) ** 2 / 2)) * body if body > 0.0 else 0.0
    return inside + longest**power * (1.0 - cdf(edge))


def representative_lengths(sample: Sequence[int], mean: float, num: int = 200) -> list[int]:
    """``num`` equally likely lengths, distributed as ``sample`` but tilted (exponentially) to the mean of all."""
    lengths, counts = np.unique(np.asarray(sample, dtype=np.float64), return_counts=True)
    mean = float(np.clip(mean, lengths[0], lengths[-1]))
    low, high = -50.0 / float(lengths[-1]), 50.0 / float(lengths[-1])
    for _ in range(80):
        tilt = (low + high) / 2
        weights = counts * np.exp(tilt * (lengths - mean))
        low, high = (tilt, high) if float(weights @ lengths) < mean * float(weights.sum()) else (low, tilt)
    shares = np.cumsum(weights) / weights.sum()
    at = np.searchsorted(shares, (np.arange(num) + 0.5) / num)
    return [int(n) for n in lengths[np.minimum(at, len(lengths) - 1)]]
