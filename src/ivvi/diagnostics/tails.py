"""Upper tails of the F and chi-squared distributions, central and not.

SciPy has these; importing them costs a third of a second of processor time, more than
the estimation of most logs, and the command line would pay it each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

TINY = 1e-300
EPSILON = 1e-16
MOST_TERMS = 100_000
MOST_STEPS = 80


def f_tail(value: float, numerator: int, denominator: float) -> float:
    """P(F > value) = I_s(d2 / 2, d1 / 2) with s = d2 / (d2 + d1 value)."""
    if value <= 0:
        return 1.0
    total = denominator + numerator * value
    x, y = denominator / total, numerator * value / total
    return _beta(x, y, denominator / 2, numerator / 2)


def chi2_tail(value: float, freedom: float) -> float:
    """P(chi2 > value) = Q(k / 2, value / 2), the regularised upper incomplete gamma."""
    a, x = freedom / 2, value / 2
    if x <= 0 or math.isinf(x):
        return 1.0 if x <= 0 else 0.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        return 1 - scale * _gamma_series(a, x)
    return scale * _fraction(lambda i: (-i * (i - a), x + 2 * i + 1 - a), x + 1 - a)


def _beta(x: float, y: float, a: float, b: float) -> float:
    """Regularised incomplete beta I_x(a, b), y = 1 - x given apart to keep its digits."""
    if x <= 0 or y <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _beta(y, x, b, a)
    scale = a * math.log(x) + b * math.log(y)
    scale += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.log(a)

    def term(i: int) -> tuple[float, float]:
        m = i // 2
        if i % 2:
            return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)), 1.0
        return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), 1.0

    return math.exp(scale) * _fraction(term, 1.0)


def _gamma_series(a: float, x: float) -> float:
    """Sum of x^i / (a (a + 1) ... (a + i))."""
    total = part = 1 / a
    for i in range(1, MOST_TERMS):
        part *= x / (a + i)
        total += part
        if part < total * EPSILON:
            break
    return total


def _fraction(term: Callable[[int], tuple[float, float]], first: float) -> float:
    """1 / (first + n1 / (d1 + n2 / (d2 + ...))) for term(i) = (n_i, d_i), by Lentz's method."""
    value = first or TINY
    ratio, inverse = value, 0.0
    for i in range(1, MOST_TERMS):
        n, d = term(i)
        inverse = 1 / (d + n * inverse or TINY)
        ratio = d + n / ratio or TINY
        value *= ratio * inverse
        if abs(ratio * inverse - 1) < EPSILON * 4:
            break
    return 1 / value


def noncentral_tail(value: float, freedom: float, noncentrality: float) -> float:
    """P(chi2(k, nc) > value): central tails of k + 2 j, weighted by Poisson(nc / 2).

    The tails follow from the first: Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1).
    """
    half, x = noncentrality / 2, value / 2
    if half <= 0 or x <= 0:
        return chi2_tail(value, freedom)
    j = max(0, int(half - 9 * math.sqrt(half) - 9))  # the weights before are below 1e-17
    a = freedom / 2 + j
    tail, total = chi2_tail(value, 2 * a), 0.0
    weight = math.exp(j * math.log(half) - half - math.lgamma(j + 1))
    step = math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    while j <= half or weight > EPSILON:
        total += weight * tail
        tail += step
        a, j = a + 1, j + 1
        weight, step = weight * half / j, step * x / a
    return min(total, 1.0)


def noncentral_quantile(probability: float, freedom: float, noncentrality: float) -> float:
    """Return the value below which a noncentral chi-squared falls with `probability`."""

    def gap(value: float) -> float:
        return noncentral_tail(value, freedom, noncentrality) - (1 - probability)

    low, high = 0.0, freedom + noncentrality
    while gap(high) > 0:
        low, high = high, 2 * high + 1
    return find_root(gap, low, high)


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a continuous function of opposite signs at `low` and `high` is zero.

    Regula falsi, in which an end that stays counts half (Illinois); then halving.
    """
    left, right, side = function(low), function(high), 0
    precise = 1e-15 * max(abs(left), abs(right))
    for i in range(MOST_STEPS):
        if high - low <= 1e-13 * max(abs(low), abs(high)):
            break
        middle = (low * right - high * left) / (right - left)
        if not low < middle < high or i > MOST_STEPS / 2:
            middle = (low + high) / 2
        found = function(middle)
        if abs(found) <= precise:
            return middle
        if (found > 0) == (left > 0):
            low, left, right = middle, found, right / 2 if side == 1 else right
            side = 1
        else:
            high, right, left = middle, found, left / 2 if side == -1 else left
            side = -1
    return (low + high) / 2
