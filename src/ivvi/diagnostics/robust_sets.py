"""Anderson-Rubin sets with heteroskedastic errors, or errors dependent within episodes.

    AR(theta, gamma) = g' S^-1 g,   g = G b,   S = sum_c (Z_c' T_c b)(Z_c' T_c b)'

is chi-squared with k degrees of freedom at the truth, however weak the instrument. With
one endogenous feature the set's ends are real eigenvalues of a quadratic eigenvalue
problem: det(q S(theta) - g(theta) g(theta)') = 0. Other endogenous features are projected
out: theta stays when some gamma does, which errs on the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ivvi.diagnostics.confidence_sets import LINE, ConfidenceSet, Intervals
from ivvi.diagnostics.effect_scores import EffectScores
from ivvi.diagnostics.effects import Effect
from ivvi.diagnostics.quantiles import check_level, chi2_quantile
from ivvi.estimators.estimate import Floats

ANGLES = 96
HALVINGS = 48
DESCENTS = 100


def robust_anderson_rubin(
    effect: Effect, scores: EffectScores, level: float = 0.95, *, se: str
) -> ConfidenceSet:
    """Return the Anderson-Rubin set that the scores of rows or of episodes give."""
    check_level(level)
    if effect.k <= effect.nuisance or not effect.moves:
        found = LINE
    elif _is_perfect(scores):
        theta = -float(_estimate(scores)[1])
        found = ((theta, theta),)
    elif effect.nuisance:
        found = _projected(effect, scores, chi2_quantile(level, effect.k))
    else:
        found = _exact(scores, chi2_quantile(level, effect.k))
    scaled = tuple((low * effect.unit, high * effect.unit) for low, high in found)
    return ConfidenceSet(effect.label, scaled, level, "ar", se)


def statistic(scores: EffectScores, b: Floats) -> float:
    """AR at b, (t,); it does not depend on the length of b."""
    g = scores.G @ b
    return float(g @ np.linalg.solve(scores.variance(b), g))


def _exact(scores: EffectScores, q: float) -> Intervals:
    """Solve AR(theta) <= q without nuisance.

    In a frame (u, w) of the plane of b, with u at the two-stage estimate, the matrix
    q S - g g' is quadratic in the coordinate s of b = w + s u and its leading matrix,
    at the estimate, is regular; infinite theta is a point like any other.
    """
    u = _estimate(scores)
    u /= np.linalg.norm(u)
    w = np.array([-u[1], u[0]])

    def form(one: Floats, other: Floats) -> Floats:
        return q * scores.variance(one, other) - np.outer(scores.G @ one, scores.G @ other)

    lead, cross, last = form(u, u), form(u, w) + form(w, u), form(w, w)
    k = len(lead)
    companion = np.zeros((2 * k, 2 * k))
    companion[:k, k:] = np.eye(k)
    companion[k:, :k] = -np.linalg.solve(lead, last)
    companion[k:, k:] = -np.linalg.solve(lead, cross)
    roots = np.linalg.eigvals(companion)
    real = roots.real[np.abs(roots.imag) <= 1e-7 * np.abs(roots)]
    b = w + real[:, None] * u
    ends = np.sort(-b[:, 1] / b[:, 0]).tolist()
    return _accepted(ends, lambda theta: statistic(scores, np.array([1.0, -theta])) <= q)


def _accepted(ends: list[float], inside: Callable[[float], bool]) -> Intervals:
    """Join the stretches between candidate ends at whose middle `inside` holds."""
    reach = 1.0 + (ends[-1] - ends[0] if ends else 0.0)
    middles = [(low + high) / 2 for low, high in pairwise(ends)]
    points = [ends[0] - reach, *middles, ends[-1] + reach] if ends else [0.0]
    borders = [-math.inf, *ends, math.inf]
    found: list[tuple[float, float]] = []
    for point, low, high in zip(points, borders[:-1], borders[1:], strict=True):
        if not inside(point):
            continue
        if found and found[-1][1] == low:
            low = found.pop()[0]
        found.append((low, high))
    return tuple(found)


def _projected(effect: Effect, scores: EffectScores, q: float) -> Intervals:
    """Solve min_gamma AR(theta, gamma) <= q on a grid of angles, ends by halving.

    theta = centre + scale tan(angle); the two ends of the grid are one point, theta = inf.
    """
    start = _estimate(scores)
    centre, scale = -float(start[1]), _standard_error(scores, start)
    angles = np.linspace(-np.pi / 2, np.pi / 2, ANGLES + 1)

    def inside(angle: float) -> bool:
        c, s = math.cos(angle), math.sin(angle)
        return _profile(effect, scores, np.array([c, -(centre * c + scale * s)]), q) <= q

    verdicts = [inside(angle) for angle in angles[:-1]]
    verdicts.append(verdicts[0])
    ends = []
    for i, (before, after) in enumerate(pairwise(verdicts)):
        if before == after:
            continue
        low, high = float(angles[i]), float(angles[i + 1])
        for _ in range(HALVINGS):
            half = (low + high) / 2
            low, high = (half, high) if inside(half) == before else (low, half)
        ends.append(centre + scale * math.tan((low + high) / 2))
    borders = [-math.inf, *ends, math.inf] if verdicts[0] else ends
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def _is_perfect(scores: EffectScores) -> bool:
    """Whether the residual at the estimate is nothing but rounding error."""
    typical = np.einsum("iaia->a", scores.H)
    return bool(np.trace(scores.variance(_estimate(scores))) <= 1e-13 * typical.max())


def _estimate(scores: EffectScores) -> Floats:
    """Two-stage least squares (the instruments are orthonormal), as b = (1, -theta, -gamma)."""
    solution = np.linalg.lstsq(scores.G[:, 1:], scores.G[:, 0])[0]
    return np.concatenate([[1.0], -solution])


def _standard_error(scores: EffectScores, b: Floats) -> float:
    """Standard error of theta at the two-stage estimate."""
    half = np.linalg.pinv(scores.G[:, 1:])[0]
    return float(np.sqrt(half @ scores.variance(b) @ half))


def _profile(effect: Effect, scores: EffectScores, fixed: Floats, enough: float) -> float:
    """Minimise AR over b in the span of (fixed, 0) and the nuisance directions.

    AR does not depend on the length of b, so that nuisance at infinity is a direction like
    any other. Descent starts at the homoskedastic minimiser and, if it stays above
    `enough`, at the other eigenvectors of that problem.
    """
    basis = np.zeros((len(scores.G[0]), 1 + effect.nuisance))
    basis[:2, 0], basis[2:, 1:] = fixed, np.eye(effect.nuisance)
    inner = basis.T @ effect.M @ basis
    half = np.linalg.inv(np.linalg.cholesky(inner))
    _, vectors = np.linalg.eigh(half @ basis.T @ effect.P @ basis @ half.T)
    least = math.inf
    for start in (half.T @ vectors).T:
        least = min(least, _descend(scores, basis, start / np.linalg.norm(start)))
        if least <= enough:
            break
    return least


def _descend(scores: EffectScores, basis: Floats, h: Floats) -> float:
    """Minimise AR(basis h) over h by BFGS from `h`, (m + 1,)."""

    def evaluate(h: Floats) -> tuple[float, Floats]:
        b = basis @ h
        g = scores.G @ b
        left = np.einsum("iajb,b->iaj", scores.H, b)
        pull = np.linalg.solve(np.einsum("iaj,a->ij", left, b), g)
        slope = 2 * (scores.G.T @ pull) - 2 * np.einsum("i,iaj,j->a", pull, left, pull)
        return float(g @ pull), basis.T @ slope

    value, slope = evaluate(h)
    inverse = np.eye(len(h)) / max(float(np.linalg.norm(slope)), 1.0)
    for _ in range(DESCENTS):
        step = -inverse @ slope
        found, new_slope = evaluate(h + step)
        while found > value + 1e-4 * float(slope @ step) and np.abs(step).max() > 1e-14:
            step = step / 2
            found, new_slope = evaluate(h + step)
        if value - found <= 1e-10 * (1 + value):
            break
        change = new_slope - slope
        h, value, slope = h + step, found, new_slope
        if (curvature := float(step @ change)) > 0:
            turn = np.eye(len(h)) - np.outer(step, change) / curvature
            inverse = turn @ inverse @ turn.T + np.outer(step, step) / curvature
    return value
