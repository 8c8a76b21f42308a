"""Anderson and Rubin's set with clustered or robust errors ends where its definition says."""

import math

import numpy as np
import pytest

from ivvi.diagnostics.tails_and_quantiles import chi2_quantile
from ivvi.estimators import Exact
from ivvi.weak_iv.confidence_sets import anderson_rubin
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import (
    minimise_ar,
    robust_anderson_rubin,
    span,
    starting_points,
    statistic,
)

EPISODES = np.repeat(np.arange(60), 5)


def _ends(found):
    return [end for pair in found.intervals for end in pair if math.isfinite(end)]


def brute_force(data, theta, clusters, minimise=None):
    """The clustered statistic from its definition, minimised over the other actions."""
    x, a, z, y = data
    exogenous = np.column_stack([np.ones(len(y)), x])

    def left(of):
        return of - exogenous @ np.linalg.lstsq(exogenous, of)[0]

    Z = left(z)

    def value(gamma):
        e = left(y[:, 0] - theta * a[:, 0] - a[:, 1:] @ gamma)
        scores = np.array([(Z * e[:, None])[clusters == c].sum(axis=0) for c in set(clusters)])
        total = scores.sum(axis=0)
        return total @ np.linalg.solve(scores.T @ scores, total)

    others = a.shape[1] - 1
    starts = np.random.default_rng(0).normal(size=(12, others))
    return value(np.zeros(0)) if not others else min(minimise(value, s).fun for s in starts)


@pytest.mark.parametrize("clusters", [EPISODES, np.arange(300)], ids=["clustered", "robust"])
@pytest.mark.parametrize("effect", [1.0, 0.2, 0.02])
@pytest.mark.parametrize("d_z", [1, 3])
def test_the_clustered_set_ends_where_the_definition_says(
    clusters, effect, d_z, confounded, moments_of
):
    data = confounded(5, 300, 2, 1, d_z, effect=effect)
    moments = moments_of(*data, episode=clusters)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    confidence_set = robust_anderson_rubin(reduced, scores, se="clustered")
    q = chi2_quantile(0.95, d_z)
    for end in _ends(confidence_set):
        assert brute_force(data, end, clusters) == pytest.approx(q, rel=1e-8)
    for value in np.linspace(-20, 20, 41):
        assert (value in confidence_set) == (brute_force(data, value, clusters) <= q)


@pytest.mark.parametrize("d_z", [2, 4])
def test_other_actions_are_projected_out_of_clustered_sets(d_z, confounded, moments_of):
    from scipy.optimize import minimize

    data = confounded(2, 300, 1, 2, d_z, effect=0.8)
    moments = moments_of(*data, episode=EPISODES)
    reduced = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, reduced)
    confidence_set = robust_anderson_rubin(reduced, scores, se="clustered")
    assert confidence_set.kind == "bounded"
    for end in _ends(confidence_set):
        value = brute_force(data, end, EPISODES, minimize)
        assert value == pytest.approx(chi2_quantile(0.95, d_z), rel=1e-5)
    homoskedastic = anderson_rubin(reduced)
    centre = Exact().solve(moments).W[0, 2]
    assert centre in confidence_set
    assert centre in homoskedastic or d_z > 2


@pytest.mark.parametrize(("seed", "theta"), [(110, 0.0), (156, 3.0)])
def test_the_projection_finds_the_smallest_value(seed, theta, moments_of):
    """With hardly any instrument AR has several minima; none of 2,001 directions is lower."""
    rng = np.random.default_rng(seed)
    episode = np.arange(240) // 6
    z = rng.normal(size=(240, 4)) + rng.normal(size=(40, 4))[episode]
    e = (rng.normal(size=240) + rng.normal(size=40)[episode]) * (1 + np.abs(z[:, 0]))
    a = 0.05 * z @ rng.normal(size=(4, 2)) + rng.normal(size=(240, 2)) + 0.8 * e[:, None]
    y = (a @ [1, -1] + e)[:, None]
    moments = moments_of(rng.normal(size=(240, 1)), a, z, y, episode=episode)
    effect = PartialledEffect.of(moments, "y0", "a0")
    scores = EffectScores.of_episodes(moments, effect)
    basis = span(effect, np.array([1.0, -theta / effect.unit]))
    starts = starting_points(effect, scores, basis)
    found = min(minimise_ar(scores, basis, h)[0] for h in starts)
    angles = np.linspace(0, np.pi, 2001)
    directions = np.column_stack([np.cos(angles), np.sin(angles)])
    assert found <= min(statistic(scores, basis @ h) for h in directions) + 1e-6
