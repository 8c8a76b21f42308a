"""Fitted value iteration: step back from the end, a regression on sampled states each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.planning.problem import Template
from ivvi.planning.spede.features import Spectral
from ivvi.planning.spede.greedy import Greedy
from ivvi.planning.spede.regression import Regression
from ivvi.planning.value_iteration.quadrature import uses_step

NEWTON_STEPS = 3
ALWAYS_ANEW, LONGEST_HOLD = 10, 16
"""Steps from the end at which actions are never held, and for how many they may be later."""
SETTLED = 1e-3
"""Change of the greedy actions, in units of their spread, below which they may be held."""
CONVERGED = 1e-4
"""Change of the relative values, in units of their spread, at which they are stationary."""
DIVERGED = 1e6
"""Growth of the spread of the values, after ten steps, with which the iteration has failed."""


@dataclass(frozen=True, eq=False)
class IterationResult:
    """What the iteration found.

    Attributes
    ----------
    weights
        (T, p): row t is the value with t steps to go; the last row is stationary when T is
        less than the horizon.
    actions
        Greedy actions at the sampled states under the last values, (n, d_a).
    residual
        Held-out Bellman residual of the last weights.
    improved
        The rows of `weights` for which actions were maximised anew.
    diverged
        Whether the values grew without bound; the plan ends before that.
    """

    weights: np.ndarray
    actions: np.ndarray
    residual: float
    improved: tuple[int, ...]
    diverged: bool = False


@dataclass(frozen=True, eq=False)
class Backward:
    """Step back from the end of the horizon: v = max_a Q(x, a), then w from a regression on v.

    While the greedy actions at the sampled states change, and always near the end, each step
    maximises anew. Once they have settled they are held for one step, then two, then four:
    such a step is a matrix-vector product. When neither actions nor relative values change
    any more, the weights serve for all earlier steps (relative value iteration; the constant
    feature carries the level). A reward that depends on the step is followed to the first.
    """

    greedy: Greedy
    progress: Callable[[int], None] | None = None

    def run(self, x: np.ndarray, features: Spectral, ridge: float) -> IterationResult:
        """Plan on states x (n, d_x)."""
        problem = self.greedy.problem
        timed = uses_step(problem)
        regression = Regression.of(self.columns(x, features), features.polynomials, ridge)
        weights, improved, spreads = [np.zeros(features.width)], [], [0.0]
        a, v = self._middle(len(x)), np.zeros(len(x))
        hold, steps_held, moved, mean, reward = 1, 0, np.inf, None, None
        for to_go in range(1, problem.horizon):
            before = v
            if steps_held == 0 or timed or to_go <= ALWAYS_ANEW:
                last, h = a, problem.horizon - to_go
                a, v, mean, reward = self._improve(features, weights[-1], x, a, h)
                moved = self._moved(last, a)
                improved.append(to_go)
                steps_held, hold = (
                    (hold, min(2 * hold, LONGEST_HOLD)) if moved < SETTLED else (0, 1)
                )
            else:
                ahead = _expected(features, mean, weights[-1])
                v, steps_held = reward + problem.discount * ahead, steps_held - 1
            v = np.asarray(v) * self._alive(x)
            spreads.append(float(v.std()))
            if not spreads[-1] <= DIVERGED * max(spreads[:10]):  # not a number, or too large
                return IterationResult(
                    np.array(weights), np.asarray(a), np.inf, tuple(improved[:-1]), True
                )
            weights.append(regression.fit(v))
            if self.progress:
                self.progress(1)
            change = (v - before).std() if problem.terminal is None else np.abs(v - before).max()
            if moved < SETTLED and change <= CONVERGED * spreads[-1] and not timed:
                break
        residual = regression.residual(weights[-1], v)
        return IterationResult(np.array(weights), np.asarray(a), residual, tuple(improved))

    def columns(self, x: np.ndarray, features: Spectral) -> np.ndarray:
        """Return the features of states as NumPy's, (n, p)."""
        return np.asarray(_of_states(features, x))

    def act(self, x: np.ndarray, features: Spectral, w: np.ndarray, h: int) -> tuple[Any, Any]:
        """Return greedy actions (n, d_a) at states that were not planned on, and Q there."""
        a = self._improve(features, w, x, self._middle(len(x)), h)[0]
        a, v, _, _ = self._improve(features, w, x, a, h)
        return np.asarray(a), np.asarray(v) * self._alive(x)

    def _middle(self, n: int) -> Any:
        middle = jnp.asarray(self.greedy.problem.actions.middle)
        return jnp.broadcast_to(middle, (n, len(middle)))

    def _alive(self, x: np.ndarray) -> Any:
        """1 where an episode goes on, 0 where it has ended and there is nothing to gain."""
        terminal = self.greedy.problem.terminal
        return 1.0 if terminal is None else 1.0 - np.asarray(terminal(jnp.asarray(x)), float)

    def _moved(self, before: Any, now: Any) -> float:
        """Root mean square change of actions over their spread; of choices, share changed."""
        actions, now = self.greedy.problem.actions, np.asarray(now)
        change = now - np.asarray(before)
        spread = np.minimum(now.std(axis=0)[list(actions.continuous)], actions.high - actions.low)
        box = change[:, list(actions.continuous)] / np.maximum(spread, 1e-300)
        choice = np.any(change[:, list(actions.discrete)] != 0, axis=1)
        return float(np.sqrt(np.mean(np.sum(box**2, axis=1) + choice)))

    def _improve(self, features: Spectral, w: Any, x: Any, guess: Any, h: Any) -> Any:
        """Return greedy actions, their values, the means that they lead to, the rewards."""
        return _improver(Template.of(self.greedy))(self.greedy.numbers, features, w, x, guess, h)


@lru_cache(maxsize=32)
def _improver(template: Template) -> Any:
    def improve(numbers: Any, features: Spectral, w: Any, x: Any, guess: Any, h: Any) -> Any:
        greedy = template.example.with_numbers(numbers)
        a, v = greedy.best(x, h, features, w, guess, NEWTON_STEPS)
        return a, v, greedy.mean(x, a), greedy.reward(x, a, h)

    return jax.jit(improve)


_expected = jax.jit(Spectral.expected)
_of_states = jax.jit(Spectral.of_states)
