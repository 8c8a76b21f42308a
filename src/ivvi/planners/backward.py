"""Fitted value iteration: step back from the end, a regression on sampled states each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.planners.greedy import Greedy
from ivvi.rewards import Function
from ivvi.planners.spectral import Spectral

HELD_OUT = 5
"""One in so many of the sampled states is kept out of the regressions."""
NEWTON_STEPS = 3
LONGEST_HOLD = 16
SETTLED = 1e-3
"""Change of the greedy actions, in units of the box, below which they may be held."""
CONVERGED = 1e-4
"""Change of the relative values, in units of their spread, at which the values are stationary."""
DIVERGED = 1e6
"""Growth of the spread of the values beyond which the iteration has failed."""


@dataclass(frozen=True, eq=False)
class Regression:
    """Ridge regression on features of states, without those that are held out.

    Minimises mean (F w - v)^2 + ridge |w of the waves|^2; polynomials are free.
    """

    F: np.ndarray
    polynomials: int
    ridge: float

    def fit(self, v: np.ndarray) -> np.ndarray:
        """Return weights (p,) for values (n,)."""
        import scipy.linalg

        centre = v.mean()
        used = self.used
        w = scipy.linalg.cho_solve(self._factor, self.F[used].T @ (v[used] - centre))
        w[0] += centre
        return np.asarray(w)

    def residual(self, w: np.ndarray, v: np.ndarray) -> float:
        """RMS of v - F w on the held-out states over the spread of v."""
        out = ~self.used
        error = v[out] - self.F[out] @ w
        return float(np.sqrt(np.mean(error**2)) / max(float(v[out].std()), 1e-300))

    @cached_property
    def used(self) -> np.ndarray:
        """Which states are not held out, (n,)."""
        return np.arange(len(self.F)) % HELD_OUT != HELD_OUT - 1

    @cached_property
    def _factor(self) -> Any:
        import scipy.linalg

        return scipy.linalg.cho_factor(penalised(self.gram, self.polynomials, self.ridge, self.n))

    @property
    def n(self) -> int:
        """Number of states used."""
        return int(self.used.sum())

    @cached_property
    def gram(self) -> np.ndarray:
        """F^T F over the states used, (p, p)."""
        used = self.F[self.used]
        return np.asarray(used.T @ used)


def penalised(gram: np.ndarray, polynomials: int, ridge: float, n: int) -> np.ndarray:
    """Add the penalty to a Gram matrix; 1e-9 on the polynomials keeps it definite."""
    penalty = np.full(len(gram), ridge * n)
    penalty[:polynomials] = 1e-9 * n
    return gram + np.diag(penalty)


@dataclass(frozen=True, eq=False)
class Plan:
    """What the iteration found.

    Attributes
    ----------
    weights
        (T, p): row t is the value with t steps to go; the last row is stationary when T is
        less than the horizon.
    actions
        Greedy actions at the sampled states under the last values, (n, d_a).
    values
        The last Bellman targets at the sampled states, (n,).
    residual
        Held-out Bellman residual of the last weights.
    improved
        The rows of `weights` for which actions were maximised anew.
    diverged
        Whether the values grew without bound; the plan then ends before that.
    """

    weights: np.ndarray
    actions: np.ndarray
    values: np.ndarray
    residual: float
    improved: tuple[int, ...]
    diverged: bool = False


@dataclass(frozen=True, eq=False)
class Backward:
    """Step back from the end of the horizon: v = max_a Q(x, a), then w from a regression on v.

    While the greedy actions at the sampled states change, each step maximises anew. Once
    they have settled they are held for one step, then two, then four: a step is a
    matrix-vector product. When neither actions nor relative values change any more, the
    weights serve for all earlier steps (relative value iteration; the constant feature
    carries the level). A reward that depends on the step is followed to the first step.
    """

    greedy: Greedy
    progress: Callable[[int], None] | None = None
    _compiled: dict[str, Any] = field(default_factory=dict)

    def run(self, x: np.ndarray, features: Spectral, ridge: float) -> Plan:
        """Plan on states x (n, d_x)."""
        problem = self.greedy.problem
        states = jnp.asarray(x)
        regression = Regression(np.asarray(self._of_states(features, states)), features.polynomials, ridge)
        alive = 1.0 if problem.terminal is None else 1.0 - np.asarray(problem.terminal(states))
        weights, improved = [np.zeros(features.width)], []
        actions = jnp.broadcast_to(jnp.asarray(problem.actions.middle), (len(x), problem.actions.dim))
        v = np.zeros(len(x))
        hold, held, first_spread = 1, 0, 0.0
        for steps_to_go in range(1, problem.horizon):
            h = problem.horizon - steps_to_go
            if held == 0 or self.timed:
                new, value, m, r = self._improve(features, weights[-1], states, actions, h)
                moved = self._moved(actions, new)
                actions = new
                improved.append(steps_to_go)
                held, hold = (hold, min(2 * hold, LONGEST_HOLD)) if moved < SETTLED else (0, 1)
            else:
                held -= 1
                value = self._evaluate(features, weights[-1], m, r)
            before, v = v, np.asarray(value) * alive
            spread = float(v.std())
            first_spread = first_spread or spread
            if not np.isfinite(v).all() or spread > DIVERGED * max(first_spread, 1e-300):
                return Plan(np.array(weights), np.asarray(actions), before, np.inf, tuple(improved), True)
            weights.append(regression.fit(v))
            if self.progress:
                self.progress(1)
            change = v - before
            change = change.std() if problem.terminal is None else np.abs(change).max()
            if moved < SETTLED and change <= CONVERGED * spread and not self.timed:
                break
        residual = regression.residual(weights[-1], v) if len(weights) > 1 else 0.0
        return Plan(np.array(weights), np.asarray(actions), v, residual, tuple(improved))

    @property
    def timed(self) -> bool:
        """Whether the reward depends on the step."""
        reward = self.greedy.problem.reward
        return isinstance(reward, Function) and reward.arguments == 4  # noqa: PLR2004

    def _moved(self, before: Any, now: Any) -> float:
        """Root mean square change of actions in units of the box; of choices, share changed."""
        actions = self.greedy.problem.actions
        change = np.asarray(now) - np.asarray(before)
        box = change[:, list(actions.continuous)] / (actions.high - actions.low)
        choice = np.any(change[:, list(actions.discrete)] != 0, axis=1)
        return float(np.sqrt(np.mean(np.sum(box**2, axis=1) + choice)))

    @cached_property
    def _improve(self) -> Any:
        def improve(features: Spectral, w: Any, x: Any, guess: Any, h: Any) -> Any:
            a, v = self.greedy.best(x, h, features, w, guess, NEWTON_STEPS)
            return a, v, self.greedy.problem.model.mean(x, a), self.greedy.reward(x, a, h)

        return jax.jit(improve)

    @cached_property
    def _evaluate(self) -> Any:
        discount = self.greedy.problem.discount
        return jax.jit(lambda features, w, m, r: r + discount * features.expected(m, w))

    @cached_property
    def _of_states(self) -> Any:
        return jax.jit(lambda features, x: features.of_states(x))
