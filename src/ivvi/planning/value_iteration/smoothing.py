"""E V(point + e) at the points of a grid: the noise of a model on splines.

The noise is the same around every point, so the map is a convolution of the coefficients of V, and
an end is averaged over the cells around each point. On a line it is a sparse matrix instead: there
an end is looked at for every point and node of the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ivvi.planning.value_iteration.quadrature import Noise

if TYPE_CHECKING:
    from ivvi.planning.value_iteration.grid import Grid

AT_ONCE = 1 << 21
IN_A_CELL = 128
"""Places around each point of a grid that are asked whether an episode ends there."""

Smoothing = Callable[[np.ndarray], np.ndarray]


def line_smoothing(grid: Grid, noise: Noise, terminal: Any) -> Any:
    """Return the sparse map (n, p) from coefficients of V to E V(point + e) while alive."""
    from scipy.sparse import csr_array

    points = grid.lattice()
    x_next = points[:, None] + noise.offsets  # (n, K, 1)
    columns, weights = grid.line_basis(x_next[..., 0])
    data = weights * noise.alive(x_next, terminal)[..., None]
    ends = np.arange(len(points) + 1) * data[0].size
    shape = (len(points), grid.points + 2)
    rows = csr_array((data.ravel(), columns.ravel(), ends), shape=shape, copy=False)
    rows.sum_duplicates()
    return rows


def convolution(grid: Grid, noise: Noise) -> Smoothing:
    """Return the map from coefficients of V, (points + 2,) * d_x, to E V(point + e).

    With c_i the coefficients, E V(point_i + e) = sum_o w_o c_(i + o), and the weights
    w_o = E B_o(e) are the same for all points: a product in Fourier space. Beyond the grid
    the coefficients at its edge go on.
    """
    from scipy import fft

    w = _weights(grid, noise)
    radius = (w.shape[0] - 4) // 2
    size = fft.next_fast_len(grid.points + 2 + 2 * radius, real=True)
    shape, axes = (size,) * w.ndim, tuple(range(w.ndim))
    spectrum = np.conj(fft.rfftn(w, shape))  # a correlation, not a convolution
    inside = (slice(grid.points),) * w.ndim

    def smooth(c: np.ndarray) -> np.ndarray:
        padded = np.pad(c, radius, mode="edge")
        return np.asarray(fft.irfftn(fft.rfftn(padded, shape) * spectrum, shape, axes))[inside]

    return smooth


def _weights(grid: Grid, noise: Noise) -> np.ndarray:
    """E B_o(e) of the splines around a point, (2 radius + 4,) * d_x."""
    cell = (grid.high - grid.low) / (grid.points - 1)
    unit = np.clip(noise.offsets / cell, -grid.points, grid.points)
    radius = int(np.ceil(np.abs(unit).max()))
    first = np.floor(unit)
    values = cubes(unit - first)  # four of (K, d_x)
    d, side = unit.shape[1], 2 * radius + 4
    w, places = noise.weights, np.zeros(len(unit), int)
    for axis in range(d):
        along = np.stack([value[:, axis] for value in values], axis=-1)
        numbers = (first[:, axis, None] + radius + np.arange(4)).astype(int)
        w = w[..., None] * along.reshape(len(along), *(1,) * (w.ndim - 1), 4)
        places = places[..., None] * side + numbers.reshape(len(along), *(1,) * axis, 4)
    return np.bincount(places.ravel(), w.ravel(), side**d).reshape((side,) * d)


def cubes(t: Any) -> list[Any]:
    """Values of the four uniform cubic splines that are not zero, t in [0, 1] after a knot."""
    each = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
    return [cube / 6 for cube in each]


def alive_average(grid: Grid, terminal: Any) -> Any:
    """Return the sparse map (n, n) from V at the lattice to V where an episode goes on.

    At a point between whose neighbours an episode may end it is the average of V, linear between
    the points, times whether it goes on, under the hat function of the point: the hats of all
    points add up to one, so that neither the mass nor the centre of what is alive moves.
    """
    from scipy.sparse import csr_array, diags_array, vstack

    points, cell = grid.lattice(), (grid.high - grid.low) / (grid.points - 1)
    places = _under_a_hat(points.shape[1])
    step = max(1, AT_ONCE // places.size)
    alive = np.concatenate(
        [
            ~np.asarray(terminal(points[i : i + step, None] + cell * places), bool)
            for i in range(0, len(points), step)
        ]
    )
    share = alive.mean(axis=1)
    edge = np.flatnonzero((share > 0) & (share < 1))
    blocks = [csr_array((0, len(points)))]
    for some in np.array_split(edge, -(-len(edge) * places.size // AT_ONCE) or 1):
        columns, weights = _linear_basis(grid, points[some, None] + cell * places)
        data = weights * alive[some][..., None] / len(places)
        ends = np.arange(len(some) + 1) * data[0].size if len(some) else np.zeros(1, int)
        shape = (len(some), len(points))
        blocks.append(csr_array((data.ravel(), columns.ravel(), ends), shape=shape))
    whole = diags_array((share == 1).astype(float), format="csr")
    put = csr_array((np.ones(len(edge)), (edge, np.arange(len(edge)))), (len(points), len(edge)))
    return whole + put @ vstack(blocks, format="csr")


def _under_a_hat(d: int) -> np.ndarray:
    """Sobol points of the density (1 - |t|) on [-1, 1] of each axis, (IN_A_CELL, d)."""
    from scipy.stats import qmc

    u = qmc.Sobol(d, rng=np.random.default_rng(0)).random(IN_A_CELL)
    return np.where(u < 0.5, np.sqrt(2 * u) - 1, 1 - np.sqrt(2 - 2 * u))


def _linear_basis(grid: Grid, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and weights of the 2^d_x points of the lattice around x, (.., 2^d_x)."""
    unit = (x - grid.low) / (grid.high - grid.low) * (grid.points - 1)
    unit = np.clip(unit, 0.0, grid.points - 1.0)
    first = np.minimum(unit.astype(int), grid.points - 2)
    columns, weights = np.zeros((*x.shape[:-1], 1), int), np.ones((*x.shape[:-1], 1))
    for axis in range(x.shape[-1]):
        t, at = (unit - first)[..., axis, None], first[..., axis, None] + np.arange(2)
        columns = (columns[..., None] * grid.points + at[..., None, :]).reshape(*x.shape[:-1], -1)
        sides = np.concatenate([1 - t, t], axis=-1)
        weights = (weights[..., None] * sides[..., None, :]).reshape(*x.shape[:-1], -1)
    return columns, weights
