"""B-splines on NumPy and JAX arrays, and the smooth functions of one column: 1, u, then bends.

B-splines are continued linearly outside their grid. Those on knots at quantiles are rotated so that
they are orthonormal where the column has its values and their roughness, the integral of f''^2,
adds up over them (Demmler and Reinsch, 1975). The n-th bend then has about n + 1 turns and a
roughness of order n^4: a few of them represent a smooth curve, and a roughness penalty is diagonal.
Everything follows from the knots, so only these are saved.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ivvi._io.arrays import Array, Floats

DEGREE = 3
NODES, SHARES = np.polynomial.legendre.leggauss(DEGREE + 1)


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


def bends(v: Array, grid: tuple[float, ...], count: int) -> Array:
    """Evaluate the `count` smoothest bends of a column v (...,), (..., count); linear outside."""
    if not isinstance(v, np.ndarray):
        return _traced_bends(v, grid, count)
    return spline_basis(v, grid) @ rotation(grid)[0][:, :count]


def _traced_bends(v: Array, grid: tuple[float, ...], count: int) -> Array:
    """Evaluate the same by cubes of the distance to the knot below, for a shorter JAX program.

    The recursion takes XLA seconds to compile, most of all with derivatives.
    """
    xp, knots = v.__array_namespace__(), np.unique(grid)
    waves, cubes = rotation(grid)[0][:, :count], _cubes(grid)
    inside = xp.clip(v, knots[0], knots[-1])[..., None]
    at = 1.0 * (inside >= knots[:-1]) * ((inside < knots[1:]) | (knots[1:] == knots[-1]))
    u = inside - at @ knots[:-1, None]
    values = at @ (cubes[DEGREE] @ waves)
    for power in reversed(range(DEGREE)):
        values = values * u + at @ (cubes[power] @ waves)
    below = xp.minimum(v - knots[0], 0.0)[..., None]
    above = xp.maximum(v - knots[-1], 0.0)[..., None]
    slope_low, slope_high = (slope @ waves for slope in known_slopes(grid))
    return values + below * slope_low + above * slope_high


@lru_cache(maxsize=256)
def _cubes(grid: tuple[float, ...]) -> Floats:
    """Coefficients of u^0, .., u^3 of all splines between knots, (4, intervals, knots + 2)."""
    knots = np.unique(grid)
    width = np.diff(knots)
    unit = (NODES + 1) / 2
    points = (knots[:-1, None] + width[:, None] * unit).ravel()
    values = bases(points[:, None], grid, DEGREE).reshape(len(width), len(unit), -1)
    powers = np.linalg.inv(np.vander(unit, increasing=True)) @ values
    return np.asarray(
        np.moveaxis(powers, 1, 0) / width[:, None] ** np.arange(DEGREE + 1)[:, None, None]
    )


def bend_roughness(grid: tuple[float, ...]) -> Floats:
    """Roughness of each bend (knots,), in units of the first's."""
    return rotation(grid)[1]


def count_of_bends(grid: tuple[float, ...]) -> int:
    """How many bends a column with these knots has."""
    return len(grid)


@lru_cache(maxsize=256)
def rotation(grid: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Return the map (knots + 2, knots) of splines to bends, and the bends' roughness.

    Every interval between knots has the same weight, as knots at quantiles do.
    """
    knots = np.asarray(grid)
    width = np.diff(knots)
    points = (knots[:-1] + np.outer((NODES + 1) / 2, width)).T.ravel()
    at_points = bases(points[:, None], grid, DEGREE)
    mass = np.tile(SHARES / 2, len(width)) / len(width)
    curvature = second_derivatives(points, grid)
    along = np.tile(SHARES / 2, len(width)) * np.repeat(width, len(NODES))
    gram, rough = (at_points.T * mass) @ at_points, (curvature.T * along) @ curvature
    values, vectors = np.linalg.eigh(gram)
    root = vectors / np.sqrt(values)
    roughness, axes = np.linalg.eigh(root.T @ rough @ root)
    waves = (root @ axes)[:, 2:]  # the first two are the straight lines
    waves *= np.sign(waves[-1])  # which sign an axis has is chance
    return waves, roughness[2:] / roughness[2]


def second_derivatives(v: Floats, grid: tuple[float, ...]) -> Floats:
    """Second derivatives of all splines at v (n,) inside the grid, (n, knots + 2)."""
    t = knots_of(grid)
    values = bases(v[:, None], grid, DEGREE - 2)
    for degree in (DEGREE - 1, DEGREE):
        widths = t[degree:] - t[:-degree]
        scaled = degree * values / np.where(widths > 0, widths, np.inf)
        values = scaled[:, :-1] - scaled[:, 1:]
    return np.asarray(values)


def _inverse(widths: Array) -> Array:
    """1 / width, and 0 for the empty intervals of repeated knots."""
    xp = widths.__array_namespace__()
    return xp.where(widths > 0, 1.0, 0.0) / xp.where(widths > 0, widths, 1.0)
