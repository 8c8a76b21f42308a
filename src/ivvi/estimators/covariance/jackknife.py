"""How far W moves when an episode is left out: its error, whatever estimated it.

With W_-g the estimate without group g of G,

    var(W) = (G - 1) / G sum_g (W_-g - W)(W_-g - W)^T,

the jackknife by clusters, which for least squares is known as CR3 and errs on the safe side
where clusters are few (MacKinnon, Nielsen and Webb, 2023). It holds for any method that
estimates from moments: penalties and k-classes have no residuals that are orthogonal to the
instruments, so that a formula for two-stage least squares says nothing of them.
"""

from __future__ import annotations

import numpy as np

from ivvi.errors import InputError
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import episode_scores
from ivvi.estimators.estimate import Estimate, Floats, Method
from ivvi.estimators.penalised import Penalised
from ivvi.estimators.whitening import whiten
from ivvi.moments import EpisodeMoments, Moments

MOST_GROUPS = 1000
"""Most groups of episodes that are left out one at a time."""


def episodes_of(moments: Moments) -> EpisodeMoments:
    """Return the moments of single episodes, of which there must be two."""
    if moments.episodes is None:
        raise InputError("bands need per-episode moments: estimate with episodes=True")
    if len(moments.episodes) < 2:
        raise InputError("bands need at least 2 episodes; there is 1")
    return moments.episodes


def jackknife(method: Method, moments: Moments, output: int) -> Floats:
    """Return sqrt((G - 1) / G) (W_-g - W) of one output, (G, d_phi), times -1.

    A penalty that is chosen by cross-validation stays as it was chosen.
    """
    episodes = episodes_of(moments)
    if isinstance(method, Penalised) and isinstance(method.penalty, str):
        chosen = float(method.cross_validate(moments).chosen[output])
        method = Penalised(method.kind, chosen, adaptive=method.adaptive)
    whole = moments.without_episodes()
    W = method.solve(whole).W[output]
    member = np.arange(len(episodes)) % min(len(episodes), MOST_GROUPS)
    groups = int(member.max()) + 1
    moved = np.empty((groups, len(W)))
    for g in range(groups):
        moved[g] = (
            W - method.solve(_without(whole, episodes, np.flatnonzero(member == g))).W[output]
        )
    moved *= np.sqrt((groups - 1) / groups)
    return moved


def linearised(estimate: Estimate, moments: Moments, output: int) -> Floats:
    """Return how each episode moved one row of W by its influence, (E, d_phi).

    For methods that pass over the rows (`GMM`, `SGDA`), which moments do not estimate again;
    with the small-sample factor E / (E - 1) of the variance.
    """
    episodes, space = episodes_of(moments), whiten(moments, estimate.instruments)
    sums = episode_scores(Score(estimate.residual_map[output : output + 1], space), episodes)[:, 0]
    L = estimate.influence if estimate.influence.ndim == 2 else estimate.influence[output]
    factor = np.sqrt(len(episodes) / (len(episodes) - 1)) / moments.weight
    moved: Floats = factor * sums @ L.T
    return moved


def _without(whole: Moments, episodes: EpisodeMoments, gone: np.ndarray) -> Moments:
    """Return the moments of all episodes but some."""
    weight, mean, scatter = whole.weight, whole.mean, whole.scatter
    for e in gone:
        rest = weight - episodes.weight[e]
        offset = episodes.mean[e] - mean
        scatter = scatter - episodes.scatter[e]
        scatter = scatter - episodes.weight[e] * weight / rest * np.outer(offset, offset)
        mean = mean - episodes.weight[e] / rest * offset
        weight = rest
    n = max(1, round(whole.n * weight / whole.weight))
    return Moments(whole.design, n, weight, mean, scatter)
