"""Values where some states are categories: a grid of the others for every combination of levels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.dynamics.next_state_distribution import Categories, NoiseLaw, noise_law, outcomes
from ivvi.errors import InputError
from ivvi.planning.problem import Problem
from ivvi.planning.quadrature import Noise
from ivvi.planning.value_iteration.grid import DEVIATIONS, Grid, reachable_means

POINTS = {1: 201, 2: 31}
"""Default points on each axis of the grids."""
MOST_LEVELS, MOST_POINTS = 1024, 40_000
"""Most combinations of levels, and most states in all."""
NODES = {1: 9, 2: 25}
"""Nodes for rewards that depend on the next state."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class CategoryGrid(Compact):
    """G(m) = sum_s P(s | m) G_s(m_c + C (k_s - p)), s the combinations of levels.

    The mean m holds the probabilities p of the levels; the other columns c follow the level
    that is drawn (`dynamics.next_state_distribution`). G_s is the value of level s averaged over
    the remaining noise, a spline on a grid; without other columns it is a number. Categories that
    never change (a ward, a sex) have one level with probability 1, so that the sum is only over
    levels of the other categories.

    Attributes
    ----------
    levels
        States of every combination, (S, d_x), zero in the other columns.
    gain
        The slopes of the other columns' noise on the levels' noise, C, (d_x, d_x).
    nodes, weights
        Nodes of the remaining noise, (N, d_x), and their weights.
    grid
        The grid over the other columns; None if there are none.
    categories, others
        The indicator columns of each category, and the columns that are not indicators.
    stays
        Which of the categories never change.
    """

    kind: ClassVar[str] = "categories"
    levels: np.ndarray
    gain: np.ndarray
    nodes: np.ndarray
    weights: np.ndarray
    grid: Grid | None
    categories: Categories = field(metadata={"static": True})
    others: tuple[int, ...] = field(metadata={"static": True})
    stays: tuple[bool, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, problem: Problem, points: int | None, seed: int) -> CategoryGrid:
        """Return the grids that the problem needs."""
        model = problem.model
        levels = combinations(model.categories, len(model.state))
        others = other_columns(problem)
        if len(others) > 2 or len(levels) > MOST_LEVELS:
            raise InputError(
                f"values of {len(levels)} combinations of categories and {len(others)} other "
                f"states were requested; expected at most {MOST_LEVELS} and 2"
            )
        law = noise_law(model.next_cov, model.categories)
        left = law.factor @ law.factor.T
        noise = Noise.of(left, "auto", NODES.get(len(others), 1))
        grid = None
        if others:
            grid = _grid_of(problem, others, left, points, seed)
            if len(levels) * grid.points ** len(others) > MOST_POINTS:
                most = int((MOST_POINTS / len(levels)) ** (1 / len(others)))
                grid = Grid(grid.low, grid.high, max(most, 5))
        parts = levels, law.gain, noise.offsets, noise.weights, grid
        return cls(*parts, model.categories, others, staying(problem))

    @classmethod
    def from_arrays(cls, problem: Problem, arrays: Mapping[str, np.ndarray]) -> CategoryGrid:
        """Make the grids again from `arrays`."""
        grid = Grid.from_arrays(problem, arrays) if "points" in arrays else None
        return cls(
            arrays["levels"],
            arrays["gain"],
            arrays["nodes"],
            arrays["node_weights"],
            grid,
            problem.model.categories,
            other_columns(problem),
            staying(problem),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs."""
        arrays = {"levels": self.levels, "gain": self.gain}
        arrays |= {"nodes": self.nodes, "node_weights": self.weights}
        return arrays | ({} if self.grid is None else self.grid.arrays())

    @property
    def width(self) -> int:
        """Numbers that one evaluation uses."""
        return int(self._numbers.shape[1]) * (1 if self.grid is None else self.grid.width)

    def nearest(self, x: Array) -> Array:
        """Return the states themselves: all have values."""
        return x

    def __call__(self, c: Array, m: Array) -> Array:
        """Evaluate with coefficients c (S p,) at means m (n, d_x); returns (n,)."""
        xp = m.__array_namespace__()
        chances = self._chances(m, stays=False)  # (n, M)
        staying_level = xp.argmax(self._chances(m, stays=True), axis=-1)
        s = xp.asarray(self._numbers)[staying_level]  # the combinations that can follow, (n, M)
        values = c.reshape(len(self.levels), -1)
        if self.grid is None:
            return (chances * values[s, 0]).sum(axis=-1)
        levels = xp.asarray(self.levels)[s]  # (n, M, d_x)
        surprise = levels - (chances[..., None] * levels).sum(axis=1, keepdims=True)
        centres = (m[:, None] + surprise @ self.gain.T)[..., list(self.others)]
        return (chances * self._splines(self.grid, values, centres, s)).sum(axis=-1)

    def _splines(self, grid: Grid, values: Array, y: Array, s: Array) -> Array:
        """Evaluate the splines of combinations s (n, M), of coefficients (S, p), at y (n, M, d)."""
        xp, (n, width, d) = y.__array_namespace__(), y.shape
        if d > 1:
            at = [grid(c, y.reshape(-1, d)).reshape(n, width) for c in values]
            return xp.take_along_axis(xp.stack(at, axis=-1), s[..., None], axis=-1)[..., 0]
        # all splines on one line, one after another
        count = values.size - 2
        line = Grid(np.zeros(1), np.full(1, count - 1.0), count)
        unit = (y[..., 0] - grid.low[0]) / (grid.high[0] - grid.low[0]) * (grid.points - 1)
        place = s * values.shape[1] + xp.clip(unit, 0.0, grid.points - 1.0)
        return line(values.reshape(-1), place.reshape(-1, 1)).reshape(n, width)

    def around(self, m: Array) -> tuple[Array, Array]:
        """Return next states (K, n, d_x) for means m (n, d_x), and their weights (K, n)."""
        law = NoiseLaw(np.eye(m.shape[1]), self.gain)
        return outcomes(m, self.nodes, self.weights, law, self.categories)

    def design(
        self, problem: Problem, noise: Noise
    ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        """Return the states (n, d_x) and the map from V there to coefficients of G."""
        d, count = self.levels.shape[1], len(self.levels)
        if self.grid is None:
            ends = problem.terminal
            alive = np.ones(count) if ends is None else 1.0 - np.asarray(ends(self.levels))
            return self.levels, lambda values: np.asarray(alive * values)
        noise_of_others = Noise(noise.offsets[:, list(self.others)], noise.weights)
        put = np.eye(d)[list(self.others)]
        points = self.grid.lattice()
        states = np.concatenate([level + points @ put for level in self.levels])
        averages = [
            self.grid.averaging(noise_of_others, _ending(problem.terminal, level, put))
            for level in self.levels
        ]

        def fit(values: np.ndarray) -> np.ndarray:
            parts = zip(averages, values.reshape(count, -1), strict=True)
            return np.concatenate([average(part) for average, part in parts])

        return states, fit

    def _chances(self, m: Array, *, stays: bool) -> Array:
        """Return chances of the combinations of categories that stay, or of the others, (n, .)."""
        xp = m.__array_namespace__()
        chance = xp.ones((len(m), 1))
        for category, is_constant in zip(self.categories, self.stays, strict=True):
            if is_constant == stays:
                p = category.probabilities(m)
                chance = (chance[:, :, None] * p[:, None]).reshape(len(m), -1)
        return chance

    @property
    def _numbers(self) -> np.ndarray:
        """The number of each combination, by levels that stay and by the other levels, (F, M)."""
        sizes = [len(category.levels) for category in self.categories]
        axes = sorted(range(len(sizes)), key=lambda i: not self.stays[i])
        staying_count = math.prod(
            size for size, stays in zip(sizes, self.stays, strict=True) if stays
        )
        numbers = np.arange(math.prod(sizes)).reshape(sizes)
        return numbers.transpose(axes).reshape(staying_count, -1)


def staying(problem: Problem) -> tuple[bool, ...]:
    """Return whether each category of the state never changes."""
    carried = {column for column, source in problem.model.update.copied if column == source}
    return tuple(set(category.columns) <= carried for category in problem.model.categories)


def combinations(categories: Categories, d: int) -> np.ndarray:
    """Return states of every combination of levels, (S, d), zero in other columns."""
    rows = []
    for picked in itertools.product(*(category.levels for category in categories)):
        state = np.zeros(d)
        for category, level in zip(categories, picked, strict=True):
            state[list(category.columns)] = level
        rows.append(state)
    return np.array(rows)


def other_columns(problem: Problem) -> tuple[int, ...]:
    """Return the columns of the state that are not indicators."""
    model = problem.model
    drawn = {column for category in model.categories for column in category}
    return tuple(i for i in range(len(model.state)) if i not in drawn)


def _grid_of(
    problem: Problem, others: tuple[int, ...], left: np.ndarray, points: int | None, seed: int
) -> Grid:
    """Return a grid that covers the log's states and those reachable from them, with noise."""
    columns = list(others)
    spread = DEVIATIONS * np.sqrt(np.diag(left)[columns])
    states = problem.support
    low, high = states[:, columns].min(axis=0), states[:, columns].max(axis=0)
    for _ in range(2):
        means = reachable_means(problem, states, seed)[:, columns]
        low = np.minimum(low, means.min(axis=0) - spread)
        high = np.maximum(high, means.max(axis=0) + spread)
        rng = np.random.default_rng(seed)
        states = problem.support[rng.integers(len(problem.support), size=256)].copy()
        states[:, columns] = rng.uniform(low, high, (256, len(columns)))
    margin = np.where(high > low, 0.01 * (high - low), 0.5)
    return Grid(low - margin, high + margin, points or POINTS[len(others)])


def _ending(terminal: Any, level: np.ndarray, put: np.ndarray) -> Any:
    """Return the end of episodes at one combination of levels, as a function of the others."""
    if terminal is None:
        return None

    def ended(y: np.ndarray) -> np.ndarray:
        flat = level + y.reshape(-1, y.shape[-1]) @ put
        return np.asarray(terminal(flat)).reshape(y.shape[:-1])

    return ended
