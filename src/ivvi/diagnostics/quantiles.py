"""Quantiles, and tails of many values at once, beside the tails of `ivvi.diagnostics.tails`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ivvi.diagnostics.tails import chi2_tail, f_tail
from ivvi.errors import InputError

Floats = NDArray[np.float64]
HALVINGS = 200


def check_level(level: float) -> None:
    """Refuse a confidence level that is none."""
    if not 0 < level < 1:
        raise InputError(f"the level is {level:g}; expected a number between 0 and 1, as in 0.95")


def chi2_quantile(level: float, freedom: int) -> float:
    """Return the value that chi-squared stays below with probability `level`."""
    return solve_decreasing(lambda value: chi2_tail(value, freedom), 1 - level)


def f_quantile(level: float, numerator: int, denominator: float) -> float:
    """Return the value that F stays below with probability `level`."""
    return solve_decreasing(lambda value: f_tail(value, numerator, denominator), 1 - level)


def two_sided(freedom: float | None = None, level: float = 0.95) -> float:
    """Return what |t| stays below with probability `level`: normal, or Student's t."""
    if freedom is None:
        return math.sqrt(chi2_quantile(level, 1))
    return math.sqrt(f_quantile(level, 1, freedom))


def chi2_tails(values: Floats, freedom: int) -> Floats:
    """P(chi2 > value) for each value, by Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1)."""
    x = np.maximum(values, 0.0) / 2
    a = 0.5 if freedom % 2 else 1.0
    roots = np.sqrt(x).ravel().tolist()
    tails = np.exp(-x) if a == 1 else np.reshape([math.erfc(v) for v in roots], x.shape)
    with np.errstate(divide="ignore"):
        logs = np.log(x)
    while a < freedom / 2:
        tails = tails + np.exp(a * logs - x - math.lgamma(a + 1))
        a += 1
    return np.asarray(tails)


def solve_decreasing(
    function: Callable[[float], float], target: float, low: float = 0.0, high: float | None = None
) -> float:
    """Return where a decreasing function meets `target`, by halving down to rounding error.

    Without `high` the bracket grows until it holds the solution.
    """
    if high is None:
        high = low + 1.0
        while function(high) > target and math.isfinite(high):
            high = low + 2 * (high - low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return high
