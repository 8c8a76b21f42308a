"""Whether richer features change the answer: statistics from the rows, and approximation errors."""

import numpy as np
import pytest

import ivvi
from helpers import dependent_log, dependent_rows
from ivvi.features import parse_features
from ivvi.features.design import Design, build_design
from ivvi.moments import compute_moments
from ivvi.moments.compression import restrict
from ivvi.sequence.richer_features import eta_2, richer_word
from ivvi_reproduction.sequence_checks import draw


def two_stage(Phi, Psi, y):
    """Return W (d_y, d), its residuals, the projector on psi as a function, and (Phi' P Phi)^-1."""

    def project(v):
        return Psi @ np.linalg.lstsq(Psi, v, rcond=None)[0]

    fitted = project(Phi)
    inverse = np.linalg.inv(fitted.T @ fitted)
    W = y.T @ fitted @ inverse
    return W, y - Phi @ W.T, project, inverse


@pytest.fixture(scope="module")
def case():
    data = dependent_rows(4, d_x=1, d_z=2)
    x, a, z, y, *_ = data
    one = np.ones_like(x)
    maps = {
        "phi": np.hstack([one, x, a]),
        "psi": np.hstack([one, x, z]),
        "richer phi": np.hstack([one, x, a, x**2, a**2]),
        "richer psi": np.hstack([one, x, z, x**2, z**2]),
    }
    return maps, y, ivvi.check(dependent_log(data))


def test_a_richer_psi_adds_to_sargans_statistic(case):
    maps, y, found = case
    _, rest, project, _ = two_stage(maps["phi"], maps["psi"], y)
    _, left, richly, _ = two_stage(maps["phi"], maps["richer psi"], y)
    gained = np.sum(richly(left) ** 2, axis=0) - np.sum(project(rest) ** 2, axis=0)
    test = found["richer psi (poly2)"].test
    assert test.statistic.value == pytest.approx(np.max(gained / np.mean(left**2, axis=0)))
    assert (test.statistic.df, test.compared) == ((3,), 2)


def test_a_richer_phi_is_kleibergens_score_of_what_it_adds(case):
    """Kleibergen (2005) on all rows: u is regressed on X~, with and without what is added."""
    maps, y, found = case
    _, rest, project, _ = two_stage(maps["phi"], maps["richer psi"], y)
    values = []
    for u in rest.T:
        X = project(maps["richer phi"] - np.outer(u, u @ maps["richer phi"]) / (u @ u))
        left = [u - X[:, :d] @ np.linalg.lstsq(X[:, :d], u, rcond=None)[0] for d in (3, 5)]
        values.append((left[0] @ left[0] - left[1] @ left[1]) / np.mean(u**2))
    test = found["richer phi (poly2)"].test
    assert test.statistic.value == pytest.approx(max(values))
    assert test.statistic.df == (2,)


def test_eta_1_is_what_phi_cannot_express():
    """Of 0.5 x^2 with x standard normal, [1, x, a] leaves a length of about 0.5 sqrt 2."""
    rng = np.random.default_rng(3)
    n = 20_000
    x, z, e = rng.normal(size=(3, n))
    a = z + e + rng.normal(size=n)
    y = x - a + 0.5 * x**2 + e
    t = np.arange(n)
    named = {"x0": x, "a0": a, "z0": z, "next_x0": y, "episode": t // 100, "step": t % 100}
    check = ivvi.check(ivvi.read_logs(named))["richer phi (poly2)"]
    assert not check.passed
    eta = float(check.finding.split("about ")[1].split()[0])
    assert eta == pytest.approx(0.5 * 2**0.5, rel=0.1)
    straight = ivvi.read_logs(named | {"next_x0": x - a + e})
    assert ivvi.check(straight, level=1e-5)["richer phi (poly2)"].passed


def test_eta_2_is_what_psi_misses(confounded, moments_of):
    """a = z^2 + noise: a psi linear in z misses what one with squares sees."""
    rng = np.random.default_rng(0)
    x, z, noise = rng.normal(size=(3, 50_000, 1))
    a = z + 0.7 * z**2 + noise
    phi, psi = parse_features("linear")
    rich = moments_of(x, a, z, a + noise, features=(phi, psi + parse_features("poly2")[1]))
    base = moments_of(x, a, z, a + noise)
    eta, noise_level = eta_2(base, rich)
    missed = 0.7**2 * 2 / (1 + 0.7**2 * 2 + 1)  # of the variance of a, the mean apart
    assert eta == pytest.approx(missed**0.5, rel=0.05)
    assert noise_level < 0.02


def test_restricted_moments_are_those_of_the_smaller_features():
    log = ivvi.read_logs(draw("rules kept", 0))
    small = build_design(log, "spline:4")
    large = Design.build(
        small.phi + parse_features("poly2")[0], small.psi + parse_features("poly2")[1], log.roles
    )
    one = restrict(compute_moments(log, large)[0], small)
    other = compute_moments(log, small)[0]
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-12)
    np.testing.assert_allclose(one.scatter, other.scatter, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("word", "richer"),
    [
        ("linear", "poly2"),
        ("linear:cross", "poly2:cross"),
        ("poly2", "poly3"),
        ("poly2:cross", "poly3:cross"),
        ("spline:5", "spline:10"),
        ("fourier:20", "fourier:40"),
    ],
)
def test_each_word_has_a_next_richer_one(word, richer):
    assert richer_word(word) == richer


def test_features_that_instruments_cannot_identify_are_left_out_and_named():
    """z is 0 or 1 by a rule on x^2, and y bends in x: a^2 is not identified, and x^2 is.

    The square has a t of about 10, and moves the effect of the action by several standard errors.
    """
    rng = np.random.default_rng(6)
    n = 4000
    x, e, noise = rng.normal(size=(3, n))
    z = (0.5 * (x**2 > 1) + rng.uniform(size=n) < 0.6) * 1.0
    a = 1.2 * z + e + 0.3 * noise
    named = {"x0": x, "a0": a, "z0": z, "next_x0": 0.4 * x + 0.25 * x**2 - 0.4 * a + e}
    t = np.arange(n)
    checks = ivvi.check(ivvi.read_logs(named | {"episode": t // 8, "step": t % 8}))
    phi, psi = checks["richer phi (poly2)"], checks["richer psi (poly2)"]
    assert (phi.passed, psi.passed) == (False, False)
    assert "without a0^2, not identified" in phi.test.statistic.null
    assert phi.test.statistic.df == (1,)
    assert "--features auto" in phi.advice


@pytest.mark.parametrize("seed", range(5))
def test_weights_of_a_survey_make_no_features_too_poor(seed):
    """Uneven weights make sums vary more than as many even rows do."""
    rng = np.random.default_rng(seed)
    x, z, u, e, w = rng.normal(size=(5, 800))
    rows = {"x": x, "z": z, "a": z + u + x, "w": np.exp(w)}
    rows["y"] = 0.5 * rows["a"] + u + x + e
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
    assert not ivvi.check(ivvi.read_logs(rows, weight="w", **roles), level=0.01).failed
