"""Critical values of t that allow for the first-stage F: Lee, McCrary, Moreira, Porter (2022).

With one endogenous feature and one instrument, the t-ratio is a function of two normal
numbers: v, the error of the first stage in its own standard errors, and Anderson-Rubin's. It
rejects most often if the two are the same number. Then, with f0 the true first-stage t and
f = f0 + v the estimated one,

    |t| = |v| |f| / f0.

The critical value c(f), falling in |f|, is the one that makes P(|t| > c(f)) = 5% for every
f0. For f0 beyond 8.6 that is 1.96; below, nothing is rejected for 0 < f < f0, and c follows
from the two tails that are,

    P(v > f - f0) + P(v < -f0 - g) = 5%,   c(f) = f (f - f0) / f0,   c(g) = g (g + f0) / f0,

solved for c from a first guess without the second tail. It is infinite at F = f^2 = 3.84.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.special import ndtr, ndtri

from ivvi._io.arrays import Floats

LEVEL = 0.95
"""The level for which the critical values are."""
ONE_SIDED, TWO_SIDED = float(ndtri(0.95)), float(ndtri(0.975))
ENOUGH_F = (ONE_SIDED * TWO_SIDED / (TWO_SIDED - ONE_SIDED)) ** 2
"""First-stage F from which Wald's interval needs no correction: 104.67."""
POINTS, ROUNDS, HALVINGS = 400, 60, 40
SAME = 1e-9


def tf_critical_value(f: float) -> float:
    """Return the critical value of |t| at 5%, given the first stage's F.

    >>> [round(tf_critical_value(f), 2) for f in (5.0, 10.0, 104.7)]
    [6.86, 3.43, 1.96]
    """
    root = math.sqrt(max(f, 0.0))
    if root <= TWO_SIDED:
        return math.inf
    if f >= ENOUGH_F:
        return TWO_SIDED
    truth, roots = _solution()
    f0 = float(np.interp(root, roots, truth))
    return root * (root - f0) / f0


@cache
def _solution() -> tuple[Floats, Floats]:
    """Return true first-stage t's f0, ascending, and the f at which v > f - f0 is rejected."""
    edge = math.sqrt(ENOUGH_F) - ONE_SIDED
    truth = np.geomspace(1e-4, edge, POINTS)
    roots = truth + np.where(truth < 0.5, TWO_SIDED, ONE_SIDED)
    for _ in range(ROUNDS):
        far = truth + _far_roots(truth, roots)
        before, roots = roots, truth + ndtri(0.95 + ndtr(-far))
        if np.max(np.abs(roots - before)) < SAME:
            break
    return truth, roots


def _far_roots(truth: Floats, roots: Floats) -> Floats:
    """Return g with c(g) = g (g + f0) / f0, the rejections on the other side of zero."""
    critical = np.log(roots * (roots - truth) / truth)
    low, high = np.full(len(truth), TWO_SIDED), np.full(len(truth), math.sqrt(ENOUGH_F))
    for _ in range(HALVINGS):
        g = (low + high) / 2
        below = np.log(g * (g + truth) / truth) < np.interp(g, roots, critical)
        low, high = np.where(below, g, low), np.where(below, high, g)
    middle: Floats = (low + high) / 2
    return middle
