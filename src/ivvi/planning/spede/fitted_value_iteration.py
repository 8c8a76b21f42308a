"""Fitted value iteration on spectral features: a ridge regression for each step back from the end.

The regressions are on sampled states: states of the log, and those that a plan reaches from them
in the model. Every fifth state is held out; the features that predict best there are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.dynamics.rollout import run_episodes
from ivvi.planning.problem import Template
from ivvi.planning.progress import step_done
from ivvi.planning.quadrature import uses_step
from ivvi.planning.spede.features import Spectral
from ivvi.planning.spede.greedy import Greedy

NEWTON_STEPS = 3
ALWAYS_ANEW, LONGEST_HOLD = 10, 16
"""Last steps in which actions are never held, and the most steps for which they are held."""
SETTLED = 1e-3
"""Change of the greedy actions, in units of their spread, below which they may be held."""
CONVERGED = 1e-4
"""Change of the relative values, in units of their spread, at which they are stationary."""
DIVERGED = 1e6
"""The iteration has failed if the values' spread grows by this factor after ten steps."""
HELD_OUT = 5
"""One in this many of the sampled states is held out of the regressions."""
COUNTS = (128, 256, 512)
BANDWIDTHS = (0.5, 1.0, 2.0, 4.0)
RIDGES = (1e-2, 1e-4, 1e-6)
WORTH = 1.1
"""More features are worth their time only if the residual shrinks by this factor."""
REACHED_STEPS = 3
EPISODES, STEPS = 32, 50


@dataclass(frozen=True, eq=False, repr=False)
class IterationResult(Compact):
    """The result of the iteration.

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
    maximises again. Once the actions have settled they are held for one step, then two, then four:
    such a step is a matrix-vector product. When neither actions nor relative values change any
    more, the weights are used for all earlier steps (relative value iteration; the constant feature
    carries the level). With a reward that depends on the step, the recursion goes on to the first.
    """

    greedy: Greedy

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
            step_done()
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
        """Return 1 where an episode goes on, 0 where it has ended and earns nothing more."""
        terminal = self.greedy.problem.terminal
        return 1.0 if terminal is None else 1.0 - np.asarray(terminal(jnp.asarray(x)), float)

    def _moved(self, before: Any, now: Any) -> float:
        """Return the root mean square change of actions over their spread; of choices, a share."""
        actions, now = self.greedy.problem.actions, np.asarray(now)
        change = now - np.asarray(before)
        spread = np.minimum(now.std(axis=0)[list(actions.continuous)], actions.high - actions.low)
        box = change[:, list(actions.continuous)] / np.maximum(spread, 1e-300)
        choice = np.any(change[:, list(actions.discrete)] != 0, axis=1)
        return float(np.sqrt(np.mean(np.sum(box**2, axis=1) + choice)))

    def _improve(self, features: Spectral, w: Any, x: Any, guess: Any, h: Any) -> Any:
        """Return greedy actions, their values, the means of their next states, their rewards."""
        return _improver(Template.of(self.greedy))(self.greedy.numbers, features, w, x, guess, h)


@dataclass(frozen=True, eq=False, repr=False)
class Regression(Compact):
    """Minimise mean (regressors w - v)^2 + ridge |w of the waves|^2; polynomials are free.

    Attributes
    ----------
    regressors
        Features of the sampled states, (n, p); every fifth row is held out.
    polynomials
        How many columns, the first ones, are polynomials.
    gram
        regressors^T regressors over the rows that are not held out, (p, p).
    """

    regressors: np.ndarray
    polynomials: int
    ridge: float
    gram: np.ndarray

    @classmethod
    def of(cls, regressors: np.ndarray, polynomials: int, ridge: float) -> Regression:
        """Prepare a regression on features (n, p)."""
        used = regressors[_used(len(regressors))]
        return cls(regressors, polynomials, ridge, used.T @ used)

    def part(self, width: int, ridge: float) -> Regression:
        """Return the regression on the first columns alone."""
        regressors, gram = self.regressors[:, :width], self.gram[:width, :width]
        return Regression(regressors, self.polynomials, ridge, gram)

    def fit(self, v: np.ndarray) -> np.ndarray:
        """Return weights (p,) for values (n,), or (p, m) for (n, m)."""
        import scipy.linalg

        used, centre = _used(len(v)), v.mean(axis=0)
        w = scipy.linalg.cho_solve(self._factor, self.regressors[used].T @ (v - centre)[used])
        w[0] += centre
        return np.asarray(w)

    def residual(self, w: np.ndarray, v: np.ndarray) -> float:
        """Return the root mean square residual of v on held-out states, over v's spread there."""
        held_out = ~_used(len(v))
        error = v[held_out] - self.regressors[held_out] @ w
        return float(np.sqrt(np.mean(error**2)) / max(float(v[held_out].std()), 1e-300))

    @cached_property
    def _factor(self) -> Any:
        import scipy.linalg

        n = int(_used(len(self.regressors)).sum())
        penalty = np.full(self.regressors.shape[1], self.ridge * n)
        penalty[: self.polynomials] = 1e-9 * n  # keeps the matrix definite
        return scipy.linalg.cho_factor(self.gram + np.diag(penalty))


@dataclass(frozen=True)
class Choice:
    """Settings of the features, and the held-out residual by which they were chosen."""

    features: int
    bandwidth: float
    ridge: float
    quadratic: bool = True
    residual: float = np.nan


@dataclass(frozen=True, eq=False, repr=False)
class HeldOutChoice(Compact):
    """Compare candidates by the residual of values (n,) on the held-out rows of states (n, d_x).

    Attributes
    ----------
    columns
        Evaluates features at the states, (n, p).
    counts, bandwidths, ridges
        The candidates; just one of each if the user has set it.
    """

    x: np.ndarray
    v: np.ndarray
    noise_cov: np.ndarray
    columns: Callable[[np.ndarray, Spectral], np.ndarray]
    counts: tuple[int, ...] = COUNTS
    bandwidths: tuple[float, ...] = BANDWIDTHS
    ridges: tuple[float, ...] = RIDGES

    def winner(self, seeds: int, rng: np.random.Generator) -> tuple[Spectral, Choice]:
        """Choose bandwidth, penalty and number first, then among draws of the frequencies."""
        tried = [c for width in self.bandwidths for c in self._draw(width, True, rng)]
        best = _least(tried)[1]
        tried += self._draw(best.bandwidth, False, rng)
        best = _least(tried)[1]
        for _ in range(seeds - 1):
            tried += self._draw(best.bandwidth, best.quadratic, rng)
        return _least(tried)

    def _draw(
        self, bandwidth: float, quadratic: bool, rng: np.random.Generator
    ) -> list[tuple[Spectral, Choice]]:
        """Draw frequencies once and try every number of them with every penalty."""
        most = max(self.counts)
        drawn = Spectral.draw(self.x, self.noise_cov, most, bandwidth, rng, quadratic=quadratic)
        full_regression = Regression.of(self.columns(self.x, drawn), drawn.polynomials, 0.0)
        candidates = []
        for count in self.counts:
            features = drawn.first(count)
            for ridge in self.ridges:
                part = full_regression.part(features.width, ridge)
                residual = part.residual(part.fit(self.v), self.v)
                candidates.append((features, Choice(count, bandwidth, ridge, quadratic, residual)))
        return candidates


def first_states(greedy: Greedy, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return states (count, d_x): half of the log, half one random action away from them."""
    support = greedy.problem.support
    recorded = support[rng.permutation(len(support))[: (count + 1) // 2]]
    x = support[rng.integers(len(support), size=count - len(recorded))]
    a = greedy.problem.actions.sample(len(x), rng)
    return _shuffled([recorded, _next(greedy, x, a, rng)], count, rng)


def reached_states(
    backward: Backward,
    x: np.ndarray,
    features: Spectral,
    plan: IterationResult,
    rng: np.random.Generator,
) -> np.ndarray:
    """Mix states with those that the plan reaches from them in the model, (n, d_x)."""
    parts, now, a = [x], x, plan.actions
    for step in range(1, REACHED_STEPS + 1):
        now = _next(backward.greedy, now, a, rng)
        parts.append(now)
        if step < REACHED_STEPS:
            a, _ = backward.act(now, features, plan.weights[-1], step)
    return _shuffled(parts, len(x), rng)


def model_returns(
    greedy: Greedy, features: Spectral, weights: np.ndarray, guide: np.ndarray
) -> np.ndarray:
    """Return the return in the model of being greedy for each row of weights (T, p), (T,).

    A mean over a few short episodes from states of the log, with the same noise for all.
    """
    problem = greedy.problem
    rng = np.random.default_rng(greedy.seed)
    starts = problem.support[rng.integers(len(problem.support), size=EPISODES)]
    steps = min(problem.horizon, STEPS)
    noise = rng.normal(size=(steps, *starts.shape))
    run, numbers = _runner(Template.of(greedy)), greedy.numbers
    return np.array([run(numbers, features, w, guide, starts, noise) for w in weights])


@lru_cache(maxsize=32)
def _improver(template: Template) -> Any:
    def improve(numbers: Any, features: Spectral, w: Any, x: Any, guess: Any, h: Any) -> Any:
        greedy = template.example.with_numbers(numbers)
        a, v = greedy.best(x, h, features, w, guess, NEWTON_STEPS)
        return a, v, greedy.mean(x, a), greedy.reward(x, a, h)

    return jax.jit(improve)


_expected = jax.jit(Spectral.expected)
_of_states = jax.jit(Spectral.of_states)


def _used(n: int) -> np.ndarray:
    """Return whether each of n states is not held out."""
    return np.asarray(np.arange(n) % HELD_OUT != HELD_OUT - 1)


def _least(tried: list[tuple[Spectral, Choice]]) -> tuple[Spectral, Choice]:
    """Return the smallest set of features whose residual is close to the smallest."""
    enough = WORTH * min(choice.residual for _, choice in tried)
    good = [t for t in tried if t[1].residual <= enough]
    return min(good, key=lambda t: (t[1].features, t[1].residual))


@lru_cache(maxsize=32)
def _runner(template: Template) -> Any:
    def run(numbers: Any, features: Spectral, w: Array, guide: Array, x: Array, e: Array) -> Array:
        greedy = template.example.with_numbers(numbers)

        def act(x: Array, h: Array, memory: Any) -> Any:
            guess = features.of_states(x) @ guide
            return greedy.best(x, h, features, w, guess, NEWTON_STEPS)[0], memory

        def step(x: Array, a: Array, h: Array, memory: Any) -> Any:
            return greedy.problem.step(x, a, e[h], h)

        discount = greedy.problem.discount
        return jnp.mean(run_episodes(act, step, x, (), len(e), discount=discount)[1])

    return jax.jit(run)


def _next(greedy: Greedy, x: np.ndarray, a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    model = greedy.problem.model
    return np.asarray(model.next_state(model.mean(x, a), rng.normal(size=x.shape)))


def _shuffled(parts: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    x = np.concatenate(parts)
    return x[rng.permutation(len(x))[:count]]
