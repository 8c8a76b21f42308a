"""Anderson-Rubin sets with heteroskedastic errors, or errors dependent within episodes.

    AR(theta, gamma) = g' S^-1 g,   g = G b,   S = sum_c (Z_c' T_c b)(Z_c' T_c b)'

is chi-squared with k degrees of freedom at the truth, however weak the instrument. With
one endogenous feature the set's ends are real eigenvalues of a quadratic eigenvalue
problem: det(q S(theta) - g(theta) g(theta)') = 0. Other endogenous features are projected
out: theta stays when some gamma does, which errs on the safe side.

`Profile` finds bounded sets beside other endogenous features: {theta: min_gamma AR(theta, gamma)
<= q} is walked from its middle to its two ends, for all effects at once. Given theta, gamma is
found by Gauss and Newton's steps

    b <- b - (D' S^-1 D)^-1 D' S^-1 g,   D = G - Cov(G, g) S^-1 g,

which use that the slope of AR = g' S^-1 g is 2 D' S^-1 g. That takes a few steps where the
instruments are strong; `robust_anderson_rubin` searches everywhere, at a hundred times the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ivvi._io.arrays import Bools, Floats, Ints
from ivvi._io.result import Compact
from ivvi.diagnostics.tails_and_quantiles import check_level, chi2_quantile
from ivvi.weak_iv.confidence_sets import LINE, ConfidenceSet, Intervals
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect
from ivvi.weak_iv.root_and_minimum import descend, find_root

ANGLES = 96
SAMPLE, LOWEST = 64, 3
"""Directions that are looked at before a descent, and those from which one starts."""
STEPS, HALVINGS, EXPANSIONS = 30, 20, 40
FARTHEST = 1e12
"""Effects, in units of the columns' lengths, beyond which nothing is looked for."""
WALK_BYTES = 32 << 20
"""Memory of the walks to the ends of sets that are made side by side."""
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


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Compact):
    """AR, minimised over all effects but one, as a function of that one.

    Attributes
    ----------
    centre
        b = (1, -theta_1, ..., -theta_m) where AR is least.
    least
        AR there, zero where the effects are just identified.
    cov
        Covariance of theta there, (m, m).
    """

    scores: EffectScores
    centre: Floats
    least: float
    cov: Floats

    @classmethod
    def of(cls, scores: EffectScores) -> Profile | None:
        """Find the middle; None where the variance of the moments is not positive definite."""
        start = _estimate(scores)
        free = np.arange(len(start)) > 0
        (least,), (centre,) = _minimise(scores, start[None], free[None])
        half = np.linalg.pinv(scores.sums[:, 1:])
        cov = half @ scores.variance(centre) @ half.T
        if not (math.isfinite(least) and np.all(np.diag(cov) > 0)):
            return None
        return cls(scores, centre, float(least), cov)

    def intervals(self, effects: Sequence[int], q: Floats) -> Floats:
        """Return the two ends of each effect at which AR is its q > `least`, (len(effects), 2).

        NaN where a walk does not end.
        """
        k, t = self.scores.sums.shape
        both, twice = np.repeat(np.asarray(effects, dtype=np.int64), 2), np.repeat(q, 2)
        sides = np.tile([-1.0, 1.0], len(effects)) * np.sqrt(np.diag(self.cov))[both]
        at_once = max(1, WALK_BYTES // (8 * t * k * k))
        parts = [slice(i, i + at_once) for i in range(0, len(both), at_once)]
        ends = [self._ends(both[part], sides[part], twice[part]) for part in parts]
        return np.concatenate([np.empty(0), *ends]).reshape(-1, 2)

    def _ends(self, effects: Ints, se: Floats, q: Floats) -> Floats:
        """Walk from the centre to where AR is q; the root of AR grows almost in proportion.

        The first step moves the other effects as their covariance with this one says.
        """
        ends, walking = np.full(len(q), np.nan), np.arange(len(q))
        room = q - self.least
        step, thetas = se * np.sqrt(room), np.tile(self.centre, (len(q), 1))
        thetas[:, 1:] -= (step / se**2)[:, None] * self.cov[effects]
        inside, outside = np.zeros(len(q)), np.full(len(q), np.inf)
        for _ in range(EXPANSIONS):
            thetas[walking, 1 + effects[walking]] = (
                self.centre[1 + effects[walking]] - step[walking]
            )
            values, thetas[walking] = _minimise(
                self.scores, thetas[walking], _others(effects[walking], thetas)
            )
            walking, values = walking[np.isfinite(values)], values[np.isfinite(values)]
            now = step[walking]
            inside[walking] = np.where(values <= q[walking], now, inside[walking])
            outside[walking] = np.where(values <= q[walking], outside[walking], now)
            ratio = np.sqrt(np.maximum(values - self.least, 0.0) / room[walking])
            guess = now / np.where(ratio > 0, ratio, 0.5)
            arrived = np.abs(guess - now) <= CLOSE * np.abs(now)
            ends[walking[arrived]] = (guess - self.centre[1 + effects[walking]])[arrived]
            near, far = inside[walking], outside[walking]
            far = np.where(np.isfinite(far), far, 4 * now)
            between = (np.minimum(near, far) < guess) & (guess < np.maximum(near, far))
            step[walking] = np.where(between, guess, (near + far) / 2)
            walking = walking[~arrived]
            if not len(walking):
                break
        return ends


def _others(effects: Ints, thetas: Floats) -> Bools:
    """Return which entries of b move while those effects stay where they are, (w, t)."""
    free = np.ones((len(effects), thetas.shape[1]), dtype=bool)
    free[:, 0] = False
    free[np.arange(len(effects)), 1 + effects] = False
    return free


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


def _statistics(scores: EffectScores, thetas: Floats) -> Floats:
    """AR at each row of thetas (n, t)."""
    g = thetas @ scores.sums.T
    S = np.einsum("iajb,na,nb->nij", scores.squares, thetas, thetas, optimize=True)
    values: Floats = np.einsum("ni,ni->n", g, np.linalg.solve(S, g[:, :, None])[:, :, 0])
    return values


def _minimise(scores: EffectScores, thetas: Floats, free: Bools) -> tuple[Floats, Floats]:
    """Minimise AR from each row of thetas (w, t) over its `free` entries.

    Returns the least values (w,), infinite where a variance is not positive, and where they are.
    """
    thetas = thetas.copy()
    values, slopes, hessians = _evaluate(scores, thetas, free)
    moving = np.flatnonzero(np.isfinite(values))
    for _ in range(STEPS):
        steps = -solved(hessians[moving], slopes[moving])
        gains = -np.sum(slopes[moving] * steps, axis=1)
        worth = gains > CLOSE * (1 + values[moving])
        moving, steps = moving[worth], steps[worth]
        if not len(moving):
            break
        trial = _evaluate(scores, thetas[moving] + steps, free[moving])
        for _ in range(HALVINGS):
            worse = np.flatnonzero(trial[0] > values[moving])
            if not len(worse):
                break
            steps[worse] /= 2
            again = _evaluate(scores, (thetas[moving] + steps)[worse], free[moving[worse]])
            for part, new in zip(trial, again, strict=True):
                part[worse] = new
        better = trial[0] <= values[moving]
        moving = moving[better]
        thetas[moving] += steps[better]
        values[moving], slopes[moving], hessians[moving] = (part[better] for part in trial)
    return values, thetas


def solved(matrices: Floats, b: Floats) -> Floats:
    """Solve systems (w, p, p) for b (w, p); the shortest solution where a matrix is singular."""
    try:
        return np.asarray(np.linalg.solve(matrices, b[:, :, None])[:, :, 0])
    except np.linalg.LinAlgError:
        return np.asarray(np.einsum("wij,wj->wi", np.linalg.pinv(matrices, hermitian=True), b))


def _evaluate(scores: EffectScores, thetas: Floats, free: Bools) -> tuple[Floats, Floats, Floats]:
    """Return AR at each row b of thetas, D' S^-1 g and D' S^-1 D of its free entries.

    The entries that stay have no slope and a curvature of one, so that a step leaves them.
    """
    (w, t), k = thetas.shape, len(scores.sums)
    with_g = (thetas @ scores.by_column).reshape(w, t, k * k)  # Cov of G's columns with g
    S = (thetas[:, None] @ with_g).reshape(w, k, k)
    S[~(np.abs(thetas).max(axis=1) < FARTHEST)] = 0.0
    whiten = _inverse_roots(S)
    u = whiten @ (thetas @ scores.sums.T)[:, :, None]
    pull = whiten.swapaxes(1, 2) @ u
    turned = (with_g.reshape(w, t, k, k) @ pull[:, None])[..., 0].swapaxes(1, 2)
    D = np.where(free[:, None], whiten @ (scores.sums - turned), 0.0)
    values, slopes = np.sum(u * u, axis=(1, 2)), np.sum(D * u, axis=1)
    hessians = D.swapaxes(1, 2) @ D + np.eye(t) * ~free[:, None]
    return np.where(np.isfinite(values), values, np.inf), slopes, hessians


def _inverse_roots(S: Floats) -> Floats:
    """Return L^-1 of each S = L L', (w, k, k); NaN where S is not positive definite."""
    try:
        return np.linalg.inv(np.linalg.cholesky(S))
    except np.linalg.LinAlgError:
        if len(S) == 1:
            return np.full_like(S, np.nan)
        return np.concatenate([_inverse_roots(matrix[None]) for matrix in S])
