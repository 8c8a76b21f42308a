"""Shrunk effects: the formula, what it may not change, and what it gains."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import ivvi
from ivvi import InputError
from ivvi.estimators.empirical_bayes import shrink


def problem(seed, d):
    """Effects around a mean with a covariance of their errors."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(d, d + 3))
    S = root @ root.T / (d + 3)
    theta = 2.0 + rng.uniform(0.1, 3) * rng.normal(size=d)
    return rng.multivariate_normal(theta, S), S


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), d=st.integers(3, 12), toward=st.sampled_from(["mean", "zero"]))
def test_the_estimate_is_the_posterior_mean_at_the_best_likelihood(seed, d, toward):
    """Dense matrices and SciPy's maximum against the grid in the directions of S."""
    w, S = problem(seed, d)
    X = np.ones((d, 1)) if toward == "mean" else np.zeros((d, 0))

    def fitted(tau2):
        V = S + tau2 * np.eye(d)
        beta = np.linalg.solve(X.T @ np.linalg.solve(V, X), X.T @ np.linalg.solve(V, w))
        rest = w - X @ beta
        minus = rest @ np.linalg.solve(V, rest) + np.linalg.slogdet(V)[1]
        minus += np.linalg.slogdet(X.T @ np.linalg.solve(V, X))[1]
        return minus, X @ beta + tau2 * np.linalg.solve(V, rest)

    size = np.log(np.trace(S) / d)
    tried = np.linspace(size - 13.8, size + 13.8, 60)
    start = tried[np.argmin([fitted(np.exp(t))[0] for t in tried])]
    best = minimize_scalar(
        lambda t: fitted(np.exp(t))[0], bounds=(start - 0.5, start + 0.5), method="bounded"
    )
    shrunk = shrink(w, S, toward=toward)
    wanted = fitted(np.exp(best.x))[1]
    # the grid's steps of at most 8% in tau^2 move the answer by at most 4% of the shrinkage
    assert np.abs(shrunk - wanted).max() <= 0.04 * np.abs(w - wanted).max() + 1e-4


def test_what_is_known_exactly_is_not_moved():
    w = np.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(shrink(w, 1e-12 * np.eye(3)), w, atol=1e-6)
    np.testing.assert_array_equal(shrink(w, np.zeros((3, 3))), w)
    np.testing.assert_array_equal(shrink(w[:1], np.eye(1)), w[:1])


def test_noise_alone_becomes_one_common_effect():
    """Effects that differ by less than their errors do are made equal."""
    w = 3 + 0.01 * np.array([1.0, -1.0, 0.5, -0.5])
    np.testing.assert_allclose(shrink(w, np.eye(4)), 3.0, atol=1e-3)


def like_actions(seed, units=1.0):
    """Eight actions with nearly the same effect on one state, confounded, weakly instrumented."""
    rng = np.random.default_rng(seed)
    n, d = 4000, 8
    z, e = rng.normal(size=(n, d)), rng.normal(size=n)
    a = 0.3 * z + 0.5 * e[:, None] + rng.normal(size=(n, d))
    x, truth = rng.normal(size=n), 0.05 + 0.01 * rng.normal(size=d)
    data = {"x": x, "next": 0.5 * x + a @ truth + 2 * e}
    data |= {f"a{j}": a[:, j] * units for j in range(d)} | {f"z{j}": z[:, j] for j in range(d)}
    roles = {"state": "x", "action": "a*", "instrument": "z*", "next_state": "next"}
    return ivvi.read_logs(data, **roles), truth / units


def test_like_effects_are_found_with_less_error():
    """Mean squared error at least 3 times smaller over 12 logs (about 8 times on average)."""
    errors = {"exact": [], "shrunk": []}
    for seed in range(12):
        log, truth = like_actions(seed)
        for method, found in errors.items():
            found.append(np.mean((ivvi.estimate(log, method=method).W[0, 2:] - truth) ** 2))
    assert np.mean(errors["exact"]) > 3 * np.mean(errors["shrunk"])


def test_units_of_the_actions_do_not_matter():
    one, other = (ivvi.estimate(like_actions(1, u)[0], method="shrunk").W for u in (1.0, 100.0))
    np.testing.assert_allclose(one[:, 2:], 100 * other[:, 2:], rtol=1e-8)
    np.testing.assert_allclose(one[:, :2], other[:, :2], atol=1e-8)


def test_the_other_weights_are_the_best_given_the_effects():
    """Moving the effects and refitting the rest by the moments gives the same rest."""
    log, _ = like_actions(2)
    fit = ivvi.estimate(log, method="shrunk")
    batches = list(log.batches())
    x, a, z, y = (np.concatenate([getattr(b, name) for b in batches]) for name in "xazy")
    Psi = np.column_stack([np.ones(len(x)), x, z])
    P = Psi @ np.linalg.pinv(Psi)
    left = y[:, 0] - a @ fit.W[0, 2:]
    wanted = np.linalg.lstsq(P @ Psi[:, :2], P @ left, rcond=None)[0]
    np.testing.assert_allclose(fit.W[0, :2], wanted, atol=1e-8)


@pytest.mark.parametrize("word", ["ridge", "lasso", "adaptive-lasso"])
def test_penalties_are_known_by_their_words(word):
    log, _ = like_actions(3)
    kind = "lasso" if "lasso" in word else word
    wanted = ivvi.estimate(
        log, method=ivvi.estimators.Penalised(kind, adaptive=word.startswith("adaptive"))
    )
    np.testing.assert_array_equal(ivvi.estimate(log, method=word).W, wanted.W)


def test_an_unknown_target_is_refused():
    with pytest.raises(InputError, match="cannot be shrunk towards 'median'"):
        ivvi.estimators.Shrunk("median")
