"""Projected Newton ascent over a box, for a batch of separate problems at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact

Objective = Callable[[Array], Array]
STEPS = 25
TOLERANCE = 1e-6
"""Most steps, and the move, in units of the box, below which a row counts as converged."""
FIRST_DAMPING, CALMER, WILDER = 1e-3, 0.2, 8.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Cost(Compact):
    """The function to minimise, of flat points u (n, D) in units of the box.

    Attributes
    ----------
    value, residuals, hessian
        As for `maximise`.
    low, scale
        The flattened box, (D,): low + u * scale is a point of it.
    shape
        (n, L, d).
    """

    value: Objective
    residuals: Objective | None
    hessian: Objective | None
    low: Array
    scale: Array
    shape: tuple[int, ...]

    def point(self, u: Array) -> Array:
        """Return the point of the box, (n, L, d)."""
        return (self.low + u * self.scale).reshape(self.shape)

    def __call__(self, u: Array) -> Array:
        """Return the cost of each row, (n,)."""
        if self.residuals is None:
            return -self.value(self.point(u))
        return jnp.sum(self.residuals(self.point(u)) ** 2, axis=1)

    def derivatives(self, u: Array) -> tuple[Array, Array]:
        """Return gradient (n, D) and Hessian, or the Gauss-Newton matrix, (n, D, D)."""
        if self.residuals is not None:
            residuals = self.residuals
            jacobian = _jacobian(lambda v: residuals(self.point(v)), u)
            slopes = 2 * jnp.einsum("nr,nri->ni", residuals(self.point(u)), jacobian)
            return slopes, 2 * jnp.einsum("nri,nrj->nij", jacobian, jacobian)
        slope = jax.grad(lambda v: jnp.sum(self(v)))
        if self.hessian is not None:
            return slope(u), -self.hessian(self.point(u)) * self.scale[:, None] * self.scale
        return slope(u), _jacobian(slope, u)


def _jacobian(function: Objective, u: Array) -> Array:
    """Return derivatives of each row, (n, m, D): the rows are separate, so one pass per column."""

    def along(e: Array) -> Array:
        return jax.jvp(function, (u,), (jnp.broadcast_to(e, u.shape),))[1]

    return jnp.moveaxis(jax.vmap(along)(jnp.eye(u.shape[1])), 0, -1)


def maximise(
    value: Objective,
    start: Array,
    low: np.ndarray,
    high: np.ndarray,
    *,
    residuals: Objective | None = None,
    hessian: Objective | None = None,
    steps: int = STEPS,
) -> tuple[Array, Array]:
    """Maximise `value`, (n, L, d) to (n,), row by row over low <= u <= high, (d,).

    With `residuals`, (n, L, d) to (n, m), the value is minus their sum of squares up to a
    constant, and the Gauss-Newton matrix, which is never indefinite, replaces the Hessian.
    `hessian`, (n, L, d) to (n, L d, L d), is that of `value` where it is known.

    Each row takes damped Newton steps in the coordinates that are not at a bound (Bertsekas,
    1982). A step that gains nothing is not taken, and the damping grows until one gains.
    All rows stop together, when none of them moves any more, or after `steps`.
    Returns the points (n, L, d) and their values (n,).
    """
    n, *shape = start.shape
    lows, highs = (jnp.asarray(np.broadcast_to(side, shape).ravel()) for side in (low, high))
    cost = _Cost(value, residuals, hessian, lows, highs - lows, start.shape)
    first = jnp.clip((start.reshape(n, -1) - lows) / cost.scale, 0.0, 1.0)
    begun = (0, first, cost(first), jnp.full(n, FIRST_DAMPING), jnp.asarray(False))
    going = partial(_step, cost)
    u = jax.lax.while_loop(lambda c: (c[0] < steps) & ~c[4], going, begun)[1]
    solution = cost.point(u)
    return solution, value(solution)


def _solve(system: Array, right: Array) -> Array:
    """Solve systems (n, D, D) for right-hand sides (n, D)."""
    if right.shape[1] == 1:  # one LAPACK call takes longer than all divisions together
        return right / system[..., 0]
    return jnp.linalg.solve(system, right[..., None])[..., 0]


def _step(cost: _Cost, carry: Any) -> Any:
    """Take one damped step of every row: (steps, u, cost of u, damping, whether all rest)."""
    i, u, f, damping, _ = carry
    g, hessian = cost.derivatives(u)
    bound = ((u <= 0) & (g > 0)) | ((u >= 1) & (g < 0))
    free = jnp.where(bound, 0.0, 1.0)
    size = jnp.max(jnp.abs(hessian), axis=(1, 2)) + 1e-12
    diagonal = 1 - free + free * (damping * size)[:, None]
    system = hessian * free[:, :, None] * free[:, None, :] + jax.vmap(jnp.diag)(diagonal)
    move = -_solve(system, free * g)
    move = jnp.where(jnp.sum(move * g, axis=1, keepdims=True) < 0, move, -g / size[:, None])
    new = jnp.clip(u + move, 0.0, 1.0)
    new_cost = cost(new)
    better = new_cost < f
    rests = jnp.max(jnp.abs(new - u), axis=1) <= TOLERANCE
    u = jnp.where(better[:, None], new, u)
    f = jnp.where(better, new_cost, f)
    damping = jnp.where(better, damping * CALMER, damping * WILDER)
    return i + 1, u, f, damping, jnp.all(rests)
