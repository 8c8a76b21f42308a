"""Conditional-likelihood-ratio sets with heteroskedastic errors, or dependent ones.

Kleibergen's (2005, 2007) quasi likelihood ratio. At b = (1, -theta, -gamma), with g = G b,
covariances from the sums of squares H, and p = 1 + m endogenous features,

    S  = Var(g),   D = G E - Cov(G E, g) S^-1 g    first stages, uncorrelated with g
    AR = g' S^-1 g
    K  = |P S^-1/2 g|^2,   P projecting on S^-1/2 D
    r  = the rank statistic of D
    LR = (AR - r + sqrt((AR - r)^2 + 4 r K)) / 2

where the columns of E (t, p) complete b to a basis. Given r, LR is distributed as in the
homoskedastic case (`conditional_tail`), however weak the instruments are; with variances
Omega (x) I it is Moreira's statistic. The squares are taken about zero, as the null has it:
about their mean a test from few clusters rejects too often. Other endogenous features are
projected out, as for Anderson-Rubin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.rank_tests import rank_statistic
from ivvi.diagnostics.tails_and_quantiles import check_level
from ivvi.errors import DataError, InputError
from ivvi.weak_iv.confidence_sets import (
    LINE,
    ConfidenceSet,
    check_likelihood,
    conditional_law,
    conditional_tail,
)
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.robust_anderson_rubin import (
    ANGLES,
    minimise_ar,
    robust_anderson_rubin,
    search,
    span,
    starting_points,
)
from ivvi.weak_iv.root_and_minimum import descend

NUDGE = 1e-6
"""Step of numerical slopes, gamma being a point of the unit circle."""
FEW_ANGLES = 24
"""Of the grid, where the instruments are so strong that the set is one short interval."""
HOPELESS = 21.0
"""-log of a p-value from which no search is begun."""
MOST_NUISANCE = 5
"""Most other endogenous features: a set with 3 took 5 seconds, one with 4 half a minute."""
SAME = 1e-8
"""How near the cosine of two starting points is to one."""


def robust_likelihood_ratio(
    effect: PartialledEffect, scores: EffectScores, level: float = 0.95, *, se: str
) -> ConfidenceSet:
    """Return the conditional-likelihood-ratio set that the scores of rows or episodes give."""
    check_level(level)
    if effect.k <= effect.nuisance or not effect.moves:
        return ConfidenceSet(effect.label, LINE, level, "clr", se)
    check_likelihood(effect)
    if effect.k == effect.nuisance + 1:  # just identified: LR is AR
        return replace(robust_anderson_rubin(effect, scores, level, se=se), method="clr")
    if effect.nuisance > MOST_NUISANCE:
        raise InputError(
            f"a {se} clr set needs a search over the other endogenous features; there are "
            f"{effect.nuisance}, and at most {MOST_NUISANCE} are feasible; ask for ar, or for "
            "unadjusted errors"
        )
    moments = scores.sums.size
    if scores.clusters <= moments:
        raise DataError(
            f"{scores.clusters} clusters cannot give a clr set of {moments} moments "
            f"({effect.k} instruments times the output and {effect.nuisance + 1} endogenous "
            "features); expected more clusters than moments, or ask for ar"
        )

    def excess(fixed: Floats, enough: float) -> float:
        highest = -math.log(1 - level)
        return _least_surprise(effect, scores, fixed, highest + enough) - highest

    every = np.eye(2 + effect.nuisance)
    starts = starting_points(effect, scores, every)
    _, best = min((minimise_ar(scores, every, h) for h in starts), key=lambda pieces: pieces[0])
    strong = not effect.nuisance and excess(np.array([0.0, 1.0]), 0.0) > HOPELESS
    ends = search(scores, best, excess, FEW_ANGLES if strong else ANGLES)
    pieces = tuple((low * effect.unit, high * effect.unit) for low, high in ends)
    law = conditional_law(effect.k, 1 + effect.nuisance)
    return ConfidenceSet(effect.label, pieces, level, "clr", se, law)


def quasi_ratio(scores: EffectScores, b: Floats) -> tuple[float, float]:
    """Return LR and r at b, (t,); they do not depend on the length of b."""
    g, (k, t) = scores.sums @ b, scores.sums.shape
    with_g = scores.squares.transpose(1, 0, 2, 3) @ b  # of G's columns with g, (t, k, k)
    S = np.tensordot(b, with_g, 1)
    E = np.linalg.svd(b[None])[2][1:].T
    D = (scores.sums - (with_g @ np.linalg.solve(S, g)).T) @ E
    tied = np.tensordot(E.T, with_g, 1).reshape(-1, k)
    own = np.tensordot(E.T, scores.squares.transpose(1, 0, 2, 3) @ E, 1)  # (p, k, k, p)
    own = own.transpose(0, 1, 3, 2).reshape(len(tied), -1)
    variance = own - tied @ np.linalg.solve(S, tied.T)  # of vec(D')
    units = np.einsum("piqi->pq", variance.reshape(t - 1, k, t - 1, k)) / k
    r = rank_statistic(D.T, variance, units)
    root = np.linalg.cholesky(S)
    u = np.linalg.solve(root, g)
    towards, _ = np.linalg.qr(np.linalg.solve(root, D))
    AR, K = float(u @ u), float(np.sum((towards.T @ u) ** 2))
    far = math.hypot(AR - r, 2 * math.sqrt(r * K))  # without cancellation where r is large
    return ((AR - r + far) / 2 if r < AR else 2 * r * K / (r - AR + far)), r


def p_value(scores: EffectScores, b: Floats) -> float:
    """P(LR larger | r) at b, of theta and gamma together."""
    ratio, r = quasi_ratio(scores, b)
    k, t = scores.sums.shape
    return conditional_tail(ratio, r, k, t - 1)


def _least_surprise(
    effect: PartialledEffect, scores: EffectScores, fixed: Floats, enough: float
) -> float:
    """Return the smallest -log p of (fixed, gamma) over gamma, or one below `enough`.

    The search starts where AR is smallest, and ends there if p is below 1e-9.
    """

    def surprise(b: Floats) -> float:
        p = p_value(scores, b)
        return -math.log(p) if p > 0 else quasi_ratio(scores, b)[0] / 2

    if not effect.nuisance:
        return surprise(fixed)
    basis, least = span(effect, fixed), math.inf
    starts: list[Floats] = []
    for start in starting_points(effect, scores, basis):
        _, h = minimise_ar(scores, basis, start)
        h /= np.linalg.norm(h)
        if any(abs(h @ other) > 1 - SAME for other in starts):
            continue
        starts.append(h)
        least = min(least, surprise(basis @ h))
        if least > HOPELESS:
            continue
        aside = np.linalg.svd(h[None])[2][1:].T  # along h nothing changes
        slope = _numerically(surprise, basis @ h, basis @ aside)
        least = min(least, descend(slope, np.zeros(effect.nuisance), enough)[0])
        if least <= enough:
            break
    return least


def _numerically(
    function: Callable[[Floats], float], b: Floats, directions: Floats
) -> Callable[[Floats], tuple[float, Floats]]:
    """Return v -> the function at b + directions v, and its slope."""

    def evaluate(v: Floats) -> tuple[float, Floats]:
        value = function(b + directions @ v)
        nudged = [function(b + directions @ (v + step)) for step in NUDGE * np.eye(len(v))]
        return value, (np.array(nudged) - value) / NUDGE

    return evaluate
