"""Projected Newton ascent over a box, for a batch of separate problems at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.blocks import Array

STEPS = 30
TOLERANCE = 1e-9
FIRST_DAMPING, CALMER, WILDER = 1e-3, 0.2, 8.0


def maximise(
    value: Callable[[Array], Array],
    start: Array,
    low: np.ndarray,
    high: np.ndarray,
    *,
    steps: int = STEPS,
    hessian: Callable[[Array], Array] | None = None,
) -> tuple[Array, Array]:
    """Maximise `value`, (n, L, d) to (n,), row by row over low <= u <= high, (d,).

    Each row takes damped Newton steps in the coordinates that no bound holds (Bertsekas,
    1982); a step that gains nothing is not taken, and the damping grows until one does.
    Returns the points (n, L, d) and their values (n,). All rows stop together, when none
    of them moves any more, and after `steps` at the latest. `hessian`, (n, L, d) to
    (n, L d, L d), is the second derivative of `value` where it is known.
    """
    n, *shape = start.shape
    width = int(np.prod(shape))
    lows, highs = (jnp.asarray(np.broadcast_to(side, shape).ravel()) for side in (low, high))
    scale = highs - lows

    def cost(flat: Array) -> Array:  # in units of the box
        return -value((lows + flat * scale).reshape(n, *shape))

    slope = jax.grad(lambda flat: jnp.sum(cost(flat)))

    def curvature(flat: Array) -> Array:
        """Hessian of each row, (n, D, D): the rows are separate, so one pass for each column."""
        if hessian is not None:
            return -hessian((lows + flat * scale).reshape(n, *shape)) * scale[:, None] * scale
        along = lambda e: jax.jvp(slope, (flat,), (jnp.broadcast_to(e, flat.shape),))[1]  # noqa: E731
        return jnp.moveaxis(jax.vmap(along)(jnp.eye(width)), 0, -1)

    def step(carry: Any) -> Any:
        i, u, f, damping, _ = carry
        g, H = slope(u), curvature(u)
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
        moved = jnp.where(better, jnp.max(jnp.abs(new - u), axis=1), jnp.inf)
        tried = jnp.max(jnp.abs(new - u), axis=1)
        still = (tried <= TOLERANCE) | (damping > 1e8)
        u = jnp.where(better[:, None], new, u)
        f = jnp.where(better, found, f)
        damping = jnp.where(better, damping * CALMER, damping * WILDER)
        return i + 1, u, f, damping, jnp.all(still | (moved <= TOLERANCE))

    first = jnp.clip((start.reshape(n, width) - lows) / scale, 0.0, 1.0)
    begun = (0, first, cost(first), jnp.full(n, FIRST_DAMPING), jnp.asarray(False))
    _, u, f, _, _ = jax.lax.while_loop(lambda c: (c[0] < steps) & ~c[4], step, begun)
    return (lows + u * scale).reshape(start.shape), -f
