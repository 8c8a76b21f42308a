"""Rewards with a formula: r(x, a, x') of a step, as a value that JAX can differentiate.

A reward is called with batches: x (..., d_x), a (..., d_a), x' (..., d_x) and the number
of the step h, and returns (...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from ivvi._io.arrays import Array

PerColumn = tuple[float, ...]


class Reward(Protocol):
    """The reward of a step."""

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Evaluate on (..., d_x), (..., d_a), (..., d_x); returns (...)."""
        ...


@dataclass(frozen=True)
class Quadratic:
    """-sum_i weight_i (x_i - target_i)^2 - sum_j action_weight_j a_j^2.

    One number is used for all coordinates; in a model with context or lags, for all that it
    predicts.

    Examples
    --------
    >>> float(Quadratic((0.05,))(np.array([3.0, 4.0]), np.zeros(1), None, 0))
    -1.25
    """

    kind: ClassVar[str] = "quadratic"
    weight: PerColumn = (1.0,)
    target: PerColumn = (0.0,)
    action_weight: PerColumn = (0.0,)

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """-weight . (x - target)^2 - action_weight . a^2."""
        cost = np.asarray(self.weight) * (x - np.asarray(self.target)) ** 2
        return -cost.sum(axis=-1) - (np.asarray(self.action_weight) * a**2).sum(axis=-1)


@dataclass(frozen=True)
class Linear:
    """constant + state . x + action . a."""

    kind: ClassVar[str] = "linear"
    state: PerColumn = (0.0,)
    action: PerColumn = (0.0,)
    constant: float = 0.0

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Constant + state . x + action . a."""
        of_state = (np.asarray(self.state) * x).sum(axis=-1)
        return self.constant + of_state + (np.asarray(self.action) * a).sum(axis=-1)


@dataclass(frozen=True)
class RatingReward:
    """sum_i clip(weights_i . x, low, high): the paper's reward of a recommender (section 5.3)."""

    kind: ClassVar[str] = "ratings"
    weights: tuple[PerColumn, ...] = ()
    low: float = 0.0
    high: float = 5.0

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Sum the clipped ratings."""
        xp = x.__array_namespace__()
        return xp.clip(x @ np.asarray(self.weights).T, self.low, self.high).sum(axis=-1)

    def expected(self, mean: Array, covariance: Array) -> Array:
        """Return E of the reward for x ~ N(mean, covariance), by the moments of a clipped normal.

        E clip(m + s N) = low + s [h((m - low) / s) - h((m - high) / s)], h(u) = u F(u) + f(u)
        with the normal's distribution F and density f.
        """
        import jax.numpy as jnp
        from jax.scipy.stats import norm

        weights = np.asarray(self.weights)
        spread = jnp.sqrt(jnp.einsum("ij,jk,ik->i", weights, covariance, weights))
        spread = jnp.maximum(spread, 1e-9 * (self.high - self.low))
        rating = mean @ weights.T

        def above(u: Array) -> Array:
            return u * norm.cdf(u) + norm.pdf(u)

        gained = above((rating - self.low) / spread) - above((rating - self.high) / spread)
        return (self.low + spread * gained).sum(axis=-1)


@dataclass(frozen=True)
class Learned:
    """E[r | x, do(a)] as the model estimated it from the log's confounded rewards."""

    kind: ClassVar[str] = "learned"
    model: Any = None

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Return the model's reward."""
        return self.model.reward(x, a)
