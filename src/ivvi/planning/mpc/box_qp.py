"""Convex quadratic programs over a box, a whole batch at once.

    minimise 1/2 u^T H u + g^T u   subject to low <= u <= high

with one H and many g. Accelerated projected gradient finds the active bounds; conjugate gradients
on the free coordinates then give the solution to machine precision, and the conditions of
optimality decide whether to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact

TOLERANCE = 1e-11
"""Largest violation of optimality, in units of the widest side of the box."""
STEPS, ROUNDS = 12, 160
PRECISION, MOST_TURNS = 1e-13, 40


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class BoxQP(Compact):
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
        """Return the program, with step sizes from its eigenvalues."""
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
            goes_on = lambda c: (c[0] < STEPS) & (c[3] > tolerance)  # noqa: E731
            _, u, _, moved = jax.lax.while_loop(goes_on, step, started)
            u = jax.lax.cond(moved > tolerance, lambda v: self._polish(v, g), lambda v: v, u)
            return i + 1, u, jnp.max(jnp.abs(u - self._clip(u @ move - shift)))

        going = lambda c: (c[0] < ROUNDS) & (c[2] > tolerance)  # noqa: E731
        return jax.lax.while_loop(going, round_, (0, self._clip(start), jnp.inf))[1]

    def _clip(self, u: Array) -> Array:
        return jnp.clip(u, self.low, self.high)

    def _polish(self, u: Array, g: Array) -> Array:
        """Solve for the free coordinates; keep u where that is no better.

        By conjugate gradients: D steps are exact up to rounding.
        """
        H = jnp.asarray(self.H)
        slope = u @ H + g
        bound = ((u <= self.low) & (slope > 0)) | ((u >= self.high) & (slope < 0))
        free = jnp.where(bound, 0.0, 1.0)
        least = len(H) * (PRECISION * self.most * jnp.max(self.high - self.low)) ** 2

        def step(carry: Any) -> Any:
            i, v, r, p, size = carry
            Hp = free * (p @ H)
            bend = jnp.sum(p * Hp, axis=1, keepdims=True)
            flat = bend <= PRECISION * self.most * jnp.sum(p * p, axis=1, keepdims=True)
            share = jnp.where(flat, 0.0, size / jnp.where(flat, 1.0, bend))
            r = r - share * Hp
            new = jnp.sum(r * r, axis=1, keepdims=True)
            turn = new / jnp.where(size > 0, size, 1.0)
            return i + 1, v + share * p, r, r + turn * p, new

        r = -free * slope
        begun = (0, u, r, r, jnp.sum(r * r, axis=1, keepdims=True))
        going = lambda c: (c[0] < min(len(H), MOST_TURNS)) & (jnp.max(c[4]) > least)  # noqa: E731
        solution = self._clip(jax.lax.while_loop(going, step, begun)[1])
        cost = [0.5 * jnp.sum((v @ H) * v, axis=1) + jnp.sum(g * v, axis=1) for v in (u, solution)]
        return jnp.where((cost[1] <= cost[0])[:, None], solution, u)
