"""Fitted value iteration on the states that plans visit.

A plan needs values only in the states that it visits. So the value is fitted there, backward over
the horizon:

    V_h(x) = max_a E[r(x, a, x') + discount V_h+1(x')],   V_h ~ a quadratic function of x,

by regression on the states that the best plan so far visits around step h in the model, and on
states some noise away from them. The plan that is greedy for these values visits other states, and
the values are fitted again there. The best round is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from ivvi.errors import InputError
from ivvi.planning.comparison import Trials
from ivvi.planning.problem import Problem, Rule, Template
from ivvi.planning.progress import step_done
from ivvi.planning.quadrature import Noise, reward_noise
from ivvi.planning.simple_rules import HeldRule
from ivvi.planning.value_iteration.fourier_values import Fitted
from ivvi.planning.value_iteration.value_iteration import ValueRule, backup_of

STATES, ROUNDS = 150, 3
WINDOW = 2
"""A step also uses the states of this many steps before and after it."""
MOST_WIDTH = 400
"""Most coefficients of a quadratic function that are fitted: those of 26 states."""
MOST_STEPS = 200
"""Longer plans use the values of this many steps to go for all earlier steps."""
NODES = 64
RIDGE = 1e-6


@dataclass(frozen=True)
class VisitedValue:
    """Quadratic values on visited states.

    Parameters
    ----------
    states
        States per step; more where the quadratic function has more coefficients.
    rounds
        How often new states are visited.
    first
        The rule whose states are visited first; by default the middle action, always.
    """

    states: int = STATES
    rounds: int = ROUNDS
    first: Rule | None = None

    def __post_init__(self) -> None:
        for name in ("states", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected at least 1")

    def serves(self, problem: Problem) -> bool:
        """Return whether the problem has few enough states for a quadratic function."""
        return Fitted.quadratic(len(problem.model.state)).width <= MOST_WIDTH

    def solve(self, problem: Problem, *, seed: int = 0) -> ValueRule:
        """Return the rule of the round that earns most in the model."""
        rule = HeldRule(problem.actions.middle) if self.first is None else self.first
        n = max(self.states, 3 * Fitted.quadratic(len(problem.model.state)).width)
        trials, best, most = Trials.of(problem, seed + 1, n), None, -np.inf
        visited = trials.paths(rule)[1]
        for count in range(self.rounds):
            rng = np.random.default_rng([seed, count])
            with jax.enable_x64(True):
                candidate = self._round(problem, visited, rng)
            returns, states, _ = trials.paths(candidate)
            earned = float(np.nan_to_num(returns, nan=-np.inf).mean())
            if best is None or earned > most:
                best, most = candidate, earned
            visited = np.concatenate([visited, states], axis=1)[:, -2 * n :]
            step_done()
        return best  # type: ignore[return-value]

    def _round(self, problem: Problem, visited: np.ndarray, rng: np.random.Generator) -> ValueRule:
        """Fit the values backward on visited states (H, n, d_x)."""
        horizon, _, d = visited.shape
        visited = np.clip(visited, *np.quantile(visited, [0.001, 0.999], axis=(0, 1)))
        values = Fitted.to(visited.reshape(-1, d), 0, cosines=False)
        noise = _noise(problem, rng)
        of_reward = reward_noise(problem)
        backup, steps = backup_of(Template.of(problem, problem.horizon)), min(horizon, MOST_STEPS)
        average = None if problem.terminal is not None else values.average(problem.model.next_cov)
        c, coefficients = np.zeros(values.width), []
        for to_go in range(steps):
            h = horizon - 1 - to_go
            coefficients.append(c)
            x = _states_around(visited, h, problem, rng, self.states, values.width)
            v = np.asarray(backup(problem.numbers, values, of_reward, x, c, h))
            if not np.isfinite(v).all():
                break
            basis = values.features(x)
            w = _ridge(basis, v)
            if average is None:
                averaged = values.averaged_features(x, noise, problem.terminal) @ w
                c = _ridge(basis, averaged)
            else:
                c = average @ w
        parts = values, np.array(coefficients[::-1]), np.zeros(horizon), of_reward
        return ValueRule(problem, *parts, "visited")


def _states_around(
    visited: np.ndarray,
    h: int,
    problem: Problem,
    rng: np.random.Generator,
    count: int,
    width: int,
) -> np.ndarray:
    """Return states visited around step h, half of them moved by the noise of the model."""
    near = visited[max(0, h - WINDOW) : h + WINDOW + 1].reshape(-1, visited.shape[2])
    x = near[rng.integers(len(near), size=max(count, 3 * width))].copy()
    spread = 2 * np.sqrt(np.diag(problem.model.next_cov)) + 0.25 * visited.std(axis=(0, 1))
    x[::2] += spread * rng.normal(size=x[::2].shape)
    return x


def _noise(problem: Problem, rng: np.random.Generator) -> Noise:
    return Noise.of(problem.model.next_cov, "quasi", NODES, int(rng.integers(1 << 31)))


def _ridge(basis: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Regress v (n,) on features `basis` (n, p) with a small ridge."""
    gram = basis.T @ basis
    size = RIDGE * np.trace(gram) / len(gram)
    centre = v.mean()
    w = np.linalg.solve(gram + size * np.eye(len(gram)), basis.T @ (v - centre))
    w[0] += centre
    return np.asarray(w)
