"""Moments as few rows that say the same, and what else is computed once from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ivvi.features.design import Floats
from ivvi.moments.moments import Moments

P = ParamSpec("P")
T = TypeVar("T")


def remembered(
    function: Callable[Concatenate[Moments, P], T],
) -> Callable[Concatenate[Moments, P], T]:
    """Compute a function of moments (and of words) once, as long as the moments live."""
    results: WeakKeyDictionary[Moments, dict[Any, T]] = WeakKeyDictionary()

    @wraps(function)
    def once(moments: Moments, /, *args: P.args, **kwargs: P.kwargs) -> T:
        known, key = results.setdefault(moments, {}), (args, tuple(kwargs.items()))
        if key not in known:
            known[key] = function(moments, *args, **kwargs)
        return known[key]

    return once


@remembered
def compress(moments: Moments) -> Floats:
    """Return at most p rows R with R^T R = scatter / weight, (m, p).

    They are a data set that no least-squares method can tell from the centred rows of v,
    so that estimators may use QR and SVD, whose errors grow with the condition number of
    the data and not with its square. Columns are brought to one scale first, which makes
    the result independent of units.
    """
    covariance = moments.scatter / moments.weight
    spread = np.sqrt(np.diag(covariance))
    varies = np.flatnonzero(~is_constant(moments))
    scale = spread[varies]
    correlation = covariance[np.ix_(varies, varies)] / np.outer(scale, scale)
    try:
        factor: Floats = np.linalg.cholesky(correlation).T
    except np.linalg.LinAlgError:  # collinear columns
        values, vectors = np.linalg.eigh(correlation)
        keep = values > 0
        factor = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
    R = np.zeros((len(factor), len(spread)))
    R[:, varies] = factor * scale
    return R


def is_constant(moments: Moments) -> NDArray[np.bool_]:
    """Tell which columns of v never vary, up to rounding, (p,)."""
    spread = np.sqrt(np.diag(moments.scatter) / moments.weight)
    constant: NDArray[np.bool_] = spread <= 1e-12 * np.abs(moments.mean)
    return constant
