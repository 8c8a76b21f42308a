"""Direct effects of an instrument: what they do to W, and in which units they are told."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ivvi
from ivvi import InputError
from ivvi.estimators import Exact
from ivvi.sensitivity_analysis.violations import Exclusion, Violation


def exclusion_of(moments_of, x, a, z, y, features="linear"):
    moments = moments_of(x, a, z, y, features=features)
    estimate = Exact().solve(moments)
    names = [tuple(f"{c}{i}" for i in range(p.shape[1])) for c, p in (("x", x), ("a", a))]
    outputs = moments.design.outputs
    parts = (estimate.design.phi, estimate.W, estimate.noise_cov, estimate.bread)
    return Exclusion(moments, ivvi.Dynamics(*parts, *names, outputs))


@given(seed=st.integers(0, 10**6), features=st.sampled_from(["linear", "poly2"]))
def test_taking_the_direct_effect_away_from_the_rows_gives_w_of_t(
    confounded, moments_of, seed, features
):
    """W(t) is the estimate of y - t sigma G psi~, computed from the moments alone."""
    x, a, z, y = confounded(seed, d_z=3)
    exclusion = exclusion_of(moments_of, x, a, z, y, features)
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(2, exclusion.rank))
    G /= np.linalg.norm(G, axis=1, keepdims=True)
    t = rng.uniform(-1, 1)
    design, space = exclusion.moments.design, exclusion.space
    rows = np.zeros((len(x), design.width))
    for block, argument, at in design.pieces:
        values = block(x, a if argument == "action" else z)
        rows[:, at : at + values.shape[1]] = values
    psi = (rows - space.shift) @ space.to_white
    np.testing.assert_allclose(psi.T @ psi / len(x), np.eye(exclusion.rank), atol=1e-8)
    cleaned = y - t * (psi @ G.T) * exclusion.noise
    expected = Exact().solve(moments_of(x, a, z, cleaned, features=features)).W
    W = exclusion.weights(exclusion.effects(Violation("", G), t))
    np.testing.assert_allclose(W, expected, rtol=1e-6, atol=1e-7)


@given(seed=st.integers(0, 10**6))
def test_units_are_those_of_one_instrument(confounded, moments_of, seed):
    """One instrument: the share is of the reduced form, and 100% takes the effect away."""
    x, a, z, y = confounded(seed, d_x=1, d_z=1, d_y=1)
    exclusion = exclusion_of(moments_of, x, a, z, y)
    violation = exclusion.along("+z0:y0", np.ones((1, 1)))
    clean = (
        z
        - np.column_stack([np.ones(len(x)), x])
        @ np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), z, rcond=None)[0]
    )
    reduced = float((clean * y).mean() / clean.std())  # of one standard deviation of z
    t = reduced / exclusion.noise[0]
    size = exclusion.size(violation, t)
    assert size.share[0] == pytest.approx(1.0, rel=1e-6)
    assert size.direct[0] == pytest.approx(abs(reduced), rel=1e-6)
    W = exclusion.weights(exclusion.effects(violation, t))
    assert W[0, 2] == pytest.approx(0.0, abs=1e-6 * np.abs(exclusion.model.W).max())
    error = y - np.column_stack([np.ones(len(x)), x, a]) @ W.T
    rho = np.corrcoef(clean[:, 0], error[:, 0])[0, 1]
    assert size.correlation[0] == pytest.approx(abs(rho), rel=1e-6)


def test_no_direction_moves_an_effect_more_than_its_own(case):
    fit, _ = case
    exclusion = Exclusion(fit.moments, fit.model)
    rng = np.random.default_rng(0)
    own = exclusion.against(0, 3)
    most = (fit.W - exclusion.weights(exclusion.effects(own, 1.0)))[0, 3]
    assert np.sign(most) == np.sign(fit.W[0, 3])
    for _ in range(20):
        G = np.zeros_like(own.direction)
        G[0] = rng.normal(size=exclusion.rank)
        G[0] /= np.linalg.norm(G[0])
        moved = fit.W - exclusion.weights(exclusion.effects(Violation("", G), 1.0))
        assert abs(moved[0, 3]) <= abs(most) * (1 + 1e-9)


def test_the_worst_direction_follows_the_gradient(case):
    fit, _ = case
    exclusion = Exclusion(fit.moments, fit.model)
    gradient = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(exclusion.along("worst", gradient).direction, [[-0.6, -0.8], [0, 0]])
    with pytest.raises(InputError, match="value does not depend on the instrument"):
        exclusion.along("worst", np.zeros((2, 2)))
