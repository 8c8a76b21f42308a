"""The value of a short plan in the mean dynamics.

Where the dynamics are linear and the reward is quadratic, minus the value of a plan of L actions,
as one vector u of D = L d_a numbers, is

    u^T H u / 2 + (J x + f) . u   plus terms that do not depend on u,

with H (D, D), J (D, d_x) and f (D,) from x_l = G_l x + c_l + T_l u and a_l = E_l u.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.planning.problem import Problem
from ivvi.planning.riccati import is_concave, reward_coefficients
from ivvi.rewards import RatingReward


@dataclass(frozen=True, eq=False, repr=False)
class Lookahead(Compact):
    """sum_{l=0}^{L} discount^l r(x_l, a_l, x_l+1) of plans of L actions, the last one held.

    Steps beyond the horizon do not count. With a `tail`, the value after the L steps is
    discount^L V(x_L) instead of that of one more step with the last action held.

    In linear dynamics the spread of x_l around its mean is known, and rewards that know their mean
    under that spread (`RatingReward`) are averaged over the noise.

    Attributes
    ----------
    tail
        P (T + 1, d_x, d_x) and p (T + 1, d_x) of V_t(x) = -2 p_t . x - x^T P_t x, the value with
        t steps to go up to a constant; None without a tail.
    """

    problem: Problem
    steps: int
    tail: tuple[Array, Array] | None = None
    spreads: Array | None = field(init=False)
    """Covariance of x_l around its mean, (L + 1, d_x, d_x); None unless the model is linear."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spreads", _spreads(self.problem, self.steps))

    def __call__(self, x: Array, plans: Array, h: Array) -> Array:
        """Return the values (n,) of plans (n, L, d_a) in states (n, d_x) from step h on."""
        total, alive = jnp.zeros(len(x)), jnp.ones(len(x))
        for step in range(self.steps + (self.tail is None)):
            a = plans[:, min(step, self.steps - 1)]
            x, gained, alive = self.advance(x, a, h, step, alive)
            total = total + gained
        return total + alive * self.to_go(x, h, self.steps)

    def advance(
        self, x: Array, a: Array, h: Array, step: Any, alive: Array
    ) -> tuple[Array, Array, Array]:
        """Take step `step` after h; return next states, rewards, and the chances of going on."""
        problem = self.problem
        x_next = problem.model.mean(x, a)
        gained = self._reward(x, a, x_next, h + step, step)
        counted = problem.discount**step * jnp.where(step < self.remaining(h), 1.0, 0.0)
        gained = counted * alive * gained
        alive = alive * (1.0 - problem.ended(x, a, x_next))
        return x_next, gained, alive

    def to_go(self, x: Array, h: Array, step: Any) -> Array:
        """Return the values (n,) of states (n, d_x), `step` steps after h."""
        if self.tail is None:
            return jnp.zeros(len(x))
        P, p = (jnp.asarray(part) for part in self.tail)
        t = jnp.clip(self.remaining(h) - step, 0, len(p) - 1)
        return self.problem.discount**step * (-2 * x @ p[t] - jnp.sum((x @ P[t]) * x, axis=-1))

    def remaining(self, h: Array) -> Array:
        """Return how many steps are left at step h; the whole horizon if h is beyond it."""
        horizon = self.problem.horizon
        return jnp.where(h < horizon, horizon - h, horizon)

    def residuals(self, x: Array, plans: Array, h: Array) -> Array:
        """Return the weighted terms that a quadratic reward squares, (n, (L + 1) (d_x + d_a))."""
        reward: Any = self.problem.reward
        parts = []
        for step in range(self.steps + 1):
            a = plans[:, min(step, self.steps - 1)]
            counted = jnp.where(step < self.remaining(h), 1.0, 0.0)
            root = self.problem.discount ** (step / 2) * counted
            parts.append(root * np.sqrt(reward.weight) * (x - np.asarray(reward.target)))
            parts.append(root * np.sqrt(reward.action_weight) * a)
            x = self.problem.model.mean(x, a)
        return jnp.concatenate(parts, axis=-1)

    @property
    def has_residuals(self) -> bool:
        """Whether the lookahead is minus a sum of squares."""
        return is_concave(self.problem.reward) and not self.problem.can_end

    def _reward(self, x: Array, a: Array, x_next: Array, h: Array, step: Any) -> Array:
        reward: Any = self.problem.reward
        if isinstance(reward, RatingReward) and self.spreads is not None:
            paid = self.problem.end_gain(x, a, x_next)
            return reward.expected(x, jnp.asarray(self.spreads)[step]) + paid
        return self.problem.gain(x, a, x_next, h)


def _spreads(problem: Problem, steps: int) -> Array | None:
    """Return the covariance of x_l, l = 0, ..., L: C_l+1 = F_x C_l F_x^T + noise, C_0 = 0."""
    if problem.affine is None:
        return None
    F_x, noise = problem.affine[1], problem.model.next_cov
    spreads = [np.zeros(noise.shape)]
    for _ in range(steps):
        spreads.append(F_x @ spreads[-1] @ F_x.T + noise)
    return jnp.stack(spreads)


def quadratic_form(
    problem: Problem, steps: int, remaining: int, tail: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Return H, J and f of minus the lookahead (module docstring).

    There are `remaining` steps to the horizon, and V(x_L) = -2 p . x_L - x_L^T P x_L,
    `tail` = P, p, after the plan.
    """
    c, F_x, F_a = problem.affine  # type: ignore[misc]
    d_x, d_a = F_a.shape
    width = steps * d_a
    weight, target, cost, slope, pull = reward_coefficients(problem, d_x, d_a)
    G, shift, moved = np.eye(d_x), np.zeros(d_x), np.zeros((d_x, width))
    H, J, f = np.zeros((width, width)), np.zeros((width, d_x)), np.zeros(width)
    # no array is changed in place: W may be traced by JAX
    for step in range(min(steps, remaining)):
        chosen = np.zeros((d_a, width))
        chosen[:, step * d_a : (step + 1) * d_a] = np.eye(d_a)
        share = problem.discount**step
        H = H + 2 * share * ((moved.T * weight) @ moved + (chosen.T * cost) @ chosen)
        J = J + 2 * share * (moved.T * weight) @ G
        f = f + share * (
            2 * (moved.T * weight) @ (shift - target) - moved.T @ slope - chosen.T @ pull
        )
        G, shift, moved = F_x @ G, F_x @ shift + c, F_x @ moved + F_a @ chosen
    if remaining > steps:
        share, (P, p) = problem.discount**steps, tail
        H = H + 2 * share * moved.T @ P @ moved
        J = J + 2 * share * moved.T @ P @ G
        f = f + 2 * share * moved.T @ (P @ shift + p)
    return (H + H.T) / 2, J, f
