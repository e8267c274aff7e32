"""The fits on numbers made up for them."""

from __future__ import annotations

import numpy as np
import pytest

from swingshift.sim.calibration import (
    fit_nonnegative,
    lognormal_of,
    mean_of,
    representative_lengths,
)
from swingshift.sim.workload import lognormal_lengths

RNG = np.random.default_rng(0)
NUM = 60
STEPS, TOKENS = RNG.uniform(80, 120, NUM), RNG.uniform(500, 1500, NUM)


def test_exact_numbers_give_exact_parameters() -> None:
    fit = fit_nonnegative({"base": STEPS, "token": TOKENS}, 0.02 * STEPS + 0.001 * TOKENS)
    assert fit.coefficients["base"].value == pytest.approx(0.02)
    assert fit.coefficients["token"].value == pytest.approx(0.001)
    assert fit.r2 == pytest.approx(1.0) and fit.relative_error < 1e-9 and fit.left_out == {}


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    covered = 0
    for seed in range(60):
        noise = np.random.default_rng(seed).normal(0, 0.1, NUM)
        fit = fit_nonnegative({"base": STEPS}, 0.02 * STEPS + noise)
        estimate = fit.coefficients["base"]
        covered += estimate.low <= 0.02 <= estimate.high
    assert 50 <= covered <= 60


def test_what_always_goes_together_is_not_told_apart() -> None:
    fit = fit_nonnegative({"base": STEPS, "token": 4 * STEPS}, 0.02 * STEPS + 0.001 * 4 * STEPS)
    assert fit.coefficients["base"].value == pytest.approx(0.024)
    assert fit.left_out == {"token": "cycles differ too little to tell it from base"}


def test_what_has_no_effect_is_left_out_and_nothing_is_negative() -> None:
    noise = np.random.default_rng(1).normal(0, 0.001, NUM)
    fit = fit_nonnegative({"base": STEPS, "token": TOKENS}, 0.02 * STEPS - 1e-5 * TOKENS + noise)
    assert fit.left_out == {"token": "no measurable effect"}
    never = fit_nonnegative({"base": STEPS, "token": 0 * TOKENS}, 0.02 * STEPS)
    assert never.left_out == {"token": "it never occurs"}


def test_a_mean_has_an_interval_unless_it_stands_alone() -> None:
    estimate = mean_of([1.0, 2.0, 3.0])
    assert estimate.value == 2.0 and estimate.high - 2.0 == pytest.approx(1.96 / 3**0.5)
    assert mean_of([2.0]) == type(estimate)(2.0, 2.0, 2.0)


@pytest.mark.parametrize(("median", "sigma", "longest"), [(7.5, 0.2, 11), (2000, 0.6, 8192), (2000, 1.2, 4000)])
def test_a_lognormal_is_found_from_its_cut_moments(median: float, sigma: float, longest: int) -> None:
    draw = lognormal_lengths(median, sigma, longest)
    lengths = np.array([draw(str(group), index) for group in range(2000) for index in range(8)])
    found = lognormal_of(float(lengths.mean()), float(lengths.std()), longest)
    assert found == pytest.approx((median, sigma), rel=0.06)


def test_representative_lengths_have_the_mean_of_all_responses() -> None:
    sample = [5] * 30 + [7] * 50 + [9] * 20
    assert np.mean(representative_lengths(sample, 6.8)) == pytest.approx(6.8, abs=0.02)
    tilted = representative_lengths(sample, 7.4)
    assert np.mean(tilted) == pytest.approx(7.4, abs=0.02)
    assert set(tilted) == {5, 7, 9}
    assert set(representative_lengths(sample, 100.0)) == {9}, "as near as the sample allows"
