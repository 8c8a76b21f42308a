"""B-splines on NumPy and JAX arrays, continued linearly outside their grid."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Array = Any
DEGREE = 3


def spline_columns(v: Array, grid: Array) -> Array:
    """Evaluate all splines but the first on v (...,); returns (..., knots + 1).

    The grid is a tuple of numbers, or an array that JAX may trace.
    """
    return spline_basis(v, grid)[..., 1:]


def spline_basis(v: Array, grid: Array) -> Array:
    """Evaluate all splines on v (...,); returns (..., knots + 2), which sum to one."""
    xp = v.__array_namespace__()
    low, high = grid[0], grid[-1]
    inside = xp.clip(v, low, high)[..., None]
    below, above = xp.minimum(v - low, 0.0)[..., None], xp.maximum(v - high, 0.0)[..., None]
    slope_low, slope_high = known_slopes(grid) if isinstance(grid, tuple) else end_slopes(grid)
    return bases(inside, grid, DEGREE) + below * slope_low + above * slope_high


def bases(v: Array, grid: Array, degree: int) -> Array:
    """B-splines by the Cox-de Boor recursion on v (..., 1) inside the grid."""
    xp, t = v.__array_namespace__(), knots_of(grid)
    last = (t[:-1] < t[1:]) & (t[1:] == grid[-1])  # the last interval includes its right end
    basis = ((v >= t[:-1]) & ((v < t[1:]) | (last & (v == grid[-1])))).astype(v.dtype)
    for d in range(1, degree + 1):
        left, right = t[d:-1] - t[: -d - 1], t[d + 1 :] - t[1:-d]
        up, down = _inverse(left), _inverse(right)
        basis = (v - t[: -d - 1]) * up * basis[..., :-1] + (t[d + 1 :] - v) * down * basis[..., 1:]
    return xp.asarray(basis)


def end_slopes(grid: Array) -> tuple[Array, Array]:
    """Derivatives of all splines at the two ends of the grid, by the degree-lowering formula."""
    t = knots_of(grid)
    ends = t[np.array([[0], [-1]])]
    scaled = DEGREE * bases(ends, grid, DEGREE - 1) * _inverse(t[DEGREE:] - t[:-DEGREE])
    slopes = scaled[:, :-1] - scaled[:, 1:]
    return slopes[0], slopes[1]


known_slopes = lru_cache(maxsize=256)(end_slopes)


def knots_of(grid: Array) -> Array:
    """The grid with its ends repeated."""
    values = np.asarray(grid) if isinstance(grid, tuple) else grid
    return values[np.clip(np.arange(-DEGREE, len(grid) + DEGREE), 0, len(grid) - 1)]


def _inverse(widths: Array) -> Array:
    """1 / width, and 0 for the empty intervals of repeated knots."""
    xp = widths.__array_namespace__()
    return xp.where(widths > 0, 1.0, 0.0) / xp.where(widths > 0, widths, 1.0)
