"""Anderson-Rubin sets with heteroskedastic errors, or errors dependent within episodes.

    AR(theta, gamma) = g' S^-1 g,   g = G b,   S = sum_c (Z_c' T_c b)(Z_c' T_c b)'

is chi-squared with k degrees of freedom at the truth, however weak the instrument. With
one endogenous feature the set's ends are real eigenvalues of a quadratic eigenvalue
problem: det(q S(theta) - g(theta) g(theta)') = 0. Other endogenous features are projected
out: theta stays when some gamma does, which errs on the safe side.

`Profile` finds bounded sets beside other endogenous features: {theta: min_gamma AR(theta, gamma)
<= q} is walked from its middle to its two ends. Given theta, gamma is found by Gauss and Newton's
steps

    b <- b - (D' S^-1 D)^-1 D' S^-1 g,   D = G - Cov(G, g) S^-1 g,

which use that the slope of AR = g' S^-1 g is 2 D' S^-1 g. That takes a few steps where the
instruments are strong; `robust_anderson_rubin` searches everywhere, at a hundred times the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ivvi.diagnostics.distributions import check_level, chi2_quantile
from ivvi.estimators.estimate import Floats
from ivvi.weak_iv.confidence_sets import LINE, ConfidenceSet, Intervals
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect

ANGLES = 96
DESCENTS = 100
SAMPLE, LOWEST = 64, 3
"""Directions that are looked at before a descent, and those from which one starts."""
ROOT_STEPS, STEPS, EXPANSIONS = 80, 30, 40
FARTHEST = 1e12
"""Effects, in units of the columns' lengths, beyond which nothing is looked for."""
CLOSE = 1e-7
"""Relative error of an end, and decrease of AR at which a minimum counts as found."""


def robust_anderson_rubin(
    effect: PartialledEffect, scores: EffectScores, level: float = 0.95, *, se: str
) -> ConfidenceSet:
    """Return the Anderson-Rubin set that the scores of rows or of episodes give."""
    check_level(level)
    if effect.k <= effect.nuisance or not effect.moves:
        return ConfidenceSet(effect.label, LINE, level, "ar", se)
    if _is_perfect(scores):
        theta = -float(_estimate(scores)[1])
        pieces: Intervals = ((theta, theta),)
    elif effect.nuisance:
        pieces = _projected(effect, scores, chi2_quantile(level, effect.k))
    else:
        pieces = _exact(scores, chi2_quantile(level, effect.k))
    scaled = tuple((low * effect.unit, high * effect.unit) for low, high in pieces)
    return ConfidenceSet(effect.label, scaled, level, "ar", se, f"chi2({effect.k})")


def statistic(scores: EffectScores, b: Floats) -> float:
    """AR at b, (t,); it does not depend on the length of b."""
    g = scores.sums @ b
    return float(g @ np.linalg.solve(scores.variance(b), g))


def search(
    scores: EffectScores,
    start: Floats,
    excess: Callable[[Floats, float], float],
    angles: int = ANGLES,
) -> Intervals:
    """Find where `excess` of (1, -theta) is at most zero, on a grid of angles.

    theta = centre + scale tan(angle) around the estimate `start`, as b; the two ends of the
    grid are one point, theta = inf, so that (1, -theta) may have any length. `excess` is
    also told which value is low enough to stop looking for a lower one.
    """
    if abs(start[0]) < 1e-8 * np.linalg.norm(start):  # at infinity
        start = _estimate(scores)
    centre, scale = -float(start[1] / start[0]), _standard_error(scores, start / start[0])
    grid = np.linspace(-np.pi / 2, np.pi / 2, angles + 1).tolist()

    def at(angle: float, enough: float = -math.inf) -> float:
        c, s = math.cos(angle), math.sin(angle)
        return excess(np.array([c, -(centre * c + scale * s)]), enough)

    values = [at(angle, 0.0) for angle in grid[:-1]]
    values.append(values[0])
    ends = [
        centre + scale * math.tan(find_root(at, low, high))
        for (low, before), (high, after) in pairwise(zip(grid, values, strict=True))
        if (before <= 0) != (after <= 0)
    ]
    borders = [-math.inf, *ends, math.inf] if values[0] <= 0 else ends
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function of opposite signs at `low` and `high` is zero.

    Regula falsi, in which an end that stays counts half (Illinois); then halving.
    """
    left, right, side = function(low), function(high), 0
    precise = 1e-15 * max(abs(left), abs(right))
    for i in range(ROOT_STEPS):
        if high - low <= 1e-13 * max(abs(low), abs(high)):
            break
        middle = (low * right - high * left) / (right - left)
        if not low < middle < high or i > ROOT_STEPS / 2:
            middle = (low + high) / 2
        value = function(middle)
        if abs(value) <= precise:
            return middle
        if (value > 0) == (left > 0):
            low, left, right = middle, value, right / 2 if side == 1 else right
            side = 1
        else:
            high, right, left = middle, value, left / 2 if side == -1 else left
            side = -1
    return (low + high) / 2


def span(effect: PartialledEffect, fixed: Floats) -> Floats:
    """Return a basis (t, 1 + m) of b in (fixed, 0) and the nuisance directions.

    No statistic depends on the length of b, so that nuisance at infinity is a direction
    like any other.
    """
    basis = np.zeros((2 + effect.nuisance, 1 + effect.nuisance))
    basis[:2, 0], basis[2:, 1:] = fixed, np.eye(effect.nuisance)
    return basis


def starting_points(effect: PartialledEffect, scores: EffectScores, basis: Floats) -> Floats:
    """Return points h, as rows, from which to look for the smallest AR(basis h).

    The lowest of a fixed sample, and the stationary points of the homoskedastic ratio: with
    weak instruments these alone lead past the minimum now and then.
    """
    half = np.linalg.inv(np.linalg.cholesky(basis.T @ effect.unexplained @ basis))
    _, vectors = np.linalg.eigh(half @ basis.T @ effect.explained @ basis @ half.T)
    sample = np.random.default_rng(0).standard_normal((SAMPLE, len(half))) @ half
    lowest = np.argsort(_statistics(scores, sample @ basis.T))[:LOWEST]
    starts = np.vstack([sample[lowest], vectors.T @ half])
    directions: Floats = starts / np.linalg.norm(starts, axis=1, keepdims=True)
    return directions


def minimise_ar(
    scores: EffectScores, basis: Floats, h: Floats, enough: float = -math.inf
) -> tuple[float, Floats]:
    """Minimise AR(basis h) over h by descent from `h`, (m + 1,)."""

    def evaluate(h: Floats) -> tuple[float, Floats]:
        b = basis @ h
        g = scores.sums @ b
        left = np.einsum("iajb,b->iaj", scores.squares, b)
        pull = np.linalg.solve(np.einsum("iaj,a->ij", left, b), g)
        slope = 2 * (scores.sums.T @ pull) - 2 * np.einsum("i,iaj,j->a", pull, left, pull)
        return float(g @ pull), basis.T @ slope

    return descend(evaluate, h, enough)


def descend(
    evaluate: Callable[[Floats], tuple[float, Floats]], h: Floats, enough: float = -math.inf
) -> tuple[float, Floats]:
    """Minimise a function, given with its slope, by BFGS from `h`, down to `enough`."""
    value, slope = evaluate(h)
    inverse = np.eye(len(h)) / max(float(np.linalg.norm(slope)), 1.0)
    for _ in range(DESCENTS):
        step = -inverse @ slope
        if value <= enough or -float(slope @ step) <= 1e-10 * (1 + value):
            break
        new_value, new_slope = evaluate(h + step)
        while new_value > value + 1e-4 * float(slope @ step) and np.abs(step).max() > 1e-9:
            step = step / 2
            new_value, new_slope = evaluate(h + step)
        if value - new_value <= 1e-10 * (1 + value):
            break
        change = new_slope - slope
        h, value, slope = h + step, new_value, new_slope
        if (curvature := float(step @ change)) > 0:
            turn = np.eye(len(h)) - np.outer(step, change) / curvature
            inverse = turn @ inverse @ turn.T + np.outer(step, step) / curvature
    return value, h


@dataclass(frozen=True, slots=True)
class Profile:
    """AR, minimised over the other effects, as a function of one.

    Attributes
    ----------
    centre
        b = (1, -theta, -gamma) where AR is least.
    least
        AR there, zero where the effects are just identified.
    se
        Standard error of theta.
    """

    scores: EffectScores
    centre: Floats
    least: float
    se: float

    @classmethod
    def of(cls, scores: EffectScores) -> Profile | None:
        """Find the middle; None where the variance of the moments is not positive definite."""
        t = scores.sums.shape[1]
        start = np.concatenate([[1.0], -np.linalg.lstsq(scores.sums[:, 1:], scores.sums[:, 0])[0]])
        least, centre = _minimise(scores, start, list(range(1, t)))
        half = np.linalg.pinv(scores.sums[:, 1:])[0]
        variance = float(half @ scores.variance(centre) @ half)
        if not (math.isfinite(least) and variance > 0):
            return None
        return cls(scores, centre, least, math.sqrt(variance))

    def interval(self, q: float) -> tuple[float, float] | None:
        """Return the two ends at which AR is q > `least`; None where the walk does not end."""
        step = self.se * math.sqrt(q - self.least)
        low, high = self._end(q, -step), self._end(q, step)
        return None if low is None or high is None else (low, high)

    def _end(self, q: float, step: float) -> float | None:
        """Walk from the centre to where AR is q; the root of AR grows almost in proportion."""
        others, b = list(range(2, len(self.centre))), self.centre
        inside, outside = 0.0, math.inf
        for _ in range(EXPANSIONS):
            b = b.copy()
            b[1] = self.centre[1] - step
            value, b = _minimise(self.scores, b, others)
            if not math.isfinite(value):
                return None
            inside, outside = (step, outside) if value <= q else (inside, step)
            ratio = math.sqrt(max(value - self.least, 0.0) / (q - self.least))
            guess = step / ratio if ratio > 0 else 2 * step
            if abs(guess - step) <= CLOSE * abs(step):
                return float(guess - self.centre[1])
            low, high = sorted((inside, outside if math.isfinite(outside) else 4 * step))
            step = guess if low < guess < high else (low + high) / 2
        return None


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
        return q * scores.variance(one, other) - np.outer(scores.sums @ one, scores.sums @ other)

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
    pieces: list[tuple[float, float]] = []
    for point, low, high in zip(points, borders[:-1], borders[1:], strict=True):
        if not inside(point):
            continue
        if pieces and pieces[-1][1] == low:
            low = pieces.pop()[0]
        pieces.append((low, high))
    return tuple(pieces)


def _projected(effect: PartialledEffect, scores: EffectScores, q: float) -> Intervals:
    """Solve min_gamma AR(theta, gamma) <= q."""

    def excess(fixed: Floats, enough: float) -> float:
        basis, least = span(effect, fixed), math.inf
        for start in starting_points(effect, scores, basis):
            least = min(least, minimise_ar(scores, basis, start, q + enough)[0])
            if least <= q + enough:
                break
        return least - q

    return search(scores, _estimate(scores), excess)


def _is_perfect(scores: EffectScores) -> bool:
    """Whether the residual at the estimate is nothing but rounding error."""
    typical = np.einsum("iaia->a", scores.squares)
    return bool(np.trace(scores.variance(_estimate(scores))) <= 1e-13 * typical.max())


def _estimate(scores: EffectScores) -> Floats:
    """Two-stage least squares (the instruments are orthonormal), as b = (1, -theta, -gamma)."""
    solution = np.linalg.lstsq(scores.sums[:, 1:], scores.sums[:, 0])[0]
    return np.concatenate([[1.0], -solution])


def _standard_error(scores: EffectScores, b: Floats) -> float:
    """Standard error of theta at the two-stage estimate."""
    half = np.linalg.pinv(scores.sums[:, 1:])[0]
    return float(np.sqrt(half @ scores.variance(b) @ half))


def _statistics(scores: EffectScores, B: Floats) -> Floats:
    """AR at each row of B (n, t)."""
    g = B @ scores.sums.T
    S = np.einsum("iajb,na,nb->nij", scores.squares, B, B, optimize=True)
    values: Floats = np.einsum("ni,ni->n", g, np.linalg.solve(S, g[:, :, None])[:, :, 0])
    return values


def _minimise(scores: EffectScores, b: Floats, free: list[int]) -> tuple[float, Floats]:
    """Minimise AR over the entries `free` of b; infinite where its variance is not positive."""
    value, slope, hessian = _evaluate(scores, b, free)
    for _ in range(STEPS):
        if not free or not math.isfinite(value):
            break
        step = np.zeros(len(b))
        step[free] = -np.linalg.solve(hessian, slope)
        if -float(slope @ step[free]) <= CLOSE * (1 + value):
            break
        shrink = 1.0
        trial = _evaluate(scores, b + step, free)
        while trial[0] > value and shrink > 1e-6:
            shrink /= 2
            trial = _evaluate(scores, b + shrink * step, free)
        if trial[0] > value:
            break
        b, (value, slope, hessian) = b + shrink * step, trial
    return value, b


def _evaluate(scores: EffectScores, b: Floats, free: list[int]) -> tuple[float, Floats, Floats]:
    """Return AR at b, D' S^-1 g and D' S^-1 D of the free entries."""
    if not np.abs(b).max() < FARTHEST:
        return math.inf, np.zeros(len(free)), np.eye(len(free))
    (k, t), g = scores.sums.shape, scores.sums @ b
    with_g = (scores.by_column @ b).reshape(t, k * k)  # Cov of G's columns with g
    try:
        root = np.linalg.cholesky((b @ with_g).reshape(k, k))
    except np.linalg.LinAlgError:
        return math.inf, np.zeros(len(free)), np.eye(len(free))
    whiten = np.linalg.inv(root)
    u = whiten @ g
    D = whiten @ (scores.sums - (with_g.reshape(t, k, k) @ (u @ whiten)).T)[:, free]
    return float(u @ u), D.T @ u, D.T @ D
