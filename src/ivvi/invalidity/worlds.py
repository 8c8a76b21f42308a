"""What policies earn in many worlds at once that differ in W alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.blocks import Array
from ivvi.planners.problem import Problem
from ivvi.rewards import Learned

FEW = 8
ROWS_AT_ONCE = 1 << 12
"""Episodes, of all worlds together, that run side by side."""


@dataclass(frozen=True, eq=False)
class Worlds:
    """x' = W phi(x, a) + noise for many W, all with the same starts and standard normal draws.

    Attributes
    ----------
    problem
        Features, reward, horizon, discount and end.
    starts
        First states, (episodes, d_x).
    seed
        Seed of the noise.
    """

    problem: Problem
    starts: np.ndarray
    seed: int = 0

    def returns(self, policy: Any, W: np.ndarray, noise_cov: np.ndarray) -> np.ndarray:
        """Return the mean discounted return of a policy in each world, (m,).

        Parameters
        ----------
        policy
            One of ours, or any function of states (n, d_x).
        W, noise_cov
            (m, d_y, d_phi) and (m, d_y, d_y).
        """
        d, at_once = self.problem.model.d_next, max(FEW, ROWS_AT_ONCE // len(self.starts))
        factor = _roots(noise_cov[:, :d, :d])
        found = []
        for first in range(0, len(W), at_once):
            part = slice(first, first + at_once)
            worlds = len(W[part])
            found.append(self._some(policy, *_padded(W[part], factor[part], at_once))[:worlds])
        return np.concatenate(found)

    def _some(self, policy: Any, W: np.ndarray, factor: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            if hasattr(policy, "act") and hasattr(policy, "begin"):
                return np.asarray(self._compiled(policy)(W, factor))
            return self._called(policy, W, factor)

    @cached_property
    def _compiled(self) -> Any:
        return lru_cache(maxsize=16)(self._compile)

    def _compile(self, policy: Any) -> Any:
        episodes, horizon = len(self.starts), self.problem.horizon

        def run(W: Array, factor: Array) -> Array:
            m = len(W)
            repeat = lambda leaf: jnp.tile(leaf, (m,) + (1,) * (leaf.ndim - 1))  # noqa: E731

            def advance(carry: Any, now: Any) -> Any:
                x, alive, total, memory = carry
                h, draws = now
                a, memory = policy.act(x.reshape(m * episodes, -1), h, memory)
                a = a.reshape(m, episodes, -1)
                return (*self._step(x, a, alive, total, h, draws, W, factor), memory), None

            begun = (*self._begin(m), jax.tree.map(repeat, policy.begin(episodes)))
            steps = (jnp.arange(horizon), jnp.asarray(self._draws))
            (_, _, total, _), _ = jax.lax.scan(advance, begun, steps)
            return total.mean(axis=1)

        return jax.jit(run)

    def _called(self, policy: Any, W: np.ndarray, factor: np.ndarray) -> np.ndarray:
        carry = self._begin(len(W))
        for h in range(self.problem.horizon):
            flat = np.asarray(carry[0]).reshape(-1, self.starts.shape[1])
            a = np.asarray(policy(flat), dtype=np.float64)
            a = np.broadcast_to(a, (len(flat), len(self.problem.model.action)))
            a = a.reshape(len(W), len(self.starts), -1)
            carry = self._jitted_step(carry[0], a, *carry[1:], h, self._draws[h], W, factor)
        return np.asarray(carry[2].mean(axis=1))

    def _begin(self, m: int) -> tuple[Array, Array, Array]:
        shape = (m, len(self.starts))
        x = jnp.broadcast_to(jnp.asarray(self.starts), (m, *self.starts.shape))
        return x, jnp.ones(shape), jnp.zeros(shape)

    def _step(
        self,
        x: Array,
        a: Array,
        alive: Array,
        total: Array,
        h: Array,
        draws: Array,
        W: Array,
        factor: Array,
    ) -> tuple[Array, Array, Array]:
        """One step of all worlds: x (m, episodes, d_x) to x', who is alive, what was earned."""
        problem, model = self.problem, self.problem.model
        y = jnp.einsum("mep,myp->mey", model.phi(x, a), W)
        x_next = y[..., : model.d_next] + jnp.einsum("mxk,ek->mex", factor, draws)
        learned = isinstance(problem.reward, Learned)
        r = y[..., -1] if learned else problem.reward(x, a, x_next, h)
        total = total + problem.discount**h * alive * r
        going = alive
        if problem.terminal is not None:
            going = alive * (1.0 - problem.terminal(x_next))
        return jnp.where(alive[..., None] > 0, x_next, x), going, total

    @cached_property
    def _jitted_step(self) -> Any:
        return jax.jit(self._step)

    @cached_property
    def _draws(self) -> np.ndarray:
        """Standard normal draws, (horizon, episodes, d_next)."""
        shape = (self.problem.horizon, len(self.starts), self.problem.model.d_next)
        return np.random.default_rng(self.seed).normal(size=shape)


def constant(action: np.ndarray) -> Any:
    """Return the policy that always does the same, (d_a,)."""
    return lambda x: np.broadcast_to(action, (len(x), len(action)))


def _roots(covariance: np.ndarray) -> np.ndarray:
    """Symmetric square roots of covariances (m, d, d)."""
    values, vectors = np.linalg.eigh(covariance)
    scaled = vectors * np.sqrt(np.clip(values, 0, None))[:, None, :]
    return np.asarray(scaled @ np.swapaxes(vectors, -1, -2))


def _padded(W: np.ndarray, factor: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Repeat the last world up to a few or to `most`, so that two shapes are compiled."""
    rows = np.minimum(np.arange(FEW if len(W) <= FEW else most), len(W) - 1)
    return W[rows], factor[rows]
