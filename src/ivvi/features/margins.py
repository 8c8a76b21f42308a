"""Functions of one column from straight to rough: 1, u, then bends.

Splines on knots at quantiles are rotated so that they are orthonormal where the column has its
values and their roughness, the integral of f''^2, adds up over them (Demmler and Reinsch, 1975).
The n-th bend then has about n + 1 turns and a roughness of order n^4: few of them hold what is
smooth, and a penalty by roughness is diagonal. All follows from the knots, which alone are saved.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi.features.splines import DEGREE, bases, knots_of, spline_basis

Array = Any
Floats = NDArray[np.float64]
NODES, SHARES = np.polynomial.legendre.leggauss(DEGREE + 1)


def bends(v: Array, grid: tuple[float, ...], count: int) -> Array:
    """Evaluate the `count` smoothest bends of a column v (...,), (..., count); linear outside."""
    return spline_basis(v, grid) @ rotation(grid)[0][:, :count]


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
    B = bases(points[:, None], grid, DEGREE)
    mass = np.tile(SHARES / 2, len(width)) / len(width)
    curvature = second_derivatives(points, grid)
    along = np.tile(SHARES / 2, len(width)) * np.repeat(width, len(NODES))
    gram, rough = (B.T * mass) @ B, (curvature.T * along) @ curvature
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
