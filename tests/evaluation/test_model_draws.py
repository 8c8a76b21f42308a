"""Models that the log allows: normal draws and bootstraps agree with the fit and each other."""

from dataclasses import replace

import numpy as np
import pytest

import ivvi
from helpers import dependent_log, dependent_rows
from ivvi import Dynamics
from ivvi.estimators import Exact
from ivvi.evaluation.model_draws import (
    _estimates,
    asymptotic,
    bootstrap,
    episode_counts,
    estimated_model,
    reweighted,
)
from ivvi.evaluation.value_inputs import ValueInputs


def test_both_ways_of_drawing_worlds_agree(fit):
    """Within five of the standard errors with which 60 episodes know a spread; means within two.

    The logarithm of a spread is known to about 1 / sqrt(2 x 60), a correlation to 1 / sqrt(60).
    """
    source, rng = ValueInputs.of(fit), np.random.default_rng(0)
    one, (two, _) = asymptotic(source, 2000, rng), bootstrap(source, 2000, rng)
    error = 120**-0.5
    for a, b in (
        (one.W, two.W),
        (one.action_weights, two.action_weights),
        (one.instrument_weights, two.instrument_weights),
    ):
        ratio = np.log(b.std(axis=0) / a.std(axis=0))
        assert np.abs(ratio).max() < 5 * error
        assert abs(ratio.mean()) < 2 * error  # of 10 spreads and more, not independent
    for i, j in ((3, 3), (1, 1), (4, 2)):
        known = [np.corrcoef(w.W[:, 0, i], w.action_weights[:, 0, j])[0, 1] for w in (one, two)]
        assert known[0] == pytest.approx(known[1], abs=2 * 60**-0.5)
    assert (
        np.corrcoef(one.W[:, 0, 3], one.action_weights[:, 0, 3])[0, 1] > 0.3
    )  # the confounder ties them
    noises = [w.law.factor @ np.swapaxes(w.law.factor, 1, 2) for w in (one, two)]
    for noise in noises:
        np.testing.assert_allclose(noise.mean(axis=0), fit.model.noise_cov, rtol=0.1, atol=0.02)
    known, again = (np.diagonal(noise, axis1=1, axis2=2).std(axis=0) for noise in noises)
    assert np.abs(np.log(again / known)).max() < 5 * error


def test_bootstraps_of_gmm_lie_around_its_weights():
    """As those of the closed form lie around the closed form's, draw by draw."""
    log = dependent_log(dependent_rows(1, d_x=2, d_a=1, d_z=3, d_y=2))
    fits = [ivvi.estimate(log, method=method, episodes=True) for method in ("exact", "gmm")]
    exact, gmm = fits
    assert (np.abs(gmm.W - exact.W) / exact.se).max() > 0.1
    counts = np.random.default_rng(0).poisson(1.0, (20, len(exact.moments.episodes)))
    one, two = (_estimates(ValueInputs.of(f), counts)[0] for f in fits)
    np.testing.assert_allclose(two - gmm.W, one - exact.W, atol=1e-12)


def test_episodes_are_counted_with_the_spread_of_students_t():
    """Mean 1, variance G / (G - 1) times f / (f - 2); five standard errors of 40,000 counts."""
    for groups, freedom in ((20, 15.0), (80, np.inf), (200, 3.0)):
        counts = episode_counts(groups, freedom, 40_000 // groups, np.random.default_rng(1))
        f = max(min(freedom, groups - 1), 4.0)
        spread = groups / (groups - 1) * f / (f - 2)
        assert counts.mean() == pytest.approx(1.0, abs=5 * np.sqrt(spread / 40_000))
        error = np.sqrt(np.var((counts - 1) ** 2) / 40_000)
        assert np.mean((counts - 1) ** 2) == pytest.approx(spread, abs=5 * error)


def test_some_groups_count_in_every_draw():
    """With ten groups and few degrees of freedom, one draw in thousands would hold no row."""
    counts = episode_counts(10, 5.0, 200_000, np.random.default_rng(1))
    assert (counts > 0).sum(axis=1).min() >= 2
    assert counts.mean() == pytest.approx(1.0, abs=0.01)


def test_draws_of_few_clusters_have_the_tails_of_the_fits_own_intervals(simulated):
    """The variance of Student's draws is f / (f - 2) of the fit's; five standard errors."""
    fit = ivvi.estimate(simulated("linear", 2, episodes=12, horizon=40, seed=3))
    source = ValueInputs.of(fit)
    f, count = source.freedom, 20_000
    assert 4.5 < f < 12
    drawn = asymptotic(source, count, np.random.default_rng(0)).W
    share = np.mean((drawn - fit.W) ** 2, axis=0) / fit.se**2
    tails = np.std((drawn - fit.W) ** 2, axis=0) / fit.se**2
    np.testing.assert_array_less(np.abs(share - f / (f - 2)), 5 * tails / np.sqrt(count))


def test_counting_every_episode_once_changes_nothing(fit):
    again = reweighted(fit.moments, np.ones(60))
    np.testing.assert_allclose(again.mean, fit.moments.mean, rtol=1e-12)
    np.testing.assert_allclose(again.scatter, fit.moments.scatter, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(Exact().solve(again).W, fit.W, rtol=1e-9, atol=1e-12)


def test_rows_of_w_are_drawn_by_blocks_where_only_these_are_known(fit):
    d_y, d_phi = fit.W.shape
    joint = fit.model.W_cov.reshape(d_y, d_phi, d_y, d_phi)
    blocks = np.array([joint[i, :, i] for i in range(d_y)])
    model = replace(fit.model, W_cov=blocks)
    drawn = asymptotic(ValueInputs.of(model), 4000, np.random.default_rng(0)).W
    np.testing.assert_allclose(drawn.std(axis=0), fit.se, rtol=0.08)
    assert isinstance(model, Dynamics)
    assert estimated_model(ValueInputs.of(model)).W.shape == (1, d_y, d_phi)
