"""Sums of instrument times residual, by row or by cluster, for every value of an effect.

For b = (1, -theta, -gamma) the score of a cluster is Z_c' T_c b. Its sum and its sum of
squares over clusters are linear and quadratic in b, so that a few totals hold them for all
b at once:

    G = sum_c Z_c' T_c                       (k, t)
    H = sum_c vec(Z_c' T_c) vec(Z_c' T_c)'   (k t, k t)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ivvi.errors import DataError, InputError
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import Scored, score
from ivvi.estimators.covariance.standard_errors import Resolved, check_clusters
from ivvi.estimators.estimate import Floats
from ivvi.estimators.whitening import Whitened
from ivvi.logs import Log
from ivvi.moments import Moments
from ivvi.weak_iv.partialled_effect import PartialledEffect


@dataclass(frozen=True)
class EffectScores:
    """Totals over clusters: G as `sums` (k, t), H as `squares` (k, t, k, t), and their number."""

    sums: Floats
    squares: Floats
    clusters: int

    @classmethod
    def of_episodes(cls, moments: Moments, effect: PartialledEffect) -> EffectScores:
        """Sum over the episodes' moments."""
        blocks = moments.episodes
        if blocks is None:
            raise InputError("a clustered set needs the log, or moments kept with episodes=True")
        shift = blocks.mean - effect.centre
        second = blocks.scatter + blocks.weight[:, None, None] * shift[:, :, None] * shift[:, None]
        parts = effect.into_Z.T @ second @ effect.into_columns
        return cls._of_parts([parts.reshape(len(parts), -1)], effect)

    @classmethod
    def of_errors(
        cls,
        errors: Resolved,
        moments: Moments,
        effect: PartialledEffect,
        log: Log | None,
        progress: Callable[[int], None] | None = None,
    ) -> EffectScores:
        """Sum as the standard errors say: over rows, or over clusters one way or two.

        From the clusters that the moments hold, else in one pass over the log.
        """
        one = effect_score(effect, moments)
        scored = score({"effect": one}, errors, moments, log, progress=progress)["effect"]
        return cls.of_scored(scored, errors, moments, effect)

    @classmethod
    def of_scored(
        cls, scored: Scored, errors: Resolved, moments: Moments, effect: PartialledEffect
    ) -> EffectScores:
        """Take the sums of `effect_score` that were made elsewhere."""
        k, t = effect.k, 2 + effect.nuisance
        omega = scored.joint()
        if omega is None:
            raise ValueError("the scores of an effect are squared together")
        counts = [count for count in scored.clusters if count is not None]
        for column, count in zip(errors.clusters, counts, strict=False):
            check_clusters(column, count, errors.requested)
        clusters = min(counts, default=moments.n)
        _check_enough(clusters, k)
        squares = omega.reshape(t, k, t, k).transpose(1, 0, 3, 2) * moments.weight**2 / moments.n
        one = effect_score(effect, moments)
        return cls((moments.weight * one.space.means(moments, one.R)).T, squares, clusters)

    @classmethod
    def _of_parts(cls, parts: Iterable[Floats], effect: PartialledEffect) -> EffectScores:
        k, t = effect.k, 2 + effect.nuisance
        total, squares, clusters = np.zeros(k * t), np.zeros((k * t, k * t)), 0
        for part in parts:
            total += part.sum(axis=0)
            squares += part.T @ part
            clusters += len(part)
        _check_enough(clusters, k)
        return cls(total.reshape(k, t), squares.reshape(k, t, k, t), clusters)

    @cached_property
    def by_column(self) -> Floats:
        """H with one row for each column of T and each two instruments, (t k k, t)."""
        k, t = self.sums.shape
        return np.ascontiguousarray(self.squares.transpose(1, 0, 2, 3)).reshape(t * k * k, t)

    def variance(self, b: Floats, other: Floats | None = None) -> Floats:
        """sum_c (Z_c' T_c b)(Z_c' T_c other)', (k, k)."""
        second = b if other is None else other
        product: Floats = np.einsum("iajb,a,b->ij", self.squares, b, second)
        return product


def effect_score(effect: PartialledEffect, moments: Moments) -> Score:
    """Return what is added up over rows: columns of T times instruments, squared together."""
    R, constant = effect.into_columns.T.copy(), moments.design.constant
    if constant is not None:  # the columns of T are measured from the centre
        R[:, constant] -= R @ effect.centre
    space = Whitened(effect.centre, effect.into_Z, np.zeros((0, effect.k)), 0)
    return Score(R, space, joint=True)


def _check_enough(clusters: int, k: int) -> None:
    if clusters <= k:
        raise DataError(
            f"{clusters} cluster{'' if clusters == 1 else 's'} cannot give a set with {k} "
            "instrument features; more clusters than instruments are expected, or other errors "
            "(robust, unadjusted)"
        )
