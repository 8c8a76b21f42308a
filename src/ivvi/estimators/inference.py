"""From an estimate and the scores of its residuals to its covariance."""

from __future__ import annotations

from dataclasses import replace

from ivvi.estimators.covariance import Covariance, sandwich
from ivvi.estimators.estimate import Estimate
from ivvi.estimators.score_rows import Score
from ivvi.estimators.scores import Scored, worth_joining
from ivvi.estimators.standard_errors import Resolved, check_clusters
from ivvi.estimators.whitening import whiten
from ivvi.moments import Moments


def residual_score(estimate: Estimate, moments: Moments, errors: Resolved, count: int) -> Score:
    """Return what to add up over the rows for the covariance of an estimate.

    `count` is the number of rows or clusters, which decides whether the covariance between
    outputs is worth its time.
    """
    space = whiten(moments, estimate.instruments)
    joint = worth_joining(len(estimate.W), space.rank, count, asked=errors.wanted.joint)
    return Score(estimate.residual_map, space, joint)


def with_errors(estimate: Estimate, errors: Resolved, scored: Scored | None) -> Estimate:
    """Return the estimate with the covariance asked for, and the noise that goes with it."""
    n, d_phi = estimate.n, estimate.W.shape[1]
    debiased = errors.wanted.debiased
    factor = n / (n - d_phi) if debiased else 1.0
    if scored is None:
        held = estimate.W_cov
        joint = None if held.joint is None else factor * held.joint
        covariance = Covariance("unadjusted", factor * held.blocks, joint, debiased=debiased)
    else:
        clusters = _named_clusters(errors, scored, d_phi)
        given = d_phi if debiased else None
        blocks, joint = sandwich(estimate.influence, scored.blocks(given), scored.joint(given), n)
        bandwidth = errors.bandwidth if errors.kind == "hac" else None
        covariance = Covariance(errors.kind, blocks, joint, clusters, debiased, bandwidth)
    return replace(estimate, noise_cov=factor * estimate.noise_cov, covariance=covariance)


def _named_clusters(errors: Resolved, scored: Scored, d_phi: int) -> tuple[tuple[str, int], ...]:
    named = []
    for column, count in zip(errors.clusters, scored.clusters, strict=False):
        if count is not None:
            check_clusters(column, count, d_phi)
            named.append((column, count))
    return tuple(named)
