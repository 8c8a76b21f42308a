"""CR2: clustered variances without the bias from each cluster's leverage.

With X~ the instrumented features in coordinates in which X~' X~ = I, S_g = X~_g' X~_g the
leverage of cluster g and s_g = X~_g' u_g its score, Bell and McCaffrey's (2002) residuals
(I - H_gg)^-1/2 u_g have the score (I - S_g)^-1/2 s_g. Their degrees of freedom are those of
the chi-squared with the mean and the variance of the estimated variance where errors are
equally correlated within clusters (Imbens and Kolesar 2016).
"""

from __future__ import annotations

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.estimators.covariance.clusters import cluster_products, cluster_seconds
from ivvi.estimators.covariance.weight_covariance import sandwich
from ivvi.estimators.estimate import Estimate
from ivvi.estimators.whitening import whiten
from ivvi.moments import EpisodeMoments, Moments

LEVERAGE = 1e-8
"""1 - leverage, at least: below it a cluster determines a coefficient by itself."""
MOST_CLUSTERS = 1000
"""With at most this many clusters the degrees of freedom, of order G^2 each, are computed."""


def bell_mccaffrey(
    estimate: Estimate, moments: Moments, episodes: EpisodeMoments
) -> tuple[Floats, Floats | None, Floats]:
    """Return the covariances of W's rows, the joint one, and degrees of freedom (d_y, d_phi)."""
    space, d_y = whiten(moments, estimate.instruments), len(estimate.W)
    L = np.broadcast_to(estimate.influence, (d_y, *estimate.influence.shape[-2:]))
    second = cluster_seconds(space, episodes) / moments.weight
    first = (episodes.mean - space.shift) @ space.to_white * episodes.weight[:, None]
    scores = cluster_products(estimate.residual_map, space, episodes)  # (C, d_y, r)
    rho = within_correlation(estimate, episodes)
    freedom, adjusted = np.empty(estimate.W.shape), np.empty_like(scores)
    for output in range(d_y):
        _, size, right = np.linalg.svd(L[output], full_matrices=False)
        directions = right[size > 1e-12 * size.max(initial=0.0)].T  # (r, d)
        leverages = directions.T @ second @ directions
        roots = _inverse_roots(leverages)
        turned = scores[:, output] @ directions
        adjusted[:, output] = np.einsum("ri,cij,cj->cr", directions, roots, turned)
        weights = L[output] @ directions
        parts = (roots, leverages, first @ directions)
        freedom[output] = _freedom(weights, *parts, rho[output], moments.weight)
    flat = adjusted.reshape(len(adjusted), -1)
    omega = flat.T @ flat * (moments.n / moments.weight**2)
    r = space.rank
    blocks = np.array([omega[i * r : (i + 1) * r, i * r : (i + 1) * r] for i in range(d_y)])
    small, whole = sandwich(estimate.influence, blocks, omega, moments.n)
    return small, whole, freedom


def within_correlation(estimate: Estimate, episodes: EpisodeMoments) -> Floats:
    """Return the correlation of each output's residuals between two rows of a cluster, (d_y,)."""
    R = estimate.residual_map
    sums = episodes.weight[:, None] * (episodes.mean @ R.T)
    squares = np.einsum("ep,cpq,eq->ce", R, episodes.scatter, R, optimize=True)
    squares += episodes.weight[:, None] * (episodes.mean @ R.T) ** 2
    pairs = float(np.sum(episodes.weight**2 - episodes.weight))
    variance = squares.sum(axis=0) / episodes.weight.sum()
    excess = np.sum(sums**2 - squares, axis=0)
    bound = variance * pairs
    rho = np.divide(excess, bound, out=np.zeros(len(R)), where=bound > 0)
    clipped: Floats = np.clip(rho, 0.0, 1.0)
    return clipped


def _inverse_roots(S: Floats) -> Floats:
    """(I - S_g)^-1/2 for leverages S (C, d, d)."""
    values, vectors = np.linalg.eigh(np.eye(S.shape[1]) - S)
    roots = 1 / np.sqrt(np.maximum(values, LEVERAGE))
    inverse_roots: Floats = (vectors * roots[:, None]) @ np.swapaxes(vectors, 1, 2)
    return inverse_roots


def _freedom(
    weights: Floats, roots: Floats, S: Floats, first: Floats, rho: float, total: float
) -> Floats:
    """Degrees of freedom for each row of `weights` (d_phi, d); `first` (C, d) are sums of X~."""
    freedom = np.full(len(weights), float(len(S) - 1))
    if len(S) > MOST_CLUSTERS:
        return freedom
    once, twice, sums = roots @ S, roots @ roots @ S, first / np.sqrt(total)
    moved = np.einsum("cij,cj->ci", roots, sums)
    for j, w in enumerate(weights):
        if not w.any():
            continue
        along = np.einsum("i,cij->cj", w, once)
        alone = np.diag(np.einsum("i,cij,j->c", w, twice, w)) - along @ along.T
        common = np.diag(moved @ w) - along @ sums.T
        variance = (1 - rho) * alone + rho * common @ common.T
        freedom[j] = max(1.0, np.trace(variance) ** 2 / float(np.sum(variance**2)))
    return freedom
