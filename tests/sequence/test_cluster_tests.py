"""Tests over blocks of episodes: several looks at one question, and sums that drift."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivvi.sequence.cluster_tests import Range, cumulative, zero_mean


def test_many_comparisons_are_corrected():
    rng = np.random.default_rng(0)
    few = zero_mean({"y": rng.normal(size=(10, 8))}, "nothing")
    assert few.compared == 8
    assert few.statistic.df == (1, 9)
    assert few.statistic.p_value < few.p_value <= 8 * few.statistic.p_value
    joint = zero_mean({"y": rng.normal(size=(24, 8)), "r": rng.normal(size=(24, 2))}, "nothing")
    assert joint.compared == 2
    assert joint.statistic.df in ((8, 16), (2, 22))
    assert zero_mean({"y": np.zeros((24, 2))}, "nothing") is None


def test_one_test_of_few_blocks_with_heavy_tails_keeps_its_size():
    """5% within four binomial standard errors; F alone rejects 2% of these."""
    rng, logs = np.random.default_rng(0), 2000
    rejected = 0
    for _ in range(logs):
        scores = rng.normal(size=(25, 1)) * rng.normal(size=(25, 1)) * rng.normal(size=(25, 3))
        rejected += zero_mean({"y": scores}, "nothing").p_value < 0.05
    assert abs(rejected / logs - 0.05) < 4 * np.sqrt(0.05 * 0.95 / logs)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 6))
def test_the_smallest_of_equal_tests_is_one_test(seed, d, copies):
    """Within five standard errors of the draws; Bonferroni would multiply it by the copies."""
    scores = np.random.default_rng(seed).normal(size=(40, d))
    one = zero_mean({"y": scores}, "nothing").p_value
    again = {str(i): scores * (i + 1) for i in range(copies)}
    test = zero_mean(again, "nothing")
    assert test.compared == copies
    assert test.p_value == pytest.approx(one, abs=5 * (one * (1 - one) / 999) ** 0.5 + 1e-3)


def test_the_smallest_of_independent_tests_has_its_law():
    """1 - (1 - p)^m for m of them, within five standard errors of the draws."""
    scores = np.linalg.qr(np.random.default_rng(3).normal(size=(60, 7)))[0]
    scores = np.linalg.qr(scores - scores.mean(axis=0))[0]  # uncorrelated, of mean zero
    shifted = scores + np.linspace(0.0, 0.03, 7)
    test = zero_mean({str(i): part[:, None] for i, part in enumerate(shifted.T)}, "nothing")
    exact = 1 - (1 - test.statistic.p_value) ** 7
    assert 0.01 < exact < 0.9
    assert test.p_value == pytest.approx(exact, abs=5 * (exact * (1 - exact) / 999) ** 0.5)


def test_cusum_has_the_law_of_all_orders():
    """All 5,040 orders of seven blocks; within five standard errors of the draws."""
    scores = np.random.default_rng(2).normal(size=(7, 3)) + np.linspace(-2, 2, 7)[:, None]
    scores -= scores.mean(axis=0)
    scaled = scores / np.sqrt(np.sum(scores**2, axis=0))

    def furthest(order):
        path = np.vstack([np.zeros(3), np.cumsum(scaled[list(order)], axis=0)])
        return np.ptp(path, axis=0).max()

    value = furthest(range(7))
    orders = [furthest(order) for order in itertools.permutations(range(7))]
    exact = np.mean(np.array(orders) >= value - 1e-12)
    test = cumulative(scores, ["a", "b", "c"], "nothing")
    assert 0.001 < exact < 0.5
    assert test.drawn == pytest.approx(exact, abs=5 * (exact * (1 - exact) / 999) ** 0.5 + 1e-3)
    assert test.p_value <= test.drawn


def test_cusum_of_many_blocks_looks_at_times_that_all_have():
    """Sums at 128 times of 1,000 blocks; a drift of the mean is found, none is not."""
    scores = np.random.default_rng(0).normal(size=(1000, 2))
    still = cumulative(scores - scores.mean(axis=0), ["a", "b"], "nothing")
    path = np.cumsum((scores - scores.mean(axis=0)) / scores.std(axis=0) / 1000**0.5, axis=0)
    at = np.vstack([np.zeros(2), path[np.arange(1, 129) * 1000 // 128 - 1]])
    expected = np.ptp(at, axis=0).max() + 2 * 0.5826 / 128**0.5
    assert still.statistic.value == pytest.approx(expected, rel=1e-9)
    scores[:, 1] += np.linspace(0.0, 1.0, 1000)
    moved = cumulative(scores - scores.mean(axis=0), ["a", "b"], "nothing")
    assert (moved.where, moved.p_value < 1e-6 < still.p_value) == ("b", True)


def test_the_range_of_a_bridge_has_the_tail_of_simulated_ones():
    """Kuiper's 5% point is 1.747; the share of simulated bridges beyond it agrees."""
    assert Range(1.747, "").p_value == pytest.approx(0.05, abs=2e-4)
    assert Range(0.3, "").p_value == 1.0
    steps = np.random.default_rng(0).normal(size=(2000, 2000)) / 2000**0.5
    walk = np.cumsum(steps - steps.mean(axis=1, keepdims=True), axis=1)
    beyond = np.mean(np.ptp(walk, axis=1) + 2 * 0.5826 / 2000**0.5 > 1.62)
    p = Range(1.62, "").p_value
    assert abs(beyond - p) < 4 * (p * (1 - p) / 2000) ** 0.5
