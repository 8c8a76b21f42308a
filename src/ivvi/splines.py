"""B-splines on NumPy and JAX arrays, continued linearly outside their grid."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

Array = Any
DEGREE = 3


def spline_columns(v: Array, grid: tuple[float, ...]) -> Array:
    """Evaluate all splines but the first on v (...,); returns (..., knots + 1)."""
    xp = v.__array_namespace__()
    low, high = grid[0], grid[-1]
    inside = xp.clip(v, low, high)[..., None]
    below, above = xp.minimum(v - low, 0.0)[..., None], xp.maximum(v - high, 0.0)[..., None]
    slope_low, slope_high = end_slopes(grid)
    basis = bases(inside, grid, DEGREE) + below * slope_low + above * slope_high
    return basis[..., 1:]


def bases(v: Array, grid: tuple[float, ...], degree: int) -> Array:
    """B-splines by the Cox-de Boor recursion on v (..., 1) inside the grid."""
    xp = v.__array_namespace__()
    t = np.r_[[grid[0]] * DEGREE, grid, [grid[-1]] * DEGREE]
    last = (t[:-1] < t[1:]) & (t[1:] == grid[-1])  # the last interval includes its right end
    basis = ((v >= t[:-1]) & ((v < t[1:]) | (last & (v == grid[-1])))).astype(v.dtype)
    for d in range(1, degree + 1):
        left, right = t[d:-1] - t[: -d - 1], t[d + 1 :] - t[1:-d]
        up = np.divide(1.0, left, out=np.zeros_like(left), where=left > 0)
        down = np.divide(1.0, right, out=np.zeros_like(right), where=right > 0)
        basis = (v - t[: -d - 1]) * up * basis[..., :-1] + (t[d + 1 :] - v) * down * basis[..., 1:]
    return xp.asarray(basis)


@lru_cache(maxsize=256)
def end_slopes(grid: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of all splines at the two ends of the grid, by the degree-lowering formula."""
    t = np.r_[[grid[0]] * DEGREE, grid, [grid[-1]] * DEGREE]
    lower = bases(np.array([[grid[0]], [grid[-1]]]), grid, DEGREE - 1)
    width = t[DEGREE:] - t[:-DEGREE]
    scaled = np.divide(DEGREE * lower, width, out=np.zeros_like(lower), where=width > 0)
    slopes = scaled[:, :-1] - scaled[:, 1:]
    return slopes[0], slopes[1]
