"""What rules earn in the model they were planned in, all under the same noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.dynamics.next_state import NoiseLaw, next_state
from ivvi.dynamics.rollout import Decision, run_episodes
from ivvi.features.blocks import Array
from ivvi.planning.problem import Problem, Rule, Template

FAR = 1e12
"""States are held within this: a plan that explodes is very bad, not undefined."""
EPISODES, FEWEST, STEPS = 96, 24, 20_000
"""Episodes of a trial: fewer where the horizon is long."""


@dataclass(frozen=True, eq=False)
class Trials:
    """Episodes in the model from the log's first states.

    Attributes
    ----------
    problem
        What is planned for.
    starts
        First states, (n, d_x).
    noise
        Standard normal draws of every episode and step, (n, H, d_x).
    """

    problem: Problem
    starts: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, problem: Problem, seed: int, episodes: int | None = None) -> Trials:
        """Draw first states of the log and the noise."""
        n = episodes or int(np.clip(STEPS // problem.horizon, FEWEST, EPISODES))
        rng = np.random.default_rng(seed)
        first = problem.starts
        starts = first[rng.integers(len(first), size=n)]
        return cls(problem, starts, rng.normal(size=(n, problem.horizon, starts.shape[1])))

    def returns(self, rule: Rule) -> np.ndarray:
        """Return what a rule earns in each episode, discounted, (n,)."""
        return self.paths(rule)[0]

    def paths(self, rule: Rule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return returns (n,), states (H, n, d_x) and actions (H, n, d_a) of a rule."""
        with jax.enable_x64(True):
            decision = Decision.of(rule)
            run = _compiled(Template.of(self.problem, self.problem.horizon), decision)
            numbers, law = self.problem.numbers, self.problem.model.noise_law
            total, (x, a) = run(numbers, law, decision.numbers, self.starts, self.noise)
            return np.asarray(total), np.asarray(x), np.asarray(a)


@lru_cache(maxsize=64)
def _compiled(template: Template, decision: Decision) -> Callable[..., Any]:
    """Compile whole episodes; what differs between problems of one shape is an argument."""

    def run(numbers: Any, law: NoiseLaw, given: Any, starts: Array, noise: Array) -> Any:
        problem = template.example.with_numbers(numbers)

        def step(x: Array, a: Array, h: Array, memory: Any) -> Any:
            m = jnp.clip(problem.model.mean(x, a), -FAR, FAR)
            x_next = next_state(m, noise[:, h], law, problem.model.categories)
            return x_next, problem.gain(x, a, x_next, h), problem.ended(x, a, x_next)

        _, total, (path, _) = run_episodes(
            lambda x, h, memory: decision.decide(given, x, h, memory),
            step,
            starts,
            decision.begin(len(starts)),
            problem.horizon,
            discount=problem.discount,
            keep=True,
        )
        return total, path

    return jax.jit(run)  # type: ignore[no-any-return]
