"""Anderson-Rubin sets of one effect beside other endogenous features, where they are bounded.

The set {theta: min_gamma AR(theta, gamma) <= q} is walked from its middle to its two ends.
Given theta, gamma is found by Gauss and Newton's steps

    b <- b - (D' S^-1 D)^-1 D' S^-1 g,   D = G - Cov(G, g) S^-1 g,

which use that the slope of AR = g' S^-1 g is 2 D' S^-1 g. That takes a few steps where the
instruments are strong; `robust_sets` searches everywhere, at a hundred times the cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ivvi.features.design import Floats
from ivvi.weak_iv.effect_scores import EffectScores

STEPS, EXPANSIONS = 30, 40
FARTHEST = 1e12
"""Effects, in units of the columns' lengths, beyond which nothing is looked for."""
CLOSE = 1e-7
"""Relative error of an end, and decrease of AR at which a minimum counts as found."""


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
