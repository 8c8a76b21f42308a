"""The second pass over a log: what standard errors and robust diagnostics need of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ivvi.diagnostics.endogeneity import augment
from ivvi.diagnostics.first_stage import partial_out
from ivvi.diagnostics.overidentification import degrees_over
from ivvi.diagnostics.reduced_form import reduced_form_score
from ivvi.estimators import Estimate, Exact
from ivvi.estimators.covariance.estimate_covariance import residual_score
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import Scored, score, worth_joining
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.logs import Counts, Log
from ivvi.moments import Moments
from ivvi.moments.compression import columns_in
from ivvi.weak_iv.effect_scores import action_effects


def second_pass(
    estimates: Mapping[str, Estimate],
    moments: Moments,
    errors: Resolved,
    log: Log | None,
    counts: Counts,
    client: Any = None,
    diagnosed: Moments | None = None,
) -> dict[str, Scored]:
    """Score the residuals of the estimates and of the diagnostics, all in one pass.

    The diagnostics are of `moments`, or of the smaller design of `diagnosed`.
    The workers of a Dask `client` read the rows where there is one (`scores.score`); without
    a log the moments hold their episodes.

    Returns
    -------
    Variances by name: those of the estimates, and where they apply ``exact`` (residuals of
    the closed form), ``first_stage``, ``effects`` (of the actions, for robust intervals),
    ``augmented`` and ``reduced_form``. Empty for unadjusted errors.
    """
    if errors.kind == "unadjusted":
        return {}
    by_episode = log is None or errors.clusters == (log.roles.episode,)
    episodes = moments.episodes
    count = counts.episodes if by_episode else moments.n if episodes is None else len(episodes)
    small = diagnosed or moments
    exact = Exact().solve(small)
    scores = _diagnostic_scores(small, exact, errors, count)
    if (reduced := reduced_form_score(small, errors)) is not None:
        scores["reduced_form"] = reduced
    if diagnosed is not None:
        at = columns_in(diagnosed.design, moments.design)
        scores = {name: _embedded(one, at, moments.design.width) for name, one in scores.items()}
    for name, one in estimates.items():
        if "exact" in scores and one.instruments == "psi" and np.array_equal(one.W, exact.W):
            scores[name] = scores["exact"]
        elif np.isfinite(one.W).all() and one.influence.size:  # not diverged, nor its own errors
            scores[name] = residual_score(one, moments, errors, count)
            if one.instruments == "phi":  # a baseline: nobody asks how its outputs covary
                scores[name] = replace(scores[name], joint=False)
    return score(scores, errors, moments, log, client=client)


def _embedded(score: Score, at: list[int], width: int) -> Score:
    """Return a score of some columns of v as a score of all of them."""
    space = score.space
    R, to_white = np.zeros((len(score.R), width)), np.zeros((width, space.rank))
    shift = np.zeros(width)
    R[:, at], to_white[at], shift[at] = score.R, space.to_white, space.shift
    return replace(score, R=R, space=replace(space, to_white=to_white, shift=shift))


def _diagnostic_scores(
    moments: Moments, exact: Estimate, errors: Resolved, count: int
) -> dict[str, Score]:
    scores: dict[str, Score] = {}
    partialled = partial_out(moments)
    q, m = partialled.count, len(partialled.names)
    if not exact.identified or partialled.freedom <= 0:
        return scores
    if degrees_over(moments, exact) > 0:
        scores["exact"] = residual_score(exact, moments, errors, count)
    if m and q:
        R = partialled.space.residual_map(moments, partialled.select)
        scores["first_stage"] = Score(R, partialled.space.excluded, worth_joining(m, q, count))
    if (effects := action_effects(moments).score(count)) is not None and partialled.count >= m:
        scores["effects"] = effects
    if (added := augment(moments)) is not None:
        scores["augmented"] = added.score()
    return scores
