"""Descent-ascent in the paper's cells beyond convergence: units, free directions, the sign."""

import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import ivvi
from helpers import ROOT
from ivvi import SGDA, linear
from ivvi.estimators import Exact
from ivvi.estimators.sgda.schedules import ConstantSteps
from ivvi.features.design import Design
from ivvi.moments import compute_moments
from ivvi.simulators.catalogue import load_factors

pytestmark = pytest.mark.thorough

SHARED = ROOT.parent / "shared/data/ml-1m/ratings.parquet"
RATINGS = Path(os.environ.get("IVVI_MOVIELENS", SHARED))
RECOMMENDERS = list(product(("recommender", "recommender-revised"), ("I", "II", "III")))
LINEAR = list(product((5, 10, 20), ("I", "II", "III", "IV", "V", "VI")))


def but_quick(cells, *quick):
    """Mark all cells but the quick ones as slow."""
    return [
        pytest.param(*cell, marks=() if cell in quick else pytest.mark.slow, id=f"{cell}")
        for cell in cells
    ]


def moments_of_log(log):
    return compute_moments(log, Design.build(linear(), linear(), log.roles))[0]


def identified_error(W, exact):
    """Return the root mean square of W - exact.W over its identified directions, in se."""
    size, vectors = np.linalg.eigh(exact.bread)
    known = size > 1e-12 * size[-1]
    assert len(size) - known.sum() == len(exact.null)
    se = np.sqrt(np.outer(np.diag(exact.noise_cov), size[known]))
    return np.sqrt(np.mean(((W - exact.W) @ vectors[:, known] / se) ** 2))


def assert_arrives(log):
    moments = moments_of_log(log)
    exact = Exact().solve(moments)
    assert len(exact.null) == 1  # the instrument's total is fixed
    one, five = (SGDA(passes=passes).solve(moments, log) for passes in (1, 5))
    assert (one.trace.status, five.trace.status) == ("converged", "converged")
    for found in (one, five):
        assert found.trace.error == pytest.approx(identified_error(found.W, exact), rel=1e-6)
        assert np.abs(found.W @ exact.null.T).max() < 1e-9  # minimum norm, as the closed form
    assert identified_error(one.W, exact) <= 1.0
    assert identified_error(five.W, exact) <= 0.3


@pytest.mark.parametrize(("name", "setting"), but_quick(RECOMMENDERS, ("recommender-revised", "I")))
def test_auto_arrives_in_the_recommender_cells(name, setting, simulated):
    assert_arrives(simulated(name, None, setting))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setting"), RECOMMENDERS)
def test_auto_arrives_in_the_movielens_cells(name, setting):
    if not RATINGS.exists():
        pytest.skip("MovieLens 1M is not here")
    assert_arrives(
        ivvi.make_env(name, setting=setting, ratings=load_factors(RATINGS)).collect(seed=0)
    )


def test_units_change_nothing_with_a_transient(simulated):
    """One state times 1,000 and one instrument times 0.001; x_0 = 10 is far from the rest."""
    batch = simulated("linear", 5, "I", episodes=8).to_batch()
    arrays = {name: getattr(batch, name) for name in "xaz"} | {"next_x": batch.y}
    big, tiny = np.array([1e3, 1, 1, 1, 1]), np.array([1, 1, 1, 1, 1e-3])
    scaled = arrays | {
        "x": arrays["x"] * big,
        "next_x": arrays["next_x"] * big,
        "z": arrays["z"] * tiny,
    }
    one, two = (ivvi.estimate(ivvi.read_logs(a), method="sgda") for a in (arrays, scaled))
    units = np.concatenate([[1.0], big, np.ones(5)])
    np.testing.assert_allclose(two.W * units / big[:, None], one.W, rtol=1e-6, atol=1e-8)
    assert two.estimate.trace.error == pytest.approx(one.estimate.trace.error, rel=1e-4)


@pytest.mark.parametrize(("dim", "setting"), but_quick(LINEAR, (5, "III"), (20, "IV")))
def test_the_printed_sign_diverges_in_the_linear_cells(dim, setting, simulated):
    log = simulated("linear", dim, setting, episodes=8)
    moments = moments_of_log(log)
    right, printed = (
        SGDA(ConstantSteps(0.01, 0.01), passes=20, flip_dual=flip).solve(moments, log).trace
        for flip in (False, True)
    )
    assert printed.status == "diverged"
    assert right.status != "diverged"
