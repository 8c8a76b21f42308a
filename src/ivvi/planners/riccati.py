"""The closed form: linear dynamics, a concave quadratic reward and bounds that never bind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.planners.lookahead import is_quadratic
from ivvi.planners.problem import Problem
from ivvi.rewards import Quadratic

STILL = 1e-13
MOST_STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class QuadraticValue:
    """V(x) = constant - 2 p . x - x^T P x."""

    P: np.ndarray
    p: np.ndarray
    constant: float

    def coefficients(self, covariance: np.ndarray) -> np.ndarray:
        """Return E V(m + e) as weights of [1, m, m_i m_j (i <= j)]."""
        i, j = np.triu_indices(len(self.p))
        squares = -np.where(i == j, 1.0, 2.0) * self.P[i, j]
        mean = self.constant - np.trace(self.P @ covariance)
        return np.concatenate([[mean], -2 * self.p, squares])


def riccati_values(problem: Problem, stationary: bool) -> list[QuadraticValue] | None:
    """Return V_H = 0, V_H-1, .., V_1, or the fixed point alone; None when it has no such form.

    With x' = c + F x + B a + e, r = -sum w (x - t)^2 - sum u a^2 and V(x') as above,

        a = -(U + g B^T P B)^+ g B^T (P (c + F x) + p)

    for a discount g. The values hold where the bounds allow these actions; they are asked for
    on all of the problem's states.
    """
    reward: Any = problem.reward
    is_regulator = is_quadratic(problem) and isinstance(reward, Quadratic)
    if not is_regulator or problem.actions.choices.size:
        return None
    c, F, B = problem.affine  # type: ignore[misc]
    d_x, d_a = B.shape
    w, t = np.ones(d_x) * reward.weight, np.ones(d_x) * reward.target
    u, g = np.ones(d_a) * reward.action_weight, problem.discount
    noise = problem.model.next_cov
    value = QuadraticValue(np.zeros((d_x, d_x)), np.zeros(d_x), 0.0)
    found = [value]
    for _ in range(MOST_STEPS if stationary else problem.horizon):
        P, p = value.P, value.p
        inverse = np.linalg.pinv(np.diag(u) + g * B.T @ P @ B, hermitian=True)
        gain, shift = -g * inverse @ B.T @ P @ F, -g * inverse @ B.T @ (P @ c + p)
        a = problem.support @ gain.T + shift
        if (a < problem.actions.low).any() or (a > problem.actions.high).any():
            return None
        closed, moved = F + B @ gain, c + B @ shift
        P_new = np.diag(w) + (gain.T * u) @ gain + g * closed.T @ P @ closed
        p_new = -w * t + (gain.T * u) @ shift + g * closed.T @ (P @ moved + p)
        ahead = value.constant - np.trace(P @ noise) - moved @ P @ moved - 2 * p @ moved
        constant = float(-w @ t**2 - u @ shift**2 + g * ahead)
        before, value = value, QuadraticValue((P_new + P_new.T) / 2, p_new, constant)
        if not stationary:
            found.append(value)
        elif _distance(before, value) <= STILL:
            return [value]
    return None if stationary else found[:-1]


def _distance(before: QuadraticValue, value: QuadraticValue) -> float:
    """Largest change, in units of the values."""
    pairs = ((before.P, value.P), (before.p, value.p), (before.constant, value.constant))
    return max(
        float(np.max(np.abs(new - old)) / max(1.0, float(np.max(np.abs(new)))))
        for old, new in pairs
    )
