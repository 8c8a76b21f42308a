"""From an estimate and the scores of its residuals to its covariance.

Some outputs are exact functions of the features: an age, a ward, a clock. Their residuals are
rounding error, and so are the resulting standard errors and small coefficients. They are
recognised, and their rounding errors are set to zero.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.errors import DataError
from ivvi.estimators.covariance.clusters import effective_clusters
from ivvi.estimators.covariance.cr2 import bell_mccaffrey
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import Scored, worth_joining
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.weight_covariance import Covariance, homoskedastic, sandwich
from ivvi.estimators.estimate import Estimate, exactly_fitted
from ivvi.estimators.whitening import whiten
from ivvi.logs import Batch
from ivvi.moments import EpisodeMoments, GroupSums, Moments

FEW_CLUSTERS, VERY_FEW_CLUSTERS = 30, 6
"""Effective numbers of clusters below which a note says so, and below which there is a warning."""
PER_COEFFICIENT = 3
"""With fewer clusters for each coefficient, a note speaks of their leverage."""
LOOKED_AT = 2048
"""Rows by which rows without weights are found uneven."""
ROUNDING = 1e-7
"""Share of an output's size below which a feature's contribution counts as zero."""


def residual_score(estimate: Estimate, moments: Moments, errors: Resolved, count: int) -> Score:
    """Return what to add up over the rows for the covariance of an estimate.

    `count` is the number of rows or clusters, which decides whether the covariance between
    outputs is worth its time.
    """
    space = whiten(moments, estimate.instruments)
    joint = worth_joining(len(estimate.W), space.rank, count, requested=errors.requested.joint)
    return Score(estimate.residual_map, space, joint)


def with_errors(
    estimate: Estimate, errors: Resolved, scored: Scored | None, moments: Moments
) -> Estimate:
    """Return the estimate with the covariance asked for, and the noise that goes with it."""
    if estimate.covariance is not None and not estimate.influence.size:
        return estimate  # the method has measured its own
    n, d_phi, debiased = estimate.n, estimate.W.shape[1], errors.debiased
    debias = bool(errors.requested.debiased)
    lost = moments.lost()
    corrected = debias or (lost > 0 and errors.requested.debiased is None)
    factor = n / (n - d_phi - lost) if corrected else 1.0
    if scored is None:
        covariance = replace(_scaled(estimate, factor), debiased=debias)
    else:
        clusters = _named_clusters(errors, scored)
        n_fitted = d_phi if debiased else None
        blocks, joint = sandwich(
            estimate.influence, scored.blocks(n_fitted), scored.joint(n_fitted), n
        )
        bandwidth = errors.bandwidth if errors.kind == "hac" else None
        covariance = Covariance(errors.kind, blocks, joint, clusters, debiased, bandwidth)
        if errors.freedom is not None:
            covariance = replace(covariance, freedom=np.full(estimate.W.shape, errors.freedom))
        covariance = _weighed(covariance, errors, estimate, moments)
        if errors.requested.kind == "cr2":
            covariance = _cr2(covariance, estimate, moments)
        if estimate.taken is not None:
            covariance = covariance.plus(estimate.taken)
    noise_cov = factor * estimate.noise_cov
    return replace(estimate, noise_cov=noise_cov, covariance=covariance, lost=lost)


def _scaled(estimate: Estimate, factor: float) -> Covariance:
    """Return `factor` times the unadjusted covariance of W, and no second copy of it."""
    measured = estimate.covariance
    if measured is None:
        return homoskedastic(factor * estimate.noise_cov, estimate.bread)
    joint = None if measured.joint is None else factor * measured.joint
    return Covariance("unadjusted", factor * measured.blocks, joint)


def counted(errors: Resolved, estimate: Estimate) -> Resolved:
    """Add a note or warning about few or uneven clusters, once they are counted.

    By the effective number of clusters of the endogenous features' coefficients, or of all.
    """
    W_cov, shared = estimate.W_cov, set(estimate.design.shared)
    if W_cov.effective is None:
        return errors
    errors = _noting_leverage(errors, estimate)
    endogenous = [j for j in range(estimate.W.shape[1]) if j not in shared]
    least = float(np.min(W_cov.effective[:, endogenous or slice(None)]))
    if least >= FEW_CLUSTERS:
        return errors
    named = " and ".join(f"{count:,} clusters by {column!r}" for column, count in W_cov.clusters)
    named = named or f"{estimate.n:,} rows with uneven influence"
    text = f"{named} count as {least:.1f} equal ones"
    if W_cov.freedom is None:
        text += ": the standard errors tend to be too small, and normal intervals too short"
    else:
        text += ": intervals use Student's t with correspondingly few degrees of freedom"
    if W_cov.clusters:
        text += "; the wild bootstrap (se='wild', --se wild) and Anderson-Rubin sets do not "
        text += "rely on that"
    if least < VERY_FEW_CLUSTERS and not errors.warning:
        return replace(errors, warning=text)
    return replace(errors, note="; ".join(part for part in (errors.note, text) if part))


def _noting_leverage(errors: Resolved, estimate: Estimate) -> Resolved:
    """Add a note if clusters are so few for the coefficients that single ones count much."""
    W_cov, d_phi = estimate.W_cov, estimate.W.shape[1]
    if len(W_cov.clusters) != 1 or W_cov.cr2 or errors.requested.kind == "wild":
        return errors
    column, count = W_cov.clusters[0]
    if count >= PER_COEFFICIENT * d_phi:
        return errors
    return errors.noting(
        f"{count:,} clusters by {column!r} are few for {d_phi} coefficients; if states vary mostly "
        "between clusters, the standard errors are too small: use se='cr2' (--se cr2)"
    )


def with_effective_rows(
    estimate: Estimate, errors: Resolved, moments: Moments, head: Batch | None
) -> Estimate:
    """Use the effective number of rows as degrees of freedom of robust errors, where it is small.

    G* = (sum_i g_i)^2 / sum_i g_i^2, g_i = (w_i L psi~_i)^2 being the part that a row has in the
    variance of a coefficient if all errors are alike (Carter, Schnepel and Steigerwald, 2017, with
    rows for clusters). Weights make rows uneven, and so does an instrument with a long tail. G* is
    that of some of the log's first rows, whose share stands for that of all. Of a piece of a curve
    only weights count: few rows carry it, and no effect stands on it alone.

    Residuals of rows that decide a coefficient are too small: with errors that are alike, its
    variance comes out as 1 - 1 / G* of what it is, which errors of the kind ``auto`` allow for.
    """
    covariance = estimate.covariance
    if head is None or errors.kind != "robust" or covariance is None:
        return estimate
    if errors.requested.debiased is not None or not estimate.influence.size:
        return estimate
    design, space = moments.design, whiten(moments, estimate.instruments)
    if head.weight is None:
        head = head.thinned(LOOKED_AT)
    V = np.ones((len(head), design.width))
    V[:, design.varying] = design.rows(head)
    moved = ((V - space.shift) @ space.to_white) @ np.swapaxes(estimate.influence, -1, -2)
    part = (moved if head.weight is None else head.weight[:, None] * moved) ** 2
    even = np.sum(part, axis=-2) ** 2 / np.sum(part**2, axis=-2) * (moments.n / len(head))
    if head.weight is None:
        even = np.where(moments.design.of_columns, even, moments.n)
    effective = np.broadcast_to(even, estimate.W.shape)
    if float(np.nanmin(effective)) >= FEW_CLUSTERS:
        return estimate
    freedom = np.maximum(effective - 1, 1.0)
    if errors.requested.kind == "auto":
        covariance = covariance.scaled(effective / freedom)
    return replace(estimate, covariance=replace(covariance, effective=effective, freedom=freedom))


def without_rounding(estimate: Estimate, moments: Moments) -> Estimate:
    """Return the estimate with outputs that it fits exactly named, without error."""
    if not np.isfinite(estimate.W).all():
        return estimate
    exact = exactly_fitted(moments, np.diag(estimate.noise_cov))
    if not exact.any():
        return estimate
    design = moments.design
    phi, y = list(design.phi_columns), list(design.y_columns)
    second = np.diag(moments.scatter) / moments.weight + moments.mean**2
    adds = np.abs(estimate.W) * np.sqrt(second[phi])
    nothing = adds <= ROUNDING * np.maximum(np.sqrt(second[y])[:, None], np.finfo(float).tiny)
    W = np.where(exact[:, None] & nothing, 0.0, estimate.W)
    return replace(
        estimate,
        W=W,
        covariance=_without(estimate.W_cov, exact),
        exact=tuple(name for name, fits in zip(design.outputs, exact, strict=True) if fits),
    )


def _weighed(
    covariance: Covariance, errors: Resolved, estimate: Estimate, moments: Moments
) -> Covariance:
    """Add the effective number of clusters and the degrees of freedom of each coefficient.

    G* - 1 by the smaller way of clustering; with `debiased` asked for, G - 1.
    """
    if not covariance.clusters or not estimate.influence.size:
        return covariance
    least, freedom = np.full(estimate.W.shape, np.inf), np.full(estimate.W.shape, np.inf)
    for column, count in covariance.clusters:
        by_cluster, sums = _cluster_sums(moments, column)
        if sums is None:
            effective = np.full(estimate.W.shape, float(count))
        else:
            effective = np.minimum(effective_clusters(estimate, moments, sums, by_cluster), count)
        if column != errors.clusters[0]:
            effective = effective / errors.inflation
        least, freedom = np.minimum(least, effective), np.minimum(freedom, effective - 1)
    if errors.requested.debiased:
        freedom = np.full(estimate.W.shape, min(k for _, k in covariance.clusters) - 1.0)
    return replace(
        covariance, effective=least, freedom=np.maximum(freedom, 1.0) if errors.debiased else None
    )


def _cluster_sums(moments: Moments, column: str) -> tuple[EpisodeMoments | None, GroupSums | None]:
    """Return the moments and the first sums of the clusters by a column; each None if not kept.

    First sums that were kept by themselves are of rows whose weights are squared as they are.
    """
    if (sums := next((own for own in moments.groups if own.by == column), None)) is not None:
        return None, sums
    by_cluster = moments.clusters_by(column)
    return by_cluster, None if by_cluster is None else by_cluster.first_sums(column, moments.mean)


def _cr2(covariance: Covariance, estimate: Estimate, moments: Moments) -> Covariance:
    episodes = moments.episodes
    if episodes is None:
        raise DataError(
            f"{covariance.clusters[0][1]:,} clusters are too many for cr2 standard errors; with so "
            "many, clustered ones do as well"
        )
    blocks, joint, freedom = bell_mccaffrey(estimate, moments, episodes)
    if covariance.joint is None:
        joint = None
    return replace(covariance, blocks=blocks, joint=joint, freedom=freedom, cr2=True)


def _named_clusters(errors: Resolved, scored: Scored) -> tuple[tuple[str, int], ...]:
    named = []
    for column, count in zip(errors.clusters, scored.clusters, strict=False):
        if count is not None:
            errors.check_count(column, count)
            named.append((column, count))
    return tuple(named)


def _without(W_cov: Covariance, exact: NDArray[np.bool_]) -> Covariance:
    """Return the covariance with none of the exact outputs."""
    blocks: Floats = np.where(exact[:, None, None], 0.0, W_cov.blocks)
    if W_cov.joint is None:
        return replace(W_cov, blocks=blocks)
    zero = np.repeat(exact, W_cov.blocks.shape[1])
    joint: Floats = np.where(zero[:, None] | zero, 0.0, W_cov.joint)
    return replace(W_cov, blocks=blocks, joint=joint)
