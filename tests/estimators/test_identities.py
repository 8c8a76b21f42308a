"""Identities that the estimators satisfy on any data, as properties over random shapes."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ivvi import InputError, StandardErrors
from ivvi.diagnostics import cragg_donald, sargan, strength, wu_hausman
from ivvi.errors import DataError
from ivvi.estimators import Exact, LeastSquares
from ivvi.estimators.covariance.estimate_covariance import with_errors
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.whitening import whiten
from ivvi.features import FeatureMap
from ivvi.features.blocks import Constant, Power
from ivvi.moments import Moments

METHODS = [Exact(), LeastSquares()]
RTOL = 1e-8


class Problem(NamedTuple):
    """Rows of a well-conditioned instrumented regression."""

    x: np.ndarray
    a: np.ndarray
    z: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    rng: np.random.Generator


@pytest.fixture(scope="session")
def solved(moments_of, confounded):
    """Turn the numbers that Hypothesis draws into rows: solved(shape) is a Problem."""

    def build(shape):
        d_x, d_a, extra, d_y, n, weighted, seed = shape
        rng = np.random.default_rng([seed, 1])  # other numbers than those of the rows
        parts = confounded(seed, n, d_x, d_a, d_a + extra, d_y)
        return Problem(*parts, rng.uniform(0.2, 3, n) if weighted else None, rng)

    return build


def shapes(extra=(0, 2), d_x=(0, 3)):
    """Draw (d_x, d_a, d_z - d_a, d_y, rows, weighted, seed)."""
    d, extra, d_x = st.integers(1, 3), st.integers(*extra), st.integers(*d_x)
    return st.tuples(d_x, d, extra, d, st.integers(60, 400), st.booleans(), st.integers(0, 2**31))


def assert_close(ours, wanted, rtol=RTOL):
    """Compare on the scale of the largest number."""
    size = np.abs(wanted).max(initial=0.0)
    np.testing.assert_allclose(ours, wanted, rtol=rtol, atol=rtol * (size or 1))


def specification(m):
    """Return the values of the specification tests that apply."""
    found = (*wu_hausman(m), *(sargan(m, Exact().solve(m)) or ()))
    return [statistic.value for statistic in found]


def invertible(rng, k):
    """Return a k x k matrix with condition number at most 4."""
    left, right = (np.linalg.qr(rng.normal(size=(k, k)))[0] for _ in range(2))
    return left * rng.uniform(0.5, 2, k) @ right


@given(shape=shapes(), collinear=st.booleans())
def test_whitened_features_are_orthonormal(solved, moments_of, shape, collinear):
    p = solved(shape)
    z = np.hstack([p.z, p.z[:, :1] - 2 * p.z[:, -1:]]) if collinear else p.z
    m = moments_of(p.x, p.a, z, p.y, p.weight)
    space = whiten(m)
    offset = m.mean - space.shift
    second = m.scatter / m.weight + np.outer(offset, offset)
    assert_close(
        space.to_white.T @ second @ space.to_white, np.eye(1 + p.x.shape[1] + p.z.shape[1])
    )


@given(shape=shapes())
def test_exact_is_the_closed_form_of_the_paper(solved, moments_of, shape):
    p = solved(shape)
    m = moments_of(*p[:5])
    fit = Exact().solve(m)
    B_inverse = np.linalg.inv(m.B)
    strong = m.A.T @ B_inverse @ m.A
    assert_close(fit.W, m.C @ B_inverse @ m.A @ np.linalg.inv(strong))
    assert_close(fit.bread, np.linalg.inv(strong) / m.n)
    yy = m.second[np.ix_(m.design.y_columns, m.design.y_columns)]
    noise = yy - fit.W @ (phi_y := moment_of_phi_and_y(m)) - phi_y.T @ fit.W.T
    assert_close(fit.noise_cov, noise + fit.W @ m.D @ fit.W.T)
    assert fit.identified
    assert fit.n == len(p.y)


def moment_of_phi_and_y(m):
    return m.second[np.ix_(m.design.phi_columns, m.design.y_columns)]


@given(shape=shapes())
def test_least_squares_is_the_regression_on_phi(solved, moments_of, shape):
    p = solved(shape)
    m = moments_of(*p[:5])
    fit = LeastSquares().solve(m)
    assert_close(fit.W, np.linalg.solve(m.D, moment_of_phi_and_y(m)).T)
    root = np.sqrt(np.ones(len(p.y)) if p.weight is None else p.weight)[:, None]
    Phi = np.column_stack([np.ones(len(p.y)), p.x, p.a])
    assert_close(fit.W, np.linalg.lstsq(root * Phi, root * p.y)[0].T)


@given(shape=shapes())
def test_instruments_that_span_phi_give_least_squares(solved, moments_of, shape):
    p = solved(shape)
    d_a = p.a.shape[1]
    z = np.column_stack([p.a @ invertible(p.rng, d_a), p.z[:, d_a:]])
    m = moments_of(p.x, p.a, z, p.y, p.weight)
    two, one = Exact().solve(m), LeastSquares().solve(m)
    assert_close(two.W, one.W)
    assert_close(two.se, one.se)
    assert_close(two.noise_cov, one.noise_cov)


@given(shape=shapes())
def test_psi_of_phi_itself_gives_least_squares_with_no_endogenous_feature(
    solved, moments_of, shape
):
    p = solved(shape)
    of_state = FeatureMap((Constant(), Power(1, "state"), Power(2, "state")))
    state = np.column_stack([p.x, p.a])
    m = moments_of(state, p.a, p.z, p.y, p.weight, features=(of_state, of_state))
    two, one = Exact().solve(m), LeastSquares().solve(m)
    assert m.design.psi_columns == m.design.phi_columns
    assert_close(two.W, one.W)
    np.testing.assert_allclose(two.K, 0, atol=RTOL)
    assert cragg_donald(m) is None
    assert wu_hausman(m) is None


@given(shape=shapes())
def test_psi_may_be_any_basis_of_its_span(solved, moments_of, shape):
    p = solved(shape)
    d_x, d_z = p.x.shape[1], p.z.shape[1]
    other = p.z @ invertible(p.rng, d_z) + p.x @ p.rng.normal(size=(d_x, d_z)) + 3.0
    before, after = (moments_of(p.x, p.a, z, p.y, p.weight) for z in (p.z, other))
    one, two = Exact().solve(before), Exact().solve(after)
    for name in ("W", "se", "noise_cov", "bread"):
        assert_close(getattr(two, name), getattr(one, name))
    assert_close(strength(after).eigenvalues, strength(before).eigenvalues)
    assert_close(cragg_donald(after), cragg_donald(before))
    assert_close(specification(after), specification(before), 1e-7)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@given(shape=shapes())
def test_phi_may_be_any_basis_of_its_span(solved, moments_of, method, shape):
    p = solved(shape)
    d_x, d_a = p.x.shape[1], p.a.shape[1]
    H, J, shift = invertible(p.rng, d_a), p.rng.normal(size=(d_a, d_x)), p.rng.normal(size=d_a)
    other = p.a @ H.T + p.x @ J.T + shift
    change = np.eye(1 + d_x + d_a)  # the new phi is change @ phi
    change[1 + d_x :] = np.column_stack([shift, J, H])
    one, two = (
        method.solve(moments_of(p.x, a, p.z, p.y, p.weight, features="linear"))
        for a in (p.a, other)
    )
    inverse = np.linalg.inv(change)
    assert_close(two.W, one.W @ inverse)
    assert_close(two.bread, inverse.T @ one.bread @ inverse)
    assert_close(two.noise_cov, one.noise_cov)
    np.testing.assert_allclose(two.K, one.K, rtol=1e-7, atol=1e-9)


@given(shape=shapes())
def test_the_closed_form_is_the_saddle_point(solved, moments_of, shape):
    """The first-order conditions, and that W is a minimum and K a maximum."""
    p = solved(shape)
    m = moments_of(*p[:5])
    fit = Exact().solve(m)
    W, K = fit.W, fit.K
    size = np.abs(m.C).max()
    np.testing.assert_allclose(K @ m.B, W @ m.A.T - m.C, atol=RTOL * size)
    np.testing.assert_allclose(K @ m.A, 0, atol=RTOL * size)

    def objective(W, K):
        return np.sum(K @ m.A * W) - np.sum(m.C * K) - np.sum(K @ m.B * K) / 2

    best = objective(W, K)
    step = p.rng.normal(size=K.shape)
    assert objective(W, K + 0.1 * step) < best
    other = W + 0.1 * p.rng.normal(size=W.shape)
    response = (other @ m.A.T - m.C) @ np.linalg.inv(m.B)
    assert objective(other, response) > best


@given(shape=shapes(extra=(0, 0)))
def test_dual_vanishes_when_just_identified(solved, moments_of, shape):
    p = solved(shape)
    m = moments_of(*p[:5])
    np.testing.assert_allclose(Exact().solve(m).K, 0, atol=RTOL)
    over = moments_of(p.x, p.a, np.column_stack([p.z, p.rng.normal(size=len(p.y))]), p.y, p.weight)
    assert np.abs(Exact().solve(over).K).max() > 1e-6


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@given(shape=shapes(d_x=(1, 3)))
def test_units_do_not_matter(solved, moments_of, method, shape):
    p = solved(shape)
    x, a, z, y = (part.copy() for part in p[:4])
    d_x = x.shape[1]
    x[:, 0] *= 1e3
    a[:, -1] *= 1e-3
    z[:, 0] *= 1e-3
    y[:, 0] *= 1e3
    before, after = moments_of(*p[:5]), moments_of(x, a, z, y, p.weight)
    one, two = method.solve(before), method.solve(after)
    units = np.ones(two.W.shape)
    units[0] *= 1e3
    units[:, 1] /= 1e3
    units[:, -1] *= 1e3
    np.testing.assert_allclose(two.W, one.W * units, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(two.se, one.se * units, rtol=1e-8)
    units = np.ones(two.K.shape)
    units[0] *= 1e3
    units[:, 1] /= 1e3
    units[:, 1 + d_x] *= 1e3
    np.testing.assert_allclose(two.K / units, one.K, rtol=1e-6, atol=1e-9)
    assert_close(cragg_donald(after), cragg_donald(before))
    assert strength(after).rank == strength(before).rank
    assert_close(specification(after), specification(before), 1e-7)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@given(shape=shapes(d_x=(1, 3)))
def test_a_huge_offset_moves_the_constant_alone(solved, moments_of, method, shape):
    p = solved(shape)
    x = p.x.copy()
    x[:, 0] += 1e6
    one, two = (method.solve(moments_of(v, *p[1:5])) for v in (p.x, x))
    assert_close(two.W[:, 1:], one.W[:, 1:])
    assert_close(two.se[:, 1:], one.se[:, 1:])
    assert_close(two.W[:, 0] + 1e6 * two.W[:, 1], one.W[:, 0], 1e-7)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@given(shape=shapes(), cut=st.floats(0.1, 0.9))
def test_estimates_from_parts_are_those_from_the_whole(solved, moments_of, method, shape, cut):
    p = solved(shape)
    order, at = p.rng.permutation(len(p.y)), int(cut * len(p.y))
    total = Moments.empty(moments_of(*p[:5]).design)
    for index in (order[:at], order[at:]):
        total += moments_of(*(None if part is None else part[index] for part in p[:5]))
    one, two = method.solve(moments_of(*p[:5])), method.solve(total)
    assert_close(two.W, one.W)
    assert_close(two.se, one.se)


@pytest.mark.parametrize("method", [Exact, LeastSquares])
@given(shape=shapes())
def test_ridge_shrinks_towards_zero(solved, moments_of, method, shape):
    p = solved(shape)
    m = moments_of(*p[:5])
    plain, none, tiny, huge = (
        method(**settings).solve(m)
        for settings in ({}, {"ridge": 0.0}, {"ridge": 1e-10}, {"ridge": 1e12})
    )
    np.testing.assert_array_equal(none.W, plain.W)
    np.testing.assert_array_equal(none.se, plain.se)
    assert_close(tiny.W, plain.W, 1e-6)
    np.testing.assert_allclose(huge.W[:, 1:], 0, atol=1e-9)
    mean = m.mean[list(m.design.y_columns)]
    np.testing.assert_allclose(huge.W[:, 0], mean, atol=1e-9)


@given(shape=shapes(), ridge=st.floats(1e-3, 10))
def test_ridge_penalises_in_units_of_the_spread(solved, moments_of, shape, ridge):
    """Compare with the penalised normal equations on centred rows."""
    p = solved(shape)
    m = moments_of(*p[:5])
    psi, phi = list(m.design.psi_columns)[1:], list(m.design.phi_columns)[1:]
    y = list(m.design.y_columns)
    cov = m.scatter / m.weight
    B_inverse = np.linalg.inv(cov[np.ix_(psi, psi)])
    A, C = cov[np.ix_(psi, phi)], cov[np.ix_(y, psi)]
    penalty = ridge * np.diag(cov[phi, phi])
    slopes = C @ B_inverse @ A @ np.linalg.inv(A.T @ B_inverse @ A + penalty)
    fit = Exact(ridge=ridge).solve(m)
    assert_close(fit.W[:, 1:], slopes)
    assert_close(fit.W[:, 0], m.mean[y] - slopes @ m.mean[phi])


@pytest.mark.parametrize("method", [Exact, LeastSquares])
@given(shape=shapes())
def test_debiased_divides_by_the_degrees_of_freedom(solved, moments_of, method, shape):
    m = moments_of(*solved(shape)[:5])
    plain = method().solve(m)
    errors = Resolved(StandardErrors(debiased=True), "unadjusted")
    debiased = with_errors(plain, errors, None, m)
    n, d = m.n, plain.W.shape[1]
    np.testing.assert_array_equal(debiased.W, plain.W)
    assert_close(debiased.se, plain.se * np.sqrt(n / (n - d)), 1e-12)


def test_estimates_need_more_rows_than_coefficients(moments_of, confounded):
    m = moments_of(*confounded(0, n=4, d_x=2, d_a=1, d_z=1))
    with pytest.raises(InputError, match="4 rows cannot estimate 4 coefficients"):
        Exact().solve(m)


@pytest.mark.parametrize("dropped", ["phi", "psi", "both"])
@given(shape=shapes())
def test_the_closed_form_needs_no_shared_constant(solved, moments_of, dropped, shape):
    """The closed form holds when the constant stands on one side only, or nowhere."""
    p = solved(shape)
    whole = FeatureMap((Constant(), Power(1, "state"), Power(1, "input")))
    bare = FeatureMap(whole.blocks[1:])
    features = {"phi": (bare, whole), "psi": (whole, bare), "both": (bare, bare)}[dropped]
    z = np.column_stack([p.z, p.z[:, :1] ** 2]) + 1.0  # enough without the constant
    m = moments_of(p.x, p.a, z, p.y, p.weight, features=features)
    B_inverse = np.linalg.inv(m.B)
    strong = m.A.T @ B_inverse @ m.A
    fit = Exact().solve(m)
    assert_close(fit.W, m.C @ B_inverse @ m.A @ np.linalg.inv(strong), 1e-7)
    assert_close(fit.bread, np.linalg.inv(strong) / m.n, 1e-7)
    assert_close(strength(m).mu_iv, np.linalg.eigvalsh(strong)[0], 1e-7)


def test_methods_with_equal_settings_are_equal():
    assert Exact(ridge=0.5) == dataclasses.replace(Exact(), ridge=0.5) != Exact()
    assert (Exact().name, LeastSquares().name) == ("exact", "least-squares")


def test_as_many_rows_as_coefficients_are_refused(moments_of):
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="3 rows cannot estimate 3 coefficients"):
        Exact().solve(moments_of(*(rng.normal(size=(3, 1)) for _ in range(4))))


@pytest.mark.parametrize("method", [Exact, LeastSquares])
def test_a_negative_penalty_is_refused(method):
    with pytest.raises(InputError, match="-1"):
        method(ridge=-1.0)
