"""The best that can be done in a world, by dynamic programming on what is true there.

`reference(world)` returns a policy and how it was found:

- ``grid``: up to four states on a fine grid, every action (boxes in steps), the noise integrated
  over its density; exact up to the steps of the grid. Ends look at the first state alone.
- ``separable``: states that neither meet in the dynamics nor in the reward, one grid for all.
- ``levels``: finitely many states, exactly.
- ``riccati``: linear, quadratic, and a box that never binds, exactly.
- ``fitted``: linear and quadratic with more states and a list of actions: the better of Riccati's
  value and quartic values fitted backward, each one step ahead over the list. Not exact: beside
  it stands `zoo.bounds.hull_bound`, which no policy beats.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy import sparse

from zoo.fitted import fitted_policy
from zoo.riccati import riccati, riccati_policy
from zoo.world import World

TAIL, NODES = 6.0, 1201


@dataclass(frozen=True, eq=False)
class Reference:
    """A policy (x, h) -> a, the value V_0(x) that its method claims, and whether it is exact."""

    policy: Callable[[np.ndarray, int], np.ndarray]
    claimed: Callable[[np.ndarray], np.ndarray] | None
    exact: bool
    how: str


@lru_cache(maxsize=4)
def reference(world: World) -> Reference:
    """Return the best policy of a world."""
    return SOLVERS[world.solver](world)


def candidates(world: World) -> np.ndarray:
    """List the actions, (m, d_a), with `levels` points on each axis of a box."""
    actions = world.actions
    axes = [
        np.linspace(low, high, world.levels)
        for low, high in zip(actions.low, actions.high, strict=True)
    ]
    points = list(itertools.product(*axes))
    boxes = np.repeat(np.array(points).reshape(len(points), len(axes)), len(actions.choices), 0)
    return np.asarray(actions.join(boxes, np.tile(actions.choices, (len(points), 1))))


def normal_nodes(count: int = NODES) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights of the trapezium rule for a standard normal.

    For smooth functions it is as exact as Gauss-Hermite, for steps (an end, a shortage) far better.
    """
    nodes = np.linspace(-TAIL, TAIL, count)
    weights = np.exp(-(nodes**2) / 2)
    return nodes, weights / weights.sum()


def axis_weights(points: np.ndarray, axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of points (..,) on an axis: the index below, and the weight of the next."""
    place = np.clip((points - axis[0]) / (axis[1] - axis[0]), 0, len(axis) - 1)
    below = np.minimum(place.astype(int), len(axis) - 2)
    return below, place - below


def smoother(axis: np.ndarray, spread: float, alive: Callable[..., Any]) -> sparse.csr_matrix:
    """Return K with (K v)_i = E v(axis_i + spread e) alive(..), v linear between points."""
    nodes, weights = normal_nodes()
    reached = axis[:, None] + spread * nodes
    below, above = axis_weights(reached, axis)
    weight = weights * alive(reached)
    rows = np.broadcast_to(np.arange(len(axis))[:, None], reached.shape).ravel()
    parts = [((1 - above) * weight, below), (above * weight, below + 1)]
    shape = (len(axis), len(axis))
    return sum(
        sparse.coo_matrix((w.ravel(), (rows, where.ravel())), shape).tocsr() for w, where in parts
    )


def interpolation(points: np.ndarray, axes: list[np.ndarray]) -> sparse.csr_matrix:
    """Return S with S v = v at points (n, d), v the values on the grid of the axes, flattened."""
    n, shape = len(points), tuple(map(len, axes))
    neighbours = [axis_weights(points[:, i], axis) for i, axis in enumerate(axes)]
    total = sparse.csr_matrix((n, int(np.prod(shape))))
    for corner in itertools.product((0, 1), repeat=len(axes)):
        sides = list(zip(neighbours, corner, strict=True))
        weight = np.prod([above if c else 1 - above for (_, above), c in sides], axis=0)
        index = np.ravel_multi_index([below + c for (below, _), c in sides], shape)
        total = total + sparse.csr_matrix((weight, (np.arange(n), index)), total.shape)
    return total


def mean_reward(world: World, x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Return E r(x, a, x') for rows of x and a, (n,)."""
    mean = world.mean(x, a)
    if not world.uses_next:
        return np.asarray(world.reward(x, a, mean, 0))
    nodes, weights = normal_nodes(121)
    spread = np.array(world.spread)
    each = (world.reward(x, a, mean + spread * t, 0) for t in nodes)
    return sum(w * r for w, r in zip(weights, each, strict=True))


def pairs(x: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return every state with every action, rows (n m, ..)."""
    return np.repeat(x, len(actions), axis=0), np.tile(actions, (len(x), 1))


def alive(world: World, v: np.ndarray) -> np.ndarray:
    """Return whether an episode goes on, for first states v of any shape."""
    rest = np.zeros((v.size, world.d_x - 1))
    return ~world.is_over(np.column_stack([v.reshape(-1, 1), rest])).reshape(v.shape)


def solve_grid(world: World) -> Reference:
    """Backward induction on the grid: Q_h = E r + discount G_h(mean), G_h(m) = E V_h+1(m + e)."""
    axes = [np.linspace(*line) for line in world.grid]
    shape, actions = tuple(map(len, axes)), candidates(world)
    smoothers = [
        smoother(axis, s, partial(alive, world) if i == 0 else lambda v: 1.0)
        for i, (axis, s) in enumerate(zip(axes, world.spread, strict=True))
    ]
    x, a = pairs(np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes)), actions)
    now, ahead = mean_reward(world, x, a), interpolation(world.mean(x, a), axes)
    values, values_by_step = np.zeros(shape), []
    for _ in range(world.horizon):
        for smooth in smoothers:  # along the first axis, which then becomes the last
            lines = smooth @ values.reshape(values.shape[0], -1)
            values = np.moveaxis(lines.reshape(values.shape), 0, -1)
        values_by_step.append(values.ravel())
        q = now + world.discount * (ahead @ values_by_step[-1])
        values = q.reshape(-1, len(actions)).max(axis=1).reshape(shape)
    values_by_step.reverse()

    def policy(x: np.ndarray, h: int) -> np.ndarray:
        states, acts = pairs(x, actions)
        later = interpolation(world.mean(states, acts), axes) @ values_by_step[h]
        q = mean_reward(world, states, acts) + world.discount * later
        return actions[q.reshape(len(x), -1).argmax(axis=1)]

    claimed = values.ravel()
    return Reference(
        policy, lambda x: interpolation(x, axes) @ claimed, True, "dynamic programming"
    )


def solve_separable(world: World) -> Reference:
    """One state at a time: the same grid serves every coordinate."""
    from ivvi import Actions

    box = world.actions
    axis_world = replace(
        world,
        spread=world.spread[:1],
        actions=Actions.box(box.low[:1], box.high[:1]),
        grid=world.grid[:1],
    )
    solution = solve_grid(axis_world)

    def policy(x: np.ndarray, h: int) -> np.ndarray:
        return solution.policy(x.reshape(-1, 1), h).reshape(x.shape)

    def claimed(x: np.ndarray) -> np.ndarray:
        return solution.claimed(x.reshape(-1, 1)).reshape(x.shape).sum(axis=1)

    return Reference(policy, claimed, True, "dynamic programming, state by state")


def solve_levels(world: World) -> Reference:
    """Finitely many levels as indicators with the first dropped, and a list of actions."""
    levels = np.eye(world.d_x + 1)[:, 1:]
    actions = world.actions.choices
    x, a = pairs(levels, actions)
    later = world.mean(x, a)
    chances = np.column_stack([1 - later.sum(axis=1), later])
    now = np.asarray(world.reward(x, a, None, 0))
    values, actions_by_step = np.zeros(len(levels)), []
    for _ in range(world.horizon):
        q = (now + world.discount * chances @ values).reshape(len(levels), -1)
        values = q.max(axis=1)
        actions_by_step.append(actions[q.argmax(axis=1)])
    actions_by_step.reverse()

    def level(x: np.ndarray) -> np.ndarray:
        return (x @ np.arange(1, world.d_x + 1)).round().astype(int)

    return Reference(
        lambda x, h: actions_by_step[h][level(x)], lambda x: values[level(x)], True, "finite, exact"
    )


def solve_riccati(world: World) -> Reference:
    """Linear and quadratic without bounds; exact where the box never binds."""
    policy, claimed = riccati_policy(world, riccati(world))
    return Reference(policy, claimed, True, "Riccati")


def solve_fitted(world: World) -> Reference:
    return Reference(*fitted_policy(world), False, "best policy known")


SOLVERS = {
    "grid": solve_grid,
    "separable": solve_separable,
    "levels": solve_levels,
    "riccati": solve_riccati,
    "fitted": solve_fitted,
}
