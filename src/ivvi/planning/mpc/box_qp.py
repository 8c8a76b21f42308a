"""Convex quadratic programs over a box, a whole batch at once.

    minimise 1/2 u^T H u + g^T u   subject to low <= u <= high

with one H and many g. Accelerated projected gradient finds which bounds hold; one linear
solve on the others then gives the solution to machine precision, and the conditions of
optimality decide whether to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.features.blocks import Array

TOLERANCE = 1e-11
"""Largest violation of optimality, in units of the widest side of the box."""
STEPS, ROUNDS = 40, 50


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class BoxQP:
    """The program for one H (D, D), symmetric and positive semidefinite, and one box (D,).

    `most` is the largest eigenvalue of H, `momentum` (1 - r) / (1 + r) with r^2 the smallest
    over the largest. A tree of arrays to JAX: one compiled program serves every H.
    """

    H: Array
    low: Array
    high: Array
    most: Array
    momentum: Array

    @classmethod
    def of(cls, H: Array, low: np.ndarray, high: np.ndarray) -> BoxQP:
        """Return the program with the steps that its eigenvalues allow."""
        xp = H.__array_namespace__()
        values = xp.linalg.eigvalsh(H)
        most = xp.maximum(values[-1], 1e-300)
        root = xp.sqrt(xp.maximum(values[0], 0.0) / most)
        return cls(H, low, high, most, (1 - root) / (1 + root))

    def __call__(self, g: Array, start: Array) -> Array:
        """Solve for gradients g (n, D) from `start` (n, D); returns (n, D)."""
        most, momentum = self.most, self.momentum
        move = jnp.eye(len(self.H)) - self.H / most
        shift = g / most
        tolerance = TOLERANCE * jnp.max(self.high - self.low)

        def step(carry: Any) -> Any:
            i, u, before, _ = carry
            y = u + momentum * (u - before)
            new = self._clip(y @ move - shift)
            return i + 1, new, u, jnp.max(jnp.abs(new - y))

        def round_(carry: Any) -> Any:
            i, u, _ = carry
            started = (0, u, u, jnp.inf)
            wanted = lambda c: (c[0] < STEPS) & (c[3] > tolerance)  # noqa: E731
            _, u, _, moved = jax.lax.while_loop(wanted, step, started)
            u = jax.lax.cond(moved > tolerance, lambda v: self._polish(v, g), lambda v: v, u)
            return i + 1, u, jnp.max(jnp.abs(u - self._clip(u @ move - shift)))

        going = lambda c: (c[0] < ROUNDS) & (c[2] > tolerance)  # noqa: E731
        return jax.lax.while_loop(going, round_, (0, self._clip(start), jnp.inf))[1]

    def _clip(self, u: Array) -> Array:
        return jnp.clip(u, self.low, self.high)

    def _polish(self, u: Array, g: Array) -> Array:
        """Solve exactly for the coordinates that are free; keep u where that is no better."""
        H = jnp.asarray(self.H)
        slope = u @ H + g
        held = ((u <= self.low) & (slope > 0)) | ((u >= self.high) & (slope < 0))

        def solve(u: Array, g: Array, held: Array) -> Array:
            free = jnp.where(held, 0.0, 1.0)
            system = H * free[:, None] * free + jnp.diag(1 - free + free * 1e-13 * self.most)
            known = jnp.where(held, u, 0.0)
            return jnp.where(held, u, jnp.linalg.solve(system, -free * (g + H @ known)))

        found = self._clip(jax.vmap(solve)(u, g, held))
        cost = [0.5 * jnp.sum((v @ H) * v, axis=1) + jnp.sum(g * v, axis=1) for v in (u, found)]
        return jnp.where((cost[1] <= cost[0])[:, None], found, u)
