"""The best action for a value function that is linear in spectral features."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.planning.newton import maximise
from ivvi.planning.problem import Problem
from ivvi.planning.quadrature import uses_next_state
from ivvi.planning.spede.features import Spectral

NOISE_PAIRS = 16
"""Antithetic pairs of draws over which a reward of (x, a, x') is averaged."""
ROWS_AT_ONCE = 1 << 14
BELIEVED = (0.01, 0.99)
"""Quantiles of the log's states between which a nonlinear model is used."""


@dataclass(frozen=True, eq=False, repr=False)
class Greedy(Compact):
    """argmax_a Q(x, a), Q(x, a) = E r(x, a, x') + discount w . E features(x').

    A finite set is searched completely. Over a box, projected Newton steps start at the best of
    `starts` points, one of them a guess; in a product this is done for every choice.

    Attributes
    ----------
    seed
        Seed of the points and of the noise in rewards of (x, a, x').
    """

    problem: Problem
    starts: int
    seed: int

    @property
    def shape(self) -> Hashable:
        """Everything but numbers: programs compiled for one serve all of the same shape."""
        return self.problem.shape, self.starts, self.seed

    @property
    def numbers(self) -> Any:
        """The numbers of the model."""
        return self.problem.numbers

    def with_numbers(self, numbers: Any) -> Greedy:
        """Return a copy with other numbers (tracers of JAX too)."""
        return replace(self, problem=self.problem.with_numbers(numbers))

    def mean(self, x: Array, a: Array) -> Array:
        """Return E[x' | x, do(a)], (n, d_x)."""
        return self.problem.model.mean(x, a)

    def q(self, x: Array, a: Array, h: Array, features: Spectral, w: Array) -> Array:
        """Return the values (n,) of actions (n, d_a) in states (n, d_x) at step h."""
        ahead = features.expected(self.mean(x, a), w)
        return self.reward(x, a, h) + self.problem.discount * ahead

    def reward(self, x: Array, a: Array, h: Array) -> Array:
        """Return E r(x, a, x') over the noise, (n,); only a user's function can depend on x'."""
        problem, m = self.problem, self.mean(x, a)
        if not uses_next_state(problem):
            return problem.gain(x, a, m, h)
        noise = jnp.broadcast_to(self._draws[:, None], (len(self._draws), *m.shape))
        x_next = problem.model.next_state(m, noise)
        return jnp.mean(problem.gain(x, a, x_next, h), axis=0)

    def best(
        self, x: Array, h: Array, features: Spectral, w: Array, guess: Array, steps: int
    ) -> tuple[Array, Array]:
        """Return the best actions (n, d_a) and their values (n,), from a guess (n, d_a)."""
        actions = self.problem.actions
        if actions.is_finite:
            return self._best_choice(x, h, features, w)
        near = guess[:, list(actions.continuous)]

        def with_choice(choice: Array) -> tuple[Array, Array]:
            def q(box: Array) -> Array:
                return self.q(x, actions.join(box, choice), h, features, w)

            start = self._screened(q, near)
            bend = lambda box: self.hessian(x, box[:, 0], choice, h, features, w)  # noqa: E731
            action, value = maximise(
                lambda box: q(box[:, 0]),
                start[:, None],
                actions.low,
                actions.high,
                steps=steps,
                hessian=bend,
            )
            return action[:, 0], value

        choices = jnp.asarray(actions.choices)
        boxes, values = jax.lax.map(with_choice, choices)
        pick = jnp.argmax(values, axis=0)
        rows = jnp.arange(len(x))
        return actions.join(boxes[pick, rows], choices[pick]), values[pick, rows]

    def _best_choice(self, x: Array, h: Array, features: Spectral, w: Array) -> tuple[Array, Array]:
        """Search a finite set completely, in blocks of choices.

        Where the mean is f(x) + g(a), the expectations of all choices are a matrix product.
        """
        choices = jnp.asarray(self.problem.actions.choices)
        additive = self.problem.additive
        value = self.reward if additive else partial(self.q, features=features, w=w)

        def everywhere(choice: Array) -> Array:
            return jnp.broadcast_to(choice, (len(x), len(choice)))

        at_once = max(1, min(len(choices), ROWS_AT_ONCE // len(x)))
        values = jax.lax.map(lambda a: value(x, everywhere(a), h), choices, batch_size=at_once)
        if additive:
            of_choices = self.mean(jnp.zeros((len(choices), x.shape[1])), choices)
            means, shifts = self.mean(x, everywhere(choices[0])), of_choices - of_choices[0]
            values += self.problem.discount * features.expected_of_sums(means, shifts, w).T
        pick = jnp.argmax(values, axis=0)
        return choices[pick], values[pick, jnp.arange(len(x))]

    def _screened(self, q: Callable[[Array], Array], near: Array) -> Array:
        """Return the best of the guess and points spread over the box, (n, d_c)."""
        low, high = self.problem.actions.low, self.problem.actions.high
        rng = np.random.default_rng(self.seed)
        spread = jnp.asarray(rng.uniform(low, high, (self.starts - 1, len(low))))
        points = jnp.concatenate(
            [near[None], jnp.broadcast_to(spread[:, None], (self.starts - 1, *near.shape))]
        )
        best = jnp.argmax(jax.lax.map(q, points), axis=0)
        return points[best, jnp.arange(len(near))]

    def hessian(
        self, x: Array, box: Array, choice: Array, h: Array, features: Spectral, w: Array
    ) -> Array:
        """Return the second derivatives of Q in the continuous coordinates, (n, d_c, d_c).

        With m = W phi(x, a) and g(m) the expected value of the features, it is the sum of g'' along
        the Jacobian of m and the second derivatives of r + discount g' . m with g' held constant.
        """
        join, discount = self.problem.actions.join, self.problem.discount

        def mean(u: Array) -> Array:
            return self.mean(x, join(u, choice))

        m = mean(box)
        slope = jax.grad(lambda m: jnp.sum(features.expected(m, w)))(m)

        def rest(u: Array) -> Array:
            ahead = jnp.sum(slope * mean(u), axis=1)
            return jnp.sum(self.reward(x, join(u, choice), h) + discount * ahead)

        def along(e: Array) -> tuple[Array, Array]:
            push = (jnp.broadcast_to(e, box.shape),)
            return jax.jvp(mean, (box,), push)[1], jax.jvp(jax.grad(rest), (box,), push)[1]

        moved, bend = jax.vmap(along)(jnp.eye(box.shape[1]))  # (d_c, n, d_x), (d_c, n, d_c)
        curved = jnp.einsum(
            "ink,nkl,jnl->nij", moved, features.hessian(m, w), moved, optimize="optimal"
        )
        return discount * curved + jnp.moveaxis(bend, 0, 1)

    @cached_property
    def _draws(self) -> np.ndarray:
        """Return antithetic draws of standard normal noise, (2 NOISE_PAIRS, d_x)."""
        shape = NOISE_PAIRS, len(self.problem.model.state)
        drawn = np.random.default_rng(self.seed).normal(size=shape)
        return np.concatenate([drawn, -drawn])


def believed(problem: Problem) -> Problem:
    """Return the problem in a model that is used only between the quantiles `BELIEVED`.

    Values fitted to all sampled states depend most on the outermost ones, where a nonlinear model
    has the fewest rows; its own `reach` goes a little further.
    """
    model = problem.model
    if not (model.is_limited and len(model.states)):
        return problem
    samples = (model.states, model.starts) if len(model.starts) else (model.states,)
    ends = np.array([np.quantile(rows, BELIEVED, axis=0) for rows in samples])
    W, noise_cov, knots, reach, fade = model.numbers
    low = np.where(np.isfinite(reach[0]), ends[:, 0].min(axis=0), reach[0])
    high = np.where(np.isfinite(reach[1]), ends[:, 1].max(axis=0), reach[1])
    return problem.with_numbers((W, noise_cov, knots, np.array([low, high]), fade))
