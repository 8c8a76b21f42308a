"""The mean of a soft policy: actions in proportion to exp(value / temperature), not the best one.

Among distributions q of a plan u in a box whose coordinates are independent, the soft plan is

    max_q  E_q[value(u)] + temperature * entropy(q)

which soft actor-critic methods maximise too. Coordinate by coordinate, q_i is proportional to
exp(E[value | u_i] / temperature); the others enter by their means, which is exact where the
value is quadratic. The action taken is the mean of q. It is near the middle of the box if the model
says that actions hardly matter, and at the best action if they matter much. A quadratic value is
-(u^T H u / 2 + g . u).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array

NODES, SWEEPS = 32, 4
"""Nodes of the quadrature along a coordinate, and passes over the coordinates."""


def soft_mean(
    along: Callable[[Array, Any, Array], Array],
    start: Array,
    low: np.ndarray,
    high: np.ndarray,
    temperature: Array | float,
) -> Array:
    """Return the means of the soft plans, (n, D), from `start` (n, D).

    along(u, i, nodes) returns the values (n, q) of the plans u (n, D) with coordinate i at each of
    the nodes (q,), up to a term that does not depend on that coordinate.
    """
    at, weights = np.polynomial.legendre.leggauss(NODES)
    shares, log_weights = jnp.asarray((at + 1) / 2), jnp.log(jnp.asarray(weights))
    lows, widths = jnp.asarray(low), jnp.asarray(high - low)

    def improve(turn: Any, u: Array) -> Array:
        i = turn % u.shape[1]
        nodes = lows[i] + shares * widths[i]
        chances = jax.nn.softmax(along(u, i, nodes) / temperature + log_weights, axis=1)
        return u.at[:, i].set(chances @ nodes)

    return jax.lax.fori_loop(0, SWEEPS * start.shape[1], improve, start)


def along_quadratic(H: Array, g: Array) -> Callable[[Array, Any, Array], Array]:
    """Return `along` for the value -(u^T H u / 2 + g . u), with H (D, D) and g (n, D)."""

    def along(u: Array, i: Any, nodes: Array) -> Array:
        slope = g[:, i] + u @ H[i] - H[i, i] * u[:, i]
        return -(slope[:, None] * nodes + H[i, i] / 2 * nodes**2)

    return along


def along_function(
    value: Callable[[Array, Array], Array], x: Array
) -> Callable[[Array, Any, Array], Array]:
    """Return `along` for value(states (m, d_x), plans (m, D)), (m,)."""

    def along(u: Array, i: Any, nodes: Array) -> Array:
        n, q = len(u), len(nodes)
        plans = jnp.repeat(u, q, axis=0).at[:, i].set(jnp.tile(nodes, n))
        return value(jnp.repeat(x, q, axis=0), plans).reshape(n, q)

    return along
