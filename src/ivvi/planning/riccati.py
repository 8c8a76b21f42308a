"""Values in closed form: linear dynamics, a concave quadratic reward, unbounded actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.planning.problem import Problem
from ivvi.rewards import Linear, Quadratic

STILL = 1e-13
SOLVED = 1e-9
"""Largest change by a step back, in units of the values, at a fixed point."""
MOST_STEPS = 100_000
"""Values that have not converged after this many steps back are taken not to."""
HUGE = 1e60
"""Values of this size are meaningless, and the squares of larger values overflow."""


@dataclass(frozen=True, eq=False, repr=False)
class QuadraticValue(Compact):
    """V(x) = constant - 2 p . x - x^T P x."""

    P: Array
    p: Array
    constant: Any

    @classmethod
    def zero(cls, d: int) -> QuadraticValue:
        """Return the value after the last step."""
        return cls(np.zeros((d, d)), np.zeros(d), 0.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Evaluate at states (n, d_x)."""
        values: np.ndarray = self.constant - 2 * x @ self.p - np.sum((x @ self.P) * x, axis=-1)
        return values

    def coefficients(self, covariance: np.ndarray) -> np.ndarray:
        """Return E V(m + e) as weights of [1, m, m_i m_j (i <= j)]."""
        i, j = np.triu_indices(len(self.p))
        squares = -np.where(i == j, 1.0, 2.0) * self.P[i, j]
        mean = self.constant - np.trace(self.P @ covariance)
        return np.concatenate([[mean], -2 * self.p, squares])


def riccati_values(
    problem: Problem, stationary: bool = False, *, bounded: bool = True
) -> list[QuadraticValue] | None:
    """Return V_H = 0, V_H-1, .., V_1, or the fixed point alone; None if there is no closed form.

    With x' = c + F_x x + F_a a + e, r = -sum w (x - t)^2 + s . x - sum u a^2 + b . a and V(x') as
    above,

        a = -(U + g F_a^T P F_a)^+ (g F_a^T (P (c + F_x x) + p) - b / 2)

    for a discount g. These are the values of the problem if its set of actions allows these actions
    on all of its states, which is checked unless `bounded` is False. Then the values are upper
    bounds, for which every action is allowed.
    """
    if not is_quadratic(problem) or (bounded and not _is_regulator(problem)):
        return None
    if stationary:
        value = _fixed_point(problem) or _iterated(problem)
        allowed = not bounded or (value and RiccatiStep.of(problem, value).allows(problem))
        return [value] if value and allowed else None
    values = [QuadraticValue.zero(len(problem.model.state))]
    for _ in range(problem.horizon):
        step = RiccatiStep.of(problem, values[-1])
        if bounded and not step.allows(problem):
            return None
        values.append(step.value)
    return values[:-1]


def _fixed_point(problem: Problem) -> QuadraticValue | None:
    """Return the value that a step back does not change, by the algebraic equation.

    With g^1/2 F_x and g^1/2 F_a the equation is that of a regulator without a discount. None if it
    has no solution, or if states that cost nothing grow: its solution keeps them small, and so is
    not the value.
    """
    from scipy.linalg import solve_discrete_are

    c, F_x, F_a = problem.affine  # type: ignore[misc]
    w, t, u, s, b = reward_coefficients(problem, *F_a.shape)
    g = problem.discount
    if not _detectable(g**0.5 * F_x, w):
        return None
    try:
        P = solve_discrete_are(g**0.5 * F_x, g**0.5 * F_a, np.diag(w), np.diag(u))
        gain = RiccatiStep.of(problem, QuadraticValue(P, 0 * t, 0.0)).gain
        closed = F_x + F_a @ gain
        slope = -w * t - s / 2 - gain.T @ b / 2
        p = np.linalg.solve(np.eye(len(F_x)) - g * closed.T, slope + g * closed.T @ P @ c)
    except (np.linalg.LinAlgError, ValueError):
        return None
    constant = RiccatiStep.of(problem, QuadraticValue(P, p, 0.0)).value.constant / (1 - g)
    value = QuadraticValue(P, p, constant)
    return value if _distance(value, RiccatiStep.of(problem, value).value) <= SOLVED else None


def _detectable(F_x: np.ndarray, w: np.ndarray) -> bool:
    """Return whether every direction that does not shrink affects states of positive weight."""
    growing = [root for root in np.linalg.eigvals(F_x) if abs(root) >= 1]
    cost = np.diag(w)
    seen = (np.vstack([F_x - root * np.eye(len(F_x)), cost]) for root in growing)
    return all(np.linalg.matrix_rank(rows) == len(F_x) for rows in seen)


def _iterated(problem: Problem) -> QuadraticValue | None:
    """Return the limit of the values of steps back from the end; None without a limit."""
    value = QuadraticValue.zero(len(problem.model.state))
    for _ in range(MOST_STEPS):
        before, value = value, RiccatiStep.of(problem, value).value
        if not max(np.abs(value.P).max(), np.abs(value.p).max(), abs(value.constant)) < HUGE:
            return None
        if _distance(before, value) <= STILL:
            return value
    return value if _distance(before, value) <= SOLVED else None


@dataclass(frozen=True, eq=False, repr=False)
class RiccatiStep(Compact):
    """One step back: the best action is gain x + shift; a deviation d costs d^T curvature d."""

    gain: np.ndarray
    shift: np.ndarray
    curvature: np.ndarray
    value: QuadraticValue

    @classmethod
    def of(cls, problem: Problem, ahead: QuadraticValue) -> RiccatiStep:
        """Return the step back from the value of the next step."""
        c, F_x, F_a = problem.affine  # type: ignore[misc]
        d_x, d_a = F_a.shape
        w, t, u, s, b = reward_coefficients(problem, d_x, d_a)
        g, P, p = problem.discount, ahead.P, ahead.p
        xp = F_a.__array_namespace__()
        curvature = np.diag(u) + g * F_a.T @ P @ F_a
        inverse = xp.linalg.pinv(curvature, hermitian=True)
        gain = -g * inverse @ F_a.T @ P @ F_x
        shift = -inverse @ (g * F_a.T @ (P @ c + p) - b / 2)
        closed, moved = F_x + F_a @ gain, c + F_a @ shift
        P_new = np.diag(w) + (gain.T * u) @ gain + g * closed.T @ P @ closed
        p_new = -w * t - s / 2 + gain.T @ (u * shift - b / 2) + g * closed.T @ (P @ moved + p)
        later = ahead.constant - xp.sum(P * problem.model.next_cov)
        later = later - moved @ P @ moved - 2 * p @ moved
        now = -w @ t**2 - u @ shift**2 + b @ shift + reward_constant(problem)
        value = QuadraticValue((P_new + P_new.T) / 2, p_new, now + g * later)
        return cls(gain, shift, curvature, value)

    def allows(self, problem: Problem) -> bool:
        """Return whether the box allows the best actions on all of the problem's states."""
        a = problem.support @ self.gain.T + self.shift
        return not ((a < problem.actions.low).any() or (a > problem.actions.high).any())


def _is_regulator(problem: Problem) -> bool:
    return isinstance(problem.reward, Quadratic) and not problem.actions.discrete


def value_tail(problem: Problem, steps: int) -> tuple[Array, Array]:
    """Return P (T + 1, d_x, d_x) and p (T + 1, d_x) of the values with 0, .., T steps to go.

    As if every action were allowed; the weights of the model may be traced by JAX.
    """
    value = QuadraticValue.zero(len(problem.model.state))
    values = [(value.P, value.p)]
    for _ in range(steps):
        before, value = value, RiccatiStep.of(problem, value).value
        if isinstance(value.P, np.ndarray) and not np.abs(value.P).max(initial=0.0) < HUGE:
            value = before  # the model explodes; the problem's `doubts` report it
        values.append((value.P, value.p))
    xp = value.P.__array_namespace__()
    P, p = (xp.stack([xp.asarray(v) for v in part]) for part in zip(*values, strict=True))
    return P, p


def is_quadratic(problem: Problem) -> bool:
    """Return whether a plan's return is a concave quadratic function of its actions."""
    if problem.affine is None or problem.can_end:
        return False
    return is_concave(problem.reward) or isinstance(problem.reward, Linear)


def is_concave(reward: Any) -> bool:
    """Return whether a reward is minus a sum of squares."""
    return isinstance(reward, Quadratic) and min(reward.weight + reward.action_weight) >= 0


def reward_coefficients(problem: Problem, d_x: int, d_a: int) -> tuple[np.ndarray, ...]:
    """Return weight, target (d_x,), cost (d_a,) of squares; slope (d_x,), pull (d_a,) of lines."""
    reward: Any = problem.reward
    wide, narrow = np.ones(d_x), np.ones(d_a)
    if isinstance(reward, Quadratic):
        squares = wide * reward.weight, wide * reward.target, narrow * reward.action_weight
        return *squares, 0 * wide, 0 * narrow
    return 0 * wide, 0 * wide, 0 * narrow, wide * reward.state, narrow * reward.action


def reward_constant(problem: Problem) -> float:
    """Return the constant of a linear reward."""
    return problem.reward.constant if isinstance(problem.reward, Linear) else 0.0


def _distance(before: QuadraticValue, value: QuadraticValue) -> float:
    """Return the largest change, in units of the values."""
    pairs = ((before.P, value.P), (before.p, value.p), (before.constant, value.constant))
    return max(
        float(np.max(np.abs(new - old)) / max(1.0, float(np.max(np.abs(new)))))
        for old, new in pairs
    )
