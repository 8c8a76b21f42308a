"""Wild draws of everything that was estimated, from the moments of each cluster.

The score form of the wild cluster bootstrap (Kline and Santos 2012), not restricted to a null:
a value is no coefficient that could be held. With theta all that is estimated and theta_(g) the
same without cluster g,

    theta_b = theta + s_b ((G - 1) / G)^1/2 sum_g v_bg (mean theta_(.) - theta_(g)),

where v are Webb's six numbers, of mean zero and variance one, so that theta_b has the jackknife's
covariance (CR3), and s_b^2 = (G - 1) / chi^2(G - 1) makes its law Student's, as few clusters ask
(MacKinnon, Nielsen and Webb 2023). W, the noise and the behaviour policy move together; no row is
read, and G estimates serve any number of draws.
"""

from __future__ import annotations

import numpy as np

from ivvi.errors import InputError
from ivvi.estimators.covariance.standard_errors import FEWEST_WILD
from ivvi.weak_iv.wild_bootstrap import WEBB

MOST_GROUPS = 200
"""Groups, of clusters at random where these are more, that are left out in turn."""

LEAST_FREEDOM = 4.0
"""Degrees of freedom below which the spread of weights and counts no longer grows."""


def left_out(clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each cluster counts without each of the groups, (groups, clusters)."""
    if clusters < FEWEST_WILD:
        raise InputError(
            f"{clusters} clusters are too few for wild draws; at least {FEWEST_WILD} are expected: "
            "ask for the asymptotic method"
        )
    groups = min(clusters, MOST_GROUPS)
    group = rng.permutation(clusters) % groups
    counts: np.ndarray = np.where(group == np.arange(groups)[:, None], 0.0, 1.0)
    return counts


def wild_weights(groups: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return what the draws multiply each group's influence with, (count, groups)."""
    six = np.concatenate([-WEBB, WEBB])
    freedom = groups - 1
    student = np.sqrt(freedom / rng.chisquare(freedom, size=(count, 1)))
    drawn: np.ndarray = student * six[rng.integers(0, 6, size=(count, groups))]
    return drawn


def wild_draws(whole: np.ndarray, without: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return draws (B, ...) around `whole` (...), of which `without` (G, ...) lacks group g."""
    groups = len(without)
    influence = np.sqrt((groups - 1) / groups) * (without.mean(axis=0) - without)
    drawn: np.ndarray = whole + np.tensordot(weights, influence, axes=1)
    return drawn


def student_variance(groups: int, freedom: float = np.inf) -> float:
    """Return the variance of Student's t times G / (G - 1), of at most G - 1 degrees of freedom."""
    groups = max(groups, 2)
    freedom = max(min(freedom, groups - 1), LEAST_FREEDOM)
    return groups / (groups - 1) * freedom / (freedom - 2)
