"""Values on a grid of one to four dimensions, interpolated by cubic splines.

The next state is its mean plus noise, and the noise is the same around every point. So
E V(point + e) at the points of the grid is a convolution of the coefficients of V, and an end is
averaged over the cells around each point. In one dimension it is a sparse matrix instead, and an
end is checked at every point and node of the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.errors import InputError
from ivvi.planning.best_action import action_count
from ivvi.planning.problem import Problem
from ivvi.planning.quadrature import Noise

MOST_AXES = 4
POINTS, FINEST = {1: 401, 2: 61, 3: 21, 4: 11}, {1: 401, 2: 141, 3: 41, 4: 19}
"""Fewest and most default points on each axis; as many as possible while all of planning tries at
most `MOST_TRIED` actions and stores at most `MOST_KEPT` values."""
MOST_TRIED = {1: 35_000_000, 2: 35_000_000, 3: 60_000_000, 4: 25_000_000}
MOST_KEPT = 4_000_000
CLIMBED = 3
"""Cost of the points of a box plus the climb from the best, relative to the points alone."""
NODES_AT_A_PRICE = 16
"""Number of nodes of the noise in a reward that cost as much as the rest of an action."""
DEVIATIONS = 5.0
"""How many standard deviations of noise around the reachable means the grid covers."""
MOST_POINTS = {1: 20_000, 2: 20_000, 3: 80_000, 4: 200_000}
AT_ONCE = 1 << 21
IN_A_CELL = 128
"""Places around each point of a grid at which an end of the episode is checked."""
Smoothing = Callable[[np.ndarray], np.ndarray]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Grid(Compact):
    """G(m) = E V(m + e) as a tensor product of uniform cubic splines.

    The grid covers the problem's states, and the means that the model can reach in two steps
    with `DEVIATIONS` standard deviations of noise around. Outside it the value is that of
    the nearest point of its boundary.

    Attributes
    ----------
    low, high
        Corners, (d_x,), d_x at most `MOST_AXES`.
    points
        Points on each axis.
    """

    kind: ClassVar[str] = "grid"
    low: np.ndarray
    high: np.ndarray
    points: int = field(metadata={"static": True})

    @classmethod
    def around(
        cls,
        problem: Problem,
        points: int | None,
        seed: int,
        region: tuple[Sequence[float], Sequence[float]] | None = None,
        nodes: int = 1,
    ) -> Grid:
        """Return the grid that the problem needs, or a grid over a region (low, high).

        `nodes` is the number of nodes of the noise that a reward of x' uses at every action.
        """
        d = len(problem.model.state)
        if d > MOST_AXES:
            raise InputError(
                f"a grid of {d} dimensions was requested; a grid has at most {MOST_AXES}: use "
                "value='fitted', or the planner mpc"
            )
        points = points or usual_points(problem, nodes)
        if points < 4:
            raise InputError(f"the grid has {points} points on each axis; expected at least 4")
        if points**d > MOST_POINTS[d]:
            raise InputError(
                f"a grid of {points} points on each of {d} axes; at most "
                f"{int(MOST_POINTS[d] ** (1 / d))} fit in memory"
            )
        if region is not None:
            return cls(*_sides(region, d), points)
        spread = DEVIATIONS * np.sqrt(np.diag(problem.model.next_cov))
        low, high = problem.support.min(axis=0), problem.support.max(axis=0)
        states = problem.support
        for _ in range(2):  # from the states themselves, then from the whole range that they reach
            means = reachable_means(problem, states, seed)
            low = np.minimum(low, means.min(axis=0) - spread)
            high = np.maximum(high, means.max(axis=0) + spread)
            states = np.random.default_rng(seed).uniform(low, high, (256, d))
        margin = np.where(high > low, 0.01 * (high - low), 0.5)
        return cls(low - margin, high + margin, points)

    @classmethod
    def from_arrays(cls, problem: Problem, arrays: Mapping[str, np.ndarray]) -> Grid:
        """Make the grid again from `arrays`."""
        return cls(arrays["low"], arrays["high"], int(arrays["points"]))

    @property
    def width(self) -> int:
        """Numbers that one evaluation uses."""
        return int(4 ** len(self.low))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs."""
        return {"low": self.low, "high": self.high, "points": np.array(self.points)}

    def nearest(self, x: Array) -> Array:
        """Return the states themselves: all have values."""
        return x

    def __call__(self, c: Array, m: Array) -> Array:
        """Evaluate the spline with coefficients c (p,) at m (n, d_x); returns (n,)."""
        first, values = self._axis_basis(m, jnp)
        c, d = jnp.asarray(c), m.shape[-1]
        rows = [(self.points + 2) ** (d - 1 - axis) for axis in range(d)]

        # sums over the 4^d_x splines written out: XLA is several times faster than with an axis
        def along(axis: int, place: Array) -> Array:
            if axis == d:
                return c[place]
            return sum(
                along(axis + 1, place + i * rows[axis]) * values[i][..., axis] for i in range(4)
            )

        return along(0, sum(first[..., axis] * row for axis, row in enumerate(rows)))

    def _axis_basis(self, m: Array, xp: Any) -> tuple[Array, list[Array]]:
        """Return the first spline of each axis that is not zero at m, and four values, from it on.

        All have the shape of m, (..., d_x).
        """
        unit = (m - self.low) / (self.high - self.low) * (self.points - 1)
        unit = xp.clip(unit, 0.0, self.points - 1.0)
        first = xp.clip(xp.floor(unit), 0, self.points - 2)
        return first.astype(int), cubes(unit - first)

    def line_basis(self, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers and values of the four splines of a line that are not zero at m (...)."""
        first, values = self._axis_basis(m[..., None], np)
        return first + np.arange(4), np.concatenate(values, axis=-1)

    def averaging(self, noise: Noise, terminal: Any) -> Callable[[np.ndarray], np.ndarray]:
        """Return the map from V at the lattice to coefficients of G.

        V is interpolated, averaged over the noise around each point while an episode goes on, and
        interpolated again.
        """
        interpolate, d = interpolation(self), len(self.low)
        if d == 1:
            matrix = line_smoothing(self, noise, terminal)
            return lambda values: interpolate(matrix @ interpolate(values))
        smooth = convolution(self, noise)
        alive = None if terminal is None else alive_average(self, terminal)
        shape = (self.points + 2,) * d

        def average(values: np.ndarray) -> np.ndarray:
            left = values if alive is None else alive @ values
            return interpolate(smooth(interpolate(left).reshape(shape)))

        return average

    def lattice(self) -> np.ndarray:
        """The points of the grid, (points^d_x, d_x)."""
        sides = zip(self.low, self.high, strict=True)
        axes = [np.linspace(low, high, self.points) for low, high in sides]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(self.low))


def usual_points(problem: Problem, nodes: int = 1) -> int:
    """Return the points on each axis: more if fewer actions are tried at each, over all steps."""
    d = len(problem.model.state)
    return int(np.clip(affordable_points(problem, nodes), POINTS[d], FINEST[d]))


def affordable_points(problem: Problem, nodes: int = 1) -> float:
    """Return the points on each axis with which planning takes some seconds."""
    d, actions = len(problem.model.state), problem.actions
    tried = action_count(actions) * problem.horizon * (1 + (nodes - 1) / NODES_AT_A_PRICE)
    if d <= 2:
        return float((MOST_TRIED[d] / tried) ** (1 / d))
    climbed = 1 if actions.is_finite else CLIMBED
    return float(min(MOST_TRIED[d] / (climbed * tried), MOST_KEPT / problem.horizon) ** (1 / d))


def reachable_means(problem: Problem, states: np.ndarray, seed: int) -> np.ndarray:
    """Return means of the next state from `states` under a few actions: corners and draws."""
    actions, rng = problem.actions, np.random.default_rng(seed)
    choices = (
        actions.choices[:8] if actions.is_listed else actions.corners[:, list(actions.discrete)]
    )
    ends = [actions.join(side, choices) for side in (actions.low, actions.high)]
    tried = np.vstack([*ends, actions.sample(16, rng)])
    pairs = [np.broadcast_to(a, (len(states), len(a))) for a in tried]
    return np.vstack([np.asarray(problem.model.mean(states, a)) for a in pairs])


def interpolation(grid: Grid) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map from values at the points of a grid to coefficients of its splines."""
    to_coefficients, d = spline_coefficients(grid.points), len(grid.low)

    def interpolate(values: np.ndarray) -> np.ndarray:
        c = values.reshape((grid.points,) * d)
        for _ in range(d):  # along the first axis, which then becomes the last
            c = np.moveaxis(np.tensordot(to_coefficients, c, axes=1), 0, -1)
        return np.asarray(c).ravel()

    return interpolate


@lru_cache(maxsize=8)
def spline_coefficients(points: int) -> np.ndarray:
    """Map values at the points of a uniform grid to spline coefficients, (points + 2, points).

    The third derivative is continuous at the second and the last but one point (not a
    knot), so that cubic polynomials are reproduced.
    """
    system = np.zeros((points + 2, points + 2))
    for i in range(points):
        system[i, i : i + 3] = np.array([1, 4, 1]) / 6
    jump = np.array([1, -4, 6, -4, 1])
    system[points, :5], system[points + 1, -5:] = jump, jump
    return np.asarray(np.linalg.inv(system)[:, :points])


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
    the coefficients at its edge are repeated.
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


def cubes(t: Any) -> list[Any]:
    """Return the four uniform cubic splines that are not zero, t in [0, 1] after a knot."""
    values = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
    return [cube / 6 for cube in values]


def alive_average(grid: Grid, terminal: Any) -> Any:
    """Return the sparse map (n, n) from V at the lattice to V where an episode goes on.

    At a point near which some states end an episode and others do not, it is the average of V
    (linear between the points) times whether the episode goes on, under the hat function of the
    point. The hats of all points add up to one, so that neither the mass nor the centre of the
    states where episodes go on moves.
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
    for block in np.array_split(edge, -(-len(edge) * places.size // AT_ONCE) or 1):
        columns, weights = _linear_basis(grid, points[block, None] + cell * places)
        data = weights * alive[block][..., None] / len(places)
        ends = np.arange(len(block) + 1) * data[0].size if len(block) else np.zeros(1, int)
        shape = (len(block), len(points))
        blocks.append(csr_array((data.ravel(), columns.ravel(), ends), shape=shape))
    whole = diags_array((share == 1).astype(float), format="csr")
    put = csr_array((np.ones(len(edge)), (edge, np.arange(len(edge)))), (len(points), len(edge)))
    return whole + put @ vstack(blocks, format="csr")


def _sides(
    region: tuple[Sequence[float], Sequence[float]], d: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of a region, or raise an error if it is not one."""
    low, high = (np.array(side, float) for side in region)
    if low.shape != (d,) or high.shape != (d,) or not (low < high).all():
        raise InputError(
            f"the region is {low.tolist()} to {high.tolist()}; expected a lower and a higher value "
            f"for each of {d} states"
        )
    return low, high


def _weights(grid: Grid, noise: Noise) -> np.ndarray:
    """Return E B_o(e) of the splines around a point, (2 radius + 4,) * d_x."""
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


def _under_a_hat(d: int) -> np.ndarray:
    """Return Sobol points of the density (1 - |t|) on [-1, 1] of each axis, (IN_A_CELL, d)."""
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
