"""Projected Newton ascent over a box, for a batch of separate problems at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.blocks import Array

STEPS = 25
TOLERANCE = 1e-6
"""Most steps, and the move, in units of the box, below which a row rests."""
FIRST_DAMPING, CALMER, WILDER = 1e-3, 0.2, 8.0


def maximise(
    value: Callable[[Array], Array],
    start: Array,
    low: np.ndarray,
    high: np.ndarray,
    *,
    residuals: Callable[[Array], Array] | None = None,
    hessian: Callable[[Array], Array] | None = None,
    steps: int = STEPS,
) -> tuple[Array, Array]:
    """Maximise `value`, (n, L, d) to (n,), row by row over low <= u <= high, (d,).

    With `residuals`, (n, L, d) to (n, m), the value is minus their sum of squares up to a
    constant, and Gauss and Newton's matrix, which is never indefinite, stands for the Hessian;
    `hessian`, (n, L, d) to (n, L d, L d), is that of `value` where it is known.
    Each row takes damped Newton steps in the coordinates that no bound holds (Bertsekas,
    1982); a step that gains nothing is not taken, and the damping grows until one does.
    Returns the points (n, L, d) and their values (n,). All rows stop together, when none
    of them moves any more, or after `steps`.
    """
    n, *shape = start.shape
    width = int(np.prod(shape))
    lows, highs = (jnp.asarray(np.broadcast_to(side, shape).ravel()) for side in (low, high))
    scale = highs - lows

    def inside(flat: Array) -> Array:  # flat is in units of the box
        return (lows + flat * scale).reshape(n, *shape)

    def parts(flat: Array) -> Array:
        return residuals(inside(flat))  # type: ignore[misc]

    def cost(flat: Array) -> Array:
        return -value(inside(flat)) if residuals is None else jnp.sum(parts(flat) ** 2, axis=1)

    def jacobian(function: Callable[[Array], Array], flat: Array) -> Array:
        """Derivatives of each row, (n, m, D): the rows are separate, so one pass a column."""
        along = lambda e: jax.jvp(function, (flat,), (jnp.broadcast_to(e, flat.shape),))[1]  # noqa: E731
        return jnp.moveaxis(jax.vmap(along)(jnp.eye(width)), 0, -1)

    def derivatives(flat: Array) -> tuple[Array, Array]:
        """Gradient (n, D) and Hessian, or Gauss and Newton's matrix, (n, D, D), of the cost."""
        if residuals is None:
            slope = jax.grad(lambda v: jnp.sum(cost(v)))
            if hessian is not None:
                return slope(flat), -hessian(inside(flat)) * scale[:, None] * scale
            return slope(flat), jacobian(slope, flat)
        J = jacobian(parts, flat)
        slopes = 2 * jnp.einsum("nr,nri->ni", parts(flat), J)
        return slopes, 2 * jnp.einsum("nri,nrj->nij", J, J)

    def step(carry: Any) -> Any:
        i, u, f, damping, _ = carry
        g, H = derivatives(u)
        held = ((u <= 0) & (g > 0)) | ((u >= 1) & (g < 0))
        free = jnp.where(held, 0.0, 1.0)
        size = jnp.max(jnp.abs(H), axis=(1, 2)) + 1e-12
        diagonal = 1 - free + free * (damping * size)[:, None]
        system = H * free[:, :, None] * free[:, None, :] + jax.vmap(jnp.diag)(diagonal)
        move = -jnp.linalg.solve(system, (free * g)[..., None])[..., 0]
        move = jnp.where(jnp.sum(move * g, axis=1, keepdims=True) < 0, move, -g / size[:, None])
        new = jnp.clip(u + move, 0.0, 1.0)
        found = cost(new)
        better = found < f
        rests = jnp.max(jnp.abs(new - u), axis=1) <= TOLERANCE
        u = jnp.where(better[:, None], new, u)
        f = jnp.where(better, found, f)
        damping = jnp.where(better, damping * CALMER, damping * WILDER)
        return i + 1, u, f, damping, jnp.all(rests)

    first = jnp.clip((start.reshape(n, width) - lows) / scale, 0.0, 1.0)
    begun = (0, first, cost(first), jnp.full(n, FIRST_DAMPING), jnp.asarray(False))
    u = jax.lax.while_loop(lambda c: (c[0] < steps) & ~c[4], step, begun)[1]
    found = inside(u)
    return found, value(found)
