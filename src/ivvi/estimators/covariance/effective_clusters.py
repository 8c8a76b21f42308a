"""The effective number of clusters, by which uneven ones count for fewer than they are.

Group g contributes to the variance of a coefficient, whose influence of row i is a_i,

    gamma_g = (1 - rho) E[a^2] sum_g w^2 + rho (sum_g w a)^2,

with rho the correlation of the residuals of two of its rows. Carter, Schnepel and
Steigerwald's (2017) effective number of clusters is G* = (sum gamma)^2 / sum gamma^2: G where
all groups weigh alike, and about as many as carry the estimate where they do not. G* - 1
are the degrees of freedom of a t statistic.
"""

from __future__ import annotations

import numpy as np

from ivvi.estimators.covariance.step_dependence import correlations
from ivvi.estimators.estimate import Estimate
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Floats
from ivvi.moments import GroupSums, Moments


def effective_clusters(estimate: Estimate, moments: Moments, sums: GroupSums) -> Floats:
    """Return G* of each coefficient, (d_y, d_phi), for clusters by the column of `sums`."""
    space = whiten(moments, estimate.instruments)
    d_y = len(estimate.W)
    L = np.broadcast_to(estimate.influence, (d_y, *estimate.influence.shape[-2:]))
    rho = np.clip(correlations(moments, sums, estimate.residual_map), 0.0, 1.0)
    moved = sums.about(space.shift) @ space.T  # (G, r)
    found = np.empty(estimate.W.shape)
    for output in range(d_y):
        alone = np.outer(sums.square, np.sum(L[output] ** 2, axis=1))
        gamma = (1 - rho[output]) * alone + rho[output] * (moved @ L[output].T) ** 2
        found[output] = ratio_of_sums(gamma)
    return found


def ratio_of_sums(gamma: Floats) -> Floats:
    """Return (sum gamma)^2 / sum gamma^2 over the first axis; the number of rows where all is 0."""
    squares = np.sum(gamma**2, axis=0)
    total = np.sum(gamma, axis=0) ** 2
    every = np.full(total.shape, float(len(gamma)))
    found: Floats = np.divide(total, squares, out=every, where=squares > 0)
    return found
