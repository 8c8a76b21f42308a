"""What no policy can beat: linear worlds with concave quadratic rewards.

A clairvoyant who knows all noise in advance earns at least as much as any policy, and still does
after subtracting a martingale whose mean is zero for every policy (Brown, Smith and Sun 2010):

    E max_a sum_h discount^h [r(x_h, a_h) - discount (V_h+1(x_h+1) - E V_h+1)],

V Riccati's value. With actions from the hull of the allowed ones the maximum is a concave quadratic
program; Frank and Wolfe's gap makes the result an upper bound after any number of iterations.
For lists the cost of an action is a coordinate of the hull of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from zoo.optimum import reference, solve_grid
from zoo.riccati import LinearQuadratic, riccati
from zoo.world import World, is_subsets, noise_of

ITERATIONS = 200


class Inner:
    """The clairvoyant's program on n paths: actions and their costs, (n, H, d_a + 1)."""

    def __init__(self, world: World, lq: LinearQuadratic, paths: int, seed: int) -> None:
        self.world, self.lq = world, lq
        self.start, draws = noise_of(world, paths, seed)
        self.noise = draws * np.array(world.spread)
        rows = world.actions.choices
        cost = (rows**2) @ np.diag(lq.R)[list(world.actions.discrete)]
        self.rows = np.column_stack([rows, cost])
        self.subsets = is_subsets(world.actions)
        self.box = list(world.actions.continuous)
        self.listed = [*world.actions.discrete, world.d_a]
        self.tilt = np.stack(  # of m_h in the martingale: 2 e' K_h+1
            [2 * self.noise[:, h] @ lq.values[h + 1][0] for h in range(world.horizon)], axis=1
        )
        cov = np.diag(np.square(world.spread))
        self.fixed = np.zeros(paths)
        for h in range(world.horizon):
            (K, k, _), e = lq.values[h + 1], self.noise[:, h]
            bent = np.einsum("ni,ij,nj->n", e, K, e) - np.trace(K @ cov) + 2 * e @ k
            self.fixed -= world.discount ** (h + 1) * bent

    def path(self, a: np.ndarray, *, pure: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return states x_0..x_H-1 and means m_0..; of directions (no start, no noise) if pure."""
        lq, n = self.lq, len(a)
        x = np.zeros((n, self.world.d_x)) if pure else self.start
        states, means = [], []
        for h in range(self.world.horizon):
            m = x @ lq.P.T + a[:, h, :-1] @ lq.Q.T + (0 if pure else lq.c)
            states.append(x)
            means.append(m)
            x = m if pure else m + self.noise[:, h]
        return np.stack(states, 1), np.stack(means, 1)

    @property
    def discounts(self) -> np.ndarray:
        """Weight of each step, (H,)."""
        return self.world.discount ** np.arange(self.world.horizon)

    def value(self, a: np.ndarray) -> np.ndarray:
        """Return the objective of each path, (n,)."""
        lq, g = self.lq, self.world.discount
        x, m = self.path(a)
        off, box = x - lq.target, a[..., self.box]
        r = -(off**2) @ np.diag(lq.D) - (box**2) @ np.diag(lq.R)[self.box] - a[..., -1]
        r = r - g * (self.tilt * m).sum(-1)
        return (self.discounts * r).sum(1) + self.fixed

    def gradient(self, a: np.ndarray) -> np.ndarray:
        """Return its gradient by going backward along the path, (n, H, d_a + 1)."""
        lq, g = self.lq, self.world.discount
        x, _ = self.path(a)
        slope, slopes = np.zeros_like(self.start), np.zeros_like(a)
        for h in reversed(range(self.world.horizon)):
            weight = self.discounts[h]
            slope = slope - weight * g * self.tilt[:, h]  # of m_h
            slopes[:, h, :-1] = slope @ lq.Q
            cost_slope = 2 * np.diag(lq.R)[self.box] * a[:, h, self.box]
            slopes[:, h, self.box] -= weight * cost_slope
            slopes[:, h, -1] = -weight
            slope = slope @ lq.P - weight * 2 * (x[:, h] - lq.target) @ lq.D
        return slopes

    def corner(self, slope: np.ndarray) -> np.ndarray:
        """Return the vertex of the hull that is best for a linear reward."""
        vertex = np.empty_like(slope)
        if self.subsets:  # {0, 1}^d: one coordinate at a time
            costs = np.diag(self.lq.R)
            chosen = slope[..., :-1] + slope[..., -1:] * costs > 0
            return np.concatenate([chosen, (chosen @ costs)[..., None]], axis=-1)
        best = np.argmax(slope[..., self.listed] @ self.rows.T, axis=-1)
        vertex[..., self.listed] = self.rows[best]
        low, high = self.world.actions.low, self.world.actions.high
        vertex[..., self.box] = np.where(slope[..., self.box] > 0, high, low)
        return vertex

    def curvature(self, d: np.ndarray) -> np.ndarray:
        """Return minus the second derivative along d, (n,)."""
        lq, box = self.lq, d[..., self.box]
        x, _ = self.path(d, pure=True)
        bent = (x**2) @ np.diag(lq.D) + (box**2) @ np.diag(lq.R)[self.box]
        return 2 * (self.discounts * bent).sum(1)


def hull_bound(world: World, paths: int = 100, seed: int = 0) -> tuple[float, float]:
    """Return an upper bound on the value of any policy from the starts, and its standard error."""
    inner = Inner(world, riccati(world), paths, seed)
    a = inner.corner(np.zeros((paths, world.horizon, world.d_a + 1)))
    best = np.full(paths, np.inf)
    for _ in range(ITERATIONS):
        slope = inner.gradient(a)
        step = inner.corner(slope) - a
        gap = (slope * step).sum((1, 2))
        best = np.minimum(best, inner.value(a) + gap)
        size = np.clip(gap / np.maximum(inner.curvature(step), 1e-12), 0, 1)
        a = a + size[:, None, None] * step
    return float(best.mean()), float(best.std(ddof=1) / np.sqrt(paths))


def upper_bound(world: World, episodes: int, seeds: range) -> tuple[float, float]:
    """Return a bound and its standard error, over the first states of the seeds' episodes.

    Where `reference` is exact it is dynamic programming's own value; in two states its error is
    of the order of the squared step of the grid, and a grid of twice the step removes it
    (Richardson). Elsewhere it is that of the hull.
    """
    if reference(world).claimed is None:
        bounds = [hull_bound(world, min(100, episodes), seed) for seed in seeds]
        error = np.sqrt(np.mean([se**2 for _, se in bounds]) / len(bounds))
        return float(np.mean([value for value, _ in bounds])), float(error)
    x = np.concatenate([noise_of(world, episodes, seed)[0] for seed in seeds])
    values = reference(world).claimed(x)
    if world.solver == "grid" and world.d_x == 2:
        half = tuple((low, high, points // 2 + 1) for low, high, points in world.grid)
        values = values + (values - solve_grid(replace(world, grid=half)).claimed(x)) / 3
    return float(values.mean()), 0.0
