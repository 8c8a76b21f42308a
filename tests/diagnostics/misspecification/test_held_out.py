"""Predictions of episodes that a fit has not seen, against those of a constant."""

import numpy as np
import pytest

import ivvi
from ivvi.diagnostics.misspecification.prediction_checks import (
    HeldOut,
    held_out,
    predicts_worse,
    without,
)
from ivvi.errors import IvviWarning
from ivvi.estimators import Exact
from ivvi.features.design import build_design
from ivvi.moments import Moments


def opened(seed=0, n=600, strength=1.0):
    """x' = 0.3 x - 0.5 a + e, with e in a: the truth is further from x' than its mean is."""
    rng = np.random.default_rng(seed)
    x, z, e, noise = rng.normal(size=(4, n))
    a = strength * z + 2 * e + 0.3 * noise
    columns = {"episode": np.arange(n) // 10, "x0": x, "a0": a, "z0": z}
    return ivvi.read_logs(columns | {"next_x0": 0.3 * x - 0.5 * a + e})


def test_taking_rows_away_is_the_inverse_of_adding_them():
    log = opened()
    head, design = log.head(episodes=True), build_design(log, "poly2")
    some, rest = head.taken(np.arange(200)), head.taken(np.arange(200, 600))
    found = without(Moments.of_batch(design, head), Moments.of_batch(design, some))
    expected = Moments.of_batch(design, rest)
    assert (found.n, found.weight) == (expected.n, expected.weight)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(found.scatter, expected.scatter, atol=1e-9)


def test_errors_follow_their_definition():
    log = opened()
    head, design = log.head(episodes=True), build_design(log, "linear")
    folds = head.episode % 3
    measured = held_out(Exact(), Moments.of_batch(design, head), head, folds)
    x, a, z, y = (v[:, 0] for v in (head.x, head.a, head.z, head.y))
    for f in range(3):
        out = folds == f
        psi, phi = (np.column_stack([np.ones(600), x, one]) for one in (z, a))
        w = np.linalg.solve(psi[~out].T @ phi[~out], psi[~out].T @ y[~out])
        first = np.linalg.lstsq(psi[~out], phi[~out])[0]
        expected = (phi[out] @ w, psi[out] @ first @ w, y[~out].mean())
        errors = [np.sum((y[out] - one) ** 2) for one in expected]
        got = [part[f, 0] for part in (measured.fit, measured.foreseen, measured.constant)]
        np.testing.assert_allclose(got, errors, rtol=1e-9)


def test_confounding_that_hides_the_effect_is_no_reason_to_warn():
    log = opened()
    fit = ivvi.fit(log)
    head = log.head(episodes=True)
    errors = held_out(Exact(), fit.moments, head, head.episode % 5)
    assert errors.ratio(errors.fit)[0] > 1.5  # the truth is that far from what happened
    assert errors.ratio(errors.foreseen)[0] < 1
    assert not fit.warnings


def test_features_that_predict_nothing_outside_their_rows_are_told_from_a_constant():
    rng = np.random.default_rng(1)
    columns = {f"x{j}": rng.normal(size=120) for j in range(45)}
    columns |= {"z0": rng.normal(size=120), "next_x0": rng.normal(size=120)}
    columns["a0"] = columns["z0"] + 0.1 * rng.normal(size=120)
    log = ivvi.read_logs(columns, state="x*", next_state="next_x0", instrument="z0")
    with pytest.warns(IvviWarning, match="worse than its mean"):
        ivvi.fit(log)


def test_rich_features_of_a_weak_instrument_are_told_from_linear_ones():
    log = opened(strength=0.5)
    head = log.head(episodes=True)
    moments = ivvi.fit(log).moments
    assert predicts_worse(Exact(), moments, head, log.roles) == ""
    rich = Moments.of_batch(build_design(log, "poly5"), head)
    assert "linear features have" in predicts_worse(Exact(), rich, head, log.roles)


def test_errors_that_explode_in_one_fold_count_without_a_test():
    constant = np.ones((5, 1))
    once = constant.copy()
    once[2] = 30.0
    varies = np.array([True])
    assert HeldOut(once, constant, constant, varies).worse(once)[0]
    assert not HeldOut(once, constant, constant, ~varies).worse(once)[0]
    assert not HeldOut(constant, constant, constant, varies).worse(constant)[0]


def test_levels_that_the_other_folds_lack_predict_nothing_and_explode_nowhere():
    """Of 60 levels of an instrument, many are in one row; the truth is linear in their numbers."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, z, e, noise = rng.normal(size=(4, 400))
        a = 0.7 * z.round(1) + 0.2 * x + 0.6 * e + 0.3 * noise
        columns = {
            "episode": np.arange(400) // 4,
            "x0": x,
            "a0": a,
            "next_x0": 0.9 * x - 0.4 * a + e,
        }
        log = ivvi.read_logs(columns | {"z0": [f"level {one:.1f}" for one in z]})
        head, moments = log.head(episodes=True), ivvi.fit(log).moments
        errors = held_out(Exact(), moments, head, head.episode % 5)
        assert errors.ratio(errors.foreseen)[0] < 2.0
        assert "held-out" not in predicts_worse(Exact(), moments, head, log.roles)


def test_a_ratio_that_says_nothing_is_not_printed(monkeypatch):
    log = opened()
    head, moments = log.head(episodes=True), ivvi.fit(log).moments
    ones = np.ones((5, 1))
    absurd = HeldOut(ones, 1e270 * ones, ones, np.array([True]))
    monkeypatch.setattr(
        "ivvi.diagnostics.misspecification.prediction_checks.held_out", lambda *_: absurd
    )
    said = predicts_worse(Exact(), moments, head, log.roles)
    assert "more than 10,000 times the squared error" in said
