"""Where a plan is fitted, and what it earns: states reached in the model, and returns there."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.features.blocks import Array
from ivvi.planning.problem import Template
from ivvi.planning.spede.features import Spectral
from ivvi.planning.spede.greedy import Greedy
from ivvi.planning.spede.iteration import NEWTON_STEPS, Backward, IterationResult

REACHED_STEPS = 3
EPISODES, STEPS = 32, 50


def first_states(greedy: Greedy, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return states of the log, and one random action away from them, (count, d_x)."""
    support = greedy.problem.support
    own = support[rng.permutation(len(support))[: (count + 1) // 2]]
    x = support[rng.integers(len(support), size=count - len(own))]
    a = greedy.problem.actions.sample(len(x), rng)
    return _shuffled([own, _next(greedy, x, a, rng)], count, rng)


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
    """Return what being greedy for each row of weights (T, p) earns in the model, (T,).

    The mean of a few short episodes from states of the log, in the same noise for all.
    """
    problem = greedy.problem
    rng = np.random.default_rng(greedy.seed)
    starts = problem.support[rng.integers(len(problem.support), size=EPISODES)]
    steps = min(problem.horizon, STEPS)
    noise = rng.normal(size=(steps, *starts.shape))
    run, numbers = _runner(Template.of(greedy)), greedy.numbers
    return np.array([run(numbers, features, w, guide, starts, noise) for w in weights])


@lru_cache(maxsize=32)
def _runner(template: Template) -> Any:
    def run(numbers: Any, features: Spectral, w: Array, guide: Array, x: Array, e: Array) -> Array:
        greedy = template.example.with_numbers(numbers)
        problem = greedy.problem

        def step(carry: tuple[Array, Array], given: tuple[Array, Array]) -> tuple[object, Array]:
            (x, alive), (h, e) = carry, given
            a, _ = greedy.best(x, h, features, w, features.of_states(x) @ guide, NEWTON_STEPS)
            x_next = problem.model.next_state(greedy.mean(x, a), e)
            gained = problem.discount**h * alive * problem.gain(x, a, x_next, h)
            alive = alive * (1.0 - problem.ended(x, a, x_next))
            return (x_next, alive), gained

        begun = (x, jnp.ones(len(x)))
        return jnp.sum(jax.lax.scan(step, begun, (jnp.arange(len(e)), e))[1]) / len(x)

    return jax.jit(run)


def _next(greedy: Greedy, x: np.ndarray, a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    model = greedy.problem.model
    return np.asarray(model.next_state(model.mean(x, a), rng.normal(size=x.shape)))


def _shuffled(parts: list[np.ndarray], count: int, rng: np.random.Generator) -> np.ndarray:
    x = np.concatenate(parts)
    return x[rng.permutation(len(x))[:count]]
