"""Tails and quantiles of the test statistics' distributions, by scipy.special."""

from __future__ import annotations

import numpy as np
from scipy import special

from ivvi._io.arrays import Floats
from ivvi.errors import InputError


def check_level(level: float) -> None:
    """Refuse a level that is not between 0 and 1."""
    if not 0 < level < 1:
        raise InputError(f"the level is {level:g}; expected a number between 0 and 1, as in 0.95")


def f_tail(value: float, numerator: float, denominator: float) -> float:
    """P(F > value); one for a value of zero, whatever the degrees of freedom."""
    return 1.0 if value <= 0 else float(special.fdtrc(numerator, denominator, value))


def f_quantile(level: float, numerator: float, denominator: float) -> float:
    """Return the value that F stays below with probability `level`."""
    return float(special.fdtri(numerator, denominator, level))


def chi2_tail(value: float, freedom: float) -> float:
    """P(chi2 > value); one for a value of zero, whatever the degrees of freedom."""
    return 1.0 if value <= 0 else float(special.chdtrc(freedom, value))


def chi2_tails(values: Floats, freedom: float) -> Floats:
    """P(chi2 > value) for each value."""
    return np.asarray(special.chdtrc(freedom, np.maximum(values, 0.0)))


def chi2_quantile(level: float, freedom: float) -> float:
    """Return the value that chi-squared stays below with probability `level`."""
    return float(special.chdtri(freedom, 1 - level))


def noncentral_tail(value: float, freedom: float, noncentrality: float) -> float:
    """P(chi2(freedom, noncentrality) > value), to an absolute error of 1e-13 or so."""
    below = float(special.chndtr(max(value, 0.0), freedom, noncentrality))
    return min(max(1 - below, 0.0), 1.0)


def noncentral_quantile(probability: float, freedom: float, noncentrality: float) -> float:
    """Return the value below which a noncentral chi-squared falls with `probability`."""
    return float(special.chndtrix(probability, freedom, noncentrality))


def two_sided(freedom: float | None = None, level: float = 0.95) -> float:
    """Return the value that |t| stays below with probability `level`: normal, or Student's t."""
    upper = (1 + level) / 2
    return float(special.ndtri(upper) if freedom is None else special.stdtrit(freedom, upper))
