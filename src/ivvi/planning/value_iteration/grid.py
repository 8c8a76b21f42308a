"""Values on a grid of one or two dimensions, interpolated by cubic splines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.errors import InputError
from ivvi.features.blocks import Array
from ivvi.planning.problem import Problem
from ivvi.planning.value_iteration.best_action import action_count
from ivvi.planning.value_iteration.quadrature import Noise

POINTS, FINEST = {1: 401, 2: 61}, {1: 401, 2: 141}
"""Default points on each axis, and the most, taken where all of planning tries no more than
`MOST_TRIED` actions."""
MOST_TRIED = 35_000_000
DEVIATIONS = 5.0
"""How many standard deviations of noise around the reachable means the grid covers."""
MOST_POINTS = 20_000
AT_ONCE = 1 << 21


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Grid:
    """G(m) = E V(m + e) as a tensor product of uniform cubic splines.

    The grid covers the problem's states, and the means that the model can reach in two steps
    with `DEVIATIONS` standard deviations of noise around. Outside it the value is that of
    the nearest point of its boundary.

    Attributes
    ----------
    low, high
        Corners, (d_x,), d_x at most 2.
    points
        Points on each axis.
    """

    kind: ClassVar[str] = "grid"
    low: np.ndarray
    high: np.ndarray
    points: int = field(metadata={"static": True})

    @classmethod
    def around(cls, problem: Problem, points: int | None, seed: int) -> Grid:
        """Return the grid that the problem needs."""
        d = len(problem.model.state)
        if d > 2:
            raise InputError(
                f"a grid of {d} dimensions was asked for; a grid has at most 2: use "
                "value='fitted', or the planner mpc"
            )
        points = points or usual_points(problem)
        if points < 4:
            raise InputError(f"a grid of {points} points on each axis; expected at least 4")
        if points**d > MOST_POINTS:
            raise InputError(
                f"a grid of {points} points on each of {d} axes; at most "
                f"{int(MOST_POINTS ** (1 / d))} fit in memory"
            )
        spread = DEVIATIONS * np.sqrt(np.diag(problem.model.next_cov))
        low, high = problem.support.min(axis=0), problem.support.max(axis=0)
        states = problem.support
        for _ in range(2):  # from the states themselves, and from anywhere between what they reach
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
        """Numbers that one evaluation touches."""
        return int(4 ** len(self.low))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs."""
        return {"low": self.low, "high": self.high, "points": np.array(self.points)}

    def nearest(self, x: Array) -> Array:
        """Every state is a state."""
        return x

    def __call__(self, c: Array, m: Array) -> Array:
        """Evaluate the spline with coefficients c (p,) at m (n, d_x); returns (n,)."""
        first, values = self._axis_basis(m, jnp)
        c, row = jnp.asarray(c), self.points + 2
        # sums over the 4^d_x splines written out: XLA is several times faster than with an axis
        if m.shape[-1] == 1:
            return sum(c[first[..., 0] + i] * values[i][..., 0] for i in range(4))
        corner = first[..., 0] * row + first[..., 1]
        lines = (
            sum(c[corner + (i * row + j)] * values[j][..., 1] for j in range(4)) for i in range(4)
        )
        return sum(line * values[i][..., 0] for i, line in enumerate(lines))

    def _axis_basis(self, m: Array, xp: Any) -> tuple[Array, list[Array]]:
        """Return the first spline of each axis that is not zero at m, and four values, from it on.

        All have the shape of m, (..., d_x).
        """
        unit = (m - self.low) / (self.high - self.low) * (self.points - 1)
        unit = xp.clip(unit, 0.0, self.points - 1.0)
        first = xp.clip(xp.floor(unit), 0, self.points - 2)
        t = unit - first
        cubes = [(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3]
        return first.astype(int), [cube / 6 for cube in cubes]

    def _basis(self, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and values of the 4^d_x splines that are not zero at m."""
        first, cubes = self._axis_basis(m, np)
        values = np.stack(cubes, axis=-1)
        numbers = first[..., None] + np.arange(4)
        columns, weights = numbers[..., 0, :], values[..., 0, :]
        if m.shape[-1] == 2:
            columns = columns[..., :, None] * (self.points + 2) + numbers[..., 1, None, :]
            weights = weights[..., :, None] * values[..., 1, None, :]
            shape = (*m.shape[:-1], 16)
            columns, weights = columns.reshape(shape), weights.reshape(shape)
        return columns, weights

    def design(self, problem: Problem, noise: Noise) -> tuple[np.ndarray, Callable[..., Any]]:
        """Return the points (n, d_x) and the map from V at the points to coefficients of G.

        V is interpolated, averaged over the noise around each point, and interpolated again.
        """
        points, interpolate = self.lattice(), interpolation(self)
        smooth = self.smoothing(points, noise, problem.terminal)
        return points, lambda values: interpolate(smooth @ interpolate(values))

    def lattice(self) -> np.ndarray:
        """The points of the grid, (points^d_x, d_x)."""
        sides = zip(self.low, self.high, strict=True)
        axes = [np.linspace(low, high, self.points) for low, high in sides]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(self.low))

    def smoothing(self, points: np.ndarray, noise: Noise, terminal: Any) -> Any:
        """Return the sparse map (n, p) from coefficients of V to E V(point + e) while alive.

        The points are those of the lattice. Where all noise stays inside the grid and nothing
        ends, the rows of the map are the same but for their place, and one is computed.
        """
        from scipy.sparse import csr_array, vstack

        farthest = np.abs(noise.offsets).max(axis=0)
        inside = ((points - farthest >= self.low) & (points + farthest <= self.high)).all(axis=1)
        if terminal is not None or not inside.any():
            return self._smoothing_rows(points, noise, terminal)
        at = np.flatnonzero(inside)
        first = self._smoothing_rows(points[at[:1]], noise, None)
        places = self._places(at)
        columns = first.indices + (places - places[0])[:, None]
        ends = np.arange(len(at) + 1) * len(first.data)
        data = np.tile(first.data, len(at))
        shape = (len(at), first.shape[1])
        middle = csr_array((data, columns.ravel(), ends), shape=shape)
        edge = np.flatnonzero(~inside)
        rows = vstack([middle, self._smoothing_rows(points[edge], noise, None)], format="csr")
        return rows[np.argsort(np.concatenate([at, edge]))]

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Number of the first spline at points of the lattice, by their rows, (n,)."""
        if len(self.low) == 1:
            return rows
        return np.asarray(rows // self.points * (self.points + 2) + rows % self.points)

    def _smoothing_rows(self, points: np.ndarray, noise: Noise, terminal: Any) -> Any:
        """Return the rows of `smoothing` at points (n, d_x), one by one."""
        from scipy.sparse import csr_array, vstack

        nodes, size = len(noise.weights), (self.points + 2) ** len(self.low)
        step = max(1, AT_ONCE // (nodes * self.width))
        rows = [csr_array((0, size))]
        for i in range(0, len(points), step):
            x_next = points[i : i + step, None] + noise.offsets
            columns, weights = self._basis(x_next)
            share = noise.alive(x_next, terminal)
            data = (weights * share[..., None]).reshape(len(x_next), -1)
            ends = np.arange(len(x_next) + 1) * data.shape[1]
            part = csr_array(
                (data.ravel(), columns.ravel(), ends), shape=(len(x_next), size), copy=False
            )
            part.sum_duplicates()
            rows.append(part)
        return vstack(rows, format="csr")


def usual_points(problem: Problem) -> int:
    """Points on each axis: the more, the fewer actions are tried at each in all steps."""
    d = len(problem.model.state)
    tried = action_count(problem.actions) * problem.horizon
    return int(np.clip((MOST_TRIED / tried) ** (1 / d), POINTS[d], FINEST[d]))


def reachable_means(problem: Problem, states: np.ndarray, seed: int) -> np.ndarray:
    """Means of the next state from `states` under a few actions each: corners and draws."""
    actions, rng = problem.actions, np.random.default_rng(seed)
    few = actions.choices[:8] if actions.is_listed else actions.corners[:, list(actions.discrete)]
    ends = [actions.join(side, few) for side in (actions.low, actions.high)]
    some = np.vstack([*ends, actions.sample(16, rng)])
    pairs = [np.broadcast_to(a, (len(states), len(a))) for a in some]
    return np.vstack([np.asarray(problem.model.mean(states, a)) for a in pairs])


def interpolation(grid: Grid) -> Callable[[np.ndarray], np.ndarray]:
    """Return the map from values at the points of a grid to coefficients of its splines."""
    S = spline_coefficients(grid.points)
    if len(grid.low) == 1:
        return lambda values: np.asarray(S @ values)
    return lambda values: np.asarray(S @ values.reshape(grid.points, -1) @ S.T).ravel()


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
