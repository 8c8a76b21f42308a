"""Sums of instrument times residual, by row or by cluster, for every value of an effect.

For b = (1, -theta, -gamma) the score of a cluster is Z_c' T_c b. Its sum and its sum of
squares over clusters are linear and quadratic in b, so that a few totals hold them for all
b at once:

    G = sum_c Z_c' T_c                       (k, t)
    H = sum_c vec(Z_c' T_c) vec(Z_c' T_c)'   (k t, k t)

`ActionEffects` are the effects of all actions as such problems. With X the endogenous features,
y an output and Z the excluded instruments, all after regression on the exogenous features,

    G = n^1/2 E[Z T']   H = Var(vec(n^-1/2 sum Z T'))   T = [y, x_j, the other X]

are all that tests of theta = W_oj need. H is one more score of the second pass, under the
standard errors asked for, so that a robust interval and Wald's use the same clusters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.diagnostics.first_stage import PartialledColumns, partial_out
from ivvi.errors import DataError, InputError
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import Scored, score
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.whitening import Whitened
from ivvi.logs import Log
from ivvi.moments import Moments, remembered
from ivvi.weak_iv.partialled_effect import PartialledEffect

MOST_SETS = 24
"""Most effects for which robust intervals are computed by default."""
MOST_PRODUCTS = 1e10
"""Most products of scores that are added up for them: a quarter of the time of such a fit."""


@dataclass(frozen=True, repr=False)
class EffectScores(Compact):
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
    ) -> EffectScores:
        """Sum as the standard errors need: over rows, or over clusters, one way or two.

        From the clusters that the moments hold, else in one pass over the log.
        """
        one = effect_score(effect, moments)
        scored = score({"effect": one}, errors, moments, log)["effect"]
        return cls.of_scored(scored, errors, moments, effect)

    @classmethod
    def of_scored(
        cls, scored: Scored, errors: Resolved, moments: Moments, effect: PartialledEffect
    ) -> EffectScores:
        """Use sums of `effect_score` that were made elsewhere."""
        k, t = effect.k, 2 + effect.nuisance
        omega = scored.joint()
        if omega is None:
            raise ValueError("the scores of an effect are squared together")
        counts = [count for count in scored.clusters if count is not None]
        for column, count in zip(errors.clusters, counts, strict=False):
            errors.check_count(column, count)
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
        """H with one column for each column of T and each two instruments, (t, t k k)."""
        k, t = self.sums.shape
        return np.ascontiguousarray(self.squares.transpose(3, 1, 0, 2)).reshape(t, t * k * k)

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


@dataclass(frozen=True, slots=True, repr=False)
class ActionEffects(Compact):
    """Endogenous features and outputs after regression on the exogenous features.

    Attributes
    ----------
    outputs
        Positions of the outputs that are looked at.
    R
        Map (m + outputs, p) of the rows v to the endogenous features and these outputs.
    means
        E[T Z'], (m + outputs, q).
    second
        E[T T'], (m + outputs, m + outputs).
    """

    parts: PartialledColumns
    outputs: tuple[int, ...]
    labels: tuple[str, ...]
    R: Floats
    means: Floats
    second: Floats
    n: int

    @property
    def m(self) -> int:
        """Number of endogenous features."""
        return len(self.parts.names)

    @property
    def subsets(self) -> tuple[tuple[int, ...], ...]:
        """Rows of R that belong to one output: itself, then the endogenous features."""
        return tuple((self.m + i, *range(self.m)) for i in range(len(self.outputs)))

    def score(self, count: int) -> Score | None:
        """Return what to add up over `count` rows or clusters; None if that costs too much.

        One action with one instrument needs nothing but its first stage.
        """
        q = self.parts.count
        if self.m * q <= 1 or self.too_much(count):
            return None
        return Score(self.R, self.parts.space.excluded, subsets=self.subsets)

    def too_much(self, count: int) -> str:
        """Return why the sums are not made if they are too many, else ''."""
        width = (1 + self.m) * self.parts.count
        if len(self.outputs) * width**2 * count <= MOST_PRODUCTS:
            return ""
        return (
            f"{self.m} endogenous features and {self.parts.count} instruments need too many sums "
            "for so many rows; `ivvi interval` computes those of one effect"
        )

    def effect(self, i: int, j: int) -> PartialledEffect:
        """Return the effect of endogenous feature j on the i-th of the outputs."""
        at = [self.m + i, j, *(other for other in range(self.m) if other != j)]
        size = np.sqrt(np.diag(self.second)[at])
        scale = np.where(size > 0, size, 1.0)
        means = self.means[at] / scale[:, None]
        products = means @ means.T
        space = self.parts.space
        return PartialledEffect(
            label=f"effect of {self.parts.names[j]} on {self.labels[i]}",
            explained=products,
            unexplained=self.second[np.ix_(at, at)] / np.outer(scale, scale) - products,
            into_columns=(self.R[at] / scale[:, None]).T,
            into_Z=space.excluded.to_white,
            centre=space.shift,
            unit=float(scale[0] / scale[1]),
            freedom=self.parts.freedom,
            moves=bool(size[1] > 0),
        )

    def scores(self, scored: Scored, i: int) -> EffectScores:
        """Return G (k, t) and H (k, t, k, t) of [y, X] of length one, y being the i-th output."""
        size, k = self.sizes(i), self.parts.count
        t = len(size)
        H = scored.subset(i).reshape(t, k, t, k) / size[:, None, None, None] / size[:, None]
        G = np.sqrt(self.n) * (self.means[list(self.subsets[i])] / size[:, None]).T
        counts = [count for count in scored.clusters if count is not None]
        return EffectScores(G, H.transpose(1, 0, 3, 2), min(counts, default=self.n))

    def sizes(self, i: int) -> Floats:
        """Return the lengths of the columns of [y, X], y being the i-th output, (1 + m,)."""
        sizes: Floats = np.sqrt(np.diag(self.second)[list(self.subsets[i])])
        return sizes


@remembered
def action_effects(moments: Moments) -> ActionEffects:
    """Return the effects of the endogenous features on the outputs that get robust intervals."""
    design, partialled = moments.design, partial_out(moments)
    n_outputs = max(1, MOST_SETS // max(len(partialled.names), 1))
    outputs = tuple(range(min(len(design.outputs), n_outputs)))
    eye = np.eye(design.width)
    select = np.vstack([partialled.select, eye[[design.y_columns[i] for i in outputs]]])
    exogenous = partialled.space.exogenous
    included = replace(
        partialled.space,
        to_white=partialled.space.to_white[:, :exogenous],
        basis=partialled.space.included,
    )
    R = included.residual_map(moments, select)
    centre = R @ moments.mean
    second = R @ (moments.scatter / moments.weight) @ R.T + np.outer(centre, centre)
    labels = tuple(design.outputs[i] for i in outputs)
    means = partialled.space.excluded.means(moments, R)
    return ActionEffects(partialled, outputs, labels, R, means, second, moments.n)


def _check_enough(clusters: int, k: int) -> None:
    if clusters <= k:
        raise DataError(
            f"{clusters} cluster{'' if clusters == 1 else 's'} cannot give a set with {k} "
            "instrument features; expected more clusters than instruments, or other errors "
            "(robust, unadjusted)"
        )
