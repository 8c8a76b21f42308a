"""Expectations over the Gaussian noise of a model, as weighted sums over a few nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import jax
import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.result import Compact
from ivvi.errors import InputError, hint
from ivvi.planning.problem import Problem
from ivvi.rewards import SeenReward
from ivvi.rewards.user_functions import Function, arguments_used

INTEGRATIONS = ("auto", "gauss-hermite", "quasi", "antithetic")
PER_AXIS = {1: 128, 2: 21}
"""Default nodes of Gauss-Hermite on each axis of the noise; quasi Monte Carlo in more."""
DRAWN = 1024
MOST_NODES = 1 << 16
MOST_KEPT = 128
"""Nodes that are evaluated at every decision, for rewards that depend on x'."""
SAMPLE, REFERENCE = 256, 4096
"""States and actions at which fewer nodes are compared with `MOST_KEPT`."""
CLOSE = 0.003
"""Largest root mean square error of E r with fewer nodes, in standard deviations of E r."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class Noise(Compact):
    """E f(m + e) = sum_k weights_k f(m + offsets_k) for e ~ N(0, noise_cov).

    Attributes
    ----------
    offsets, weights
        (K, d_x) and (K,); the weights sum to 1.
    """

    offsets: np.ndarray
    weights: np.ndarray

    @classmethod
    def none(cls, d: int) -> Noise:
        """Return the law without noise: one node."""
        return cls(np.zeros((1, d)), np.ones(1))

    @classmethod
    def of(
        cls,
        covariance: np.ndarray,
        integration: str = "auto",
        nodes: int | None = None,
        seed: int = 0,
        *,
        smooth: bool = True,
    ) -> Noise:
        """Choose nodes for a covariance (d, d).

        Directions without noise get none: a model without noise has one node. The others
        are integrated by the tensor product of Gauss-Hermite rules (exact for polynomials
        of degree 2 nodes - 1 in each), by scrambled Sobol points, or by independent draws
        and their negatives. Gauss-Hermite is poor for values that are not `smooth` (they jump
        where an episode ends), because its nodes are far apart.
        """
        values, vectors = np.linalg.eigh(covariance)
        noisy = values > 1e-14 * max(float(values[-1]), 0.0)
        factor = vectors[:, noisy] * np.sqrt(values[noisy])
        rank = int(noisy.sum())
        if rank == 0:
            return cls.none(len(covariance))
        if integration == "auto":
            integration = "gauss-hermite" if smooth and rank in PER_AXIS else "quasi"
        if integration == "gauss-hermite":
            units, weights = _gauss_hermite(rank, nodes or PER_AXIS.get(rank, 5))
        else:
            units = (_sobol if integration == "quasi" else _antithetic)(rank, nodes or DRAWN, seed)
            weights = np.full(len(units), 1 / len(units))
        return cls(units @ factor.T, weights)

    def alive(self, x_next: np.ndarray, terminal: Any) -> np.ndarray:
        """Return the weights (n, K) of next states (n, K, d_x), zero where they end an episode."""
        weights = np.broadcast_to(self.weights, x_next.shape[:-1])
        return weights if terminal is None else weights * (1.0 - np.asarray(terminal(x_next)))

    def around(self, m: Array) -> tuple[Array, Array]:
        """Return next states (K, n, d_x) around means m (n, d_x), and their weights (K, n)."""
        xp = m.__array_namespace__()
        x_next = m + self.offsets[:, None]
        return x_next, xp.broadcast_to(self.weights[:, None], x_next.shape[:-1])


class Law(Protocol):
    """The distribution of the next state, given its mean."""

    def around(self, m: Array) -> tuple[Array, Array]:
        """Return next states (K, n, d_x) for means m (n, d_x), and their weights (K, n)."""
        ...


def mean_reward(problem: Problem, law: Law, x: Array, a: Array, m: Array, h: Array) -> Array:
    """Return E r(x, a, x', h), (n,), for states (n, d_x), actions (n, d_a), means m of x'."""
    if not uses_next_state(problem):
        return problem.gain(x, a, m, h)
    xp = m.__array_namespace__()
    x_next, weights = law.around(m)
    x, a = (xp.broadcast_to(v, (len(weights), *v.shape)) for v in (x, a))
    return (weights * problem.gain(x, a, x_next, h)).sum(axis=0)


def reward_noise(problem: Problem, seed: int = 0) -> Noise:
    """Return the fewest nodes that are accurate enough for E r: one where r ignores x'.

    The candidates are the mean alone, ever finer Gauss-Hermite rules, and finally `MOST_KEPT` Sobol
    points. The error over a sample of states and actions is compared with the spread of E r.
    """
    covariance = problem.model.next_cov
    mean_only = Noise.none(len(covariance))
    if not uses_next_state(problem):
        return mean_only
    rng = np.random.default_rng(seed)
    x = problem.support[rng.integers(len(problem.support), size=SAMPLE)]
    a = problem.actions.sample(SAMPLE, rng)

    def expected(noise: Noise) -> np.ndarray:
        m = jax.numpy.asarray(problem.model.mean(x, a))
        steps = {0, problem.horizon // 2, problem.horizon - 1}
        rewards = [mean_reward(problem, noise, x, a, m, h) for h in sorted(steps)]
        return np.concatenate([np.asarray(r) for r in rewards])

    with jax.enable_x64(True):
        exact = expected(Noise.of(covariance, "quasi", REFERENCE, seed))
        for noise in (mean_only, *_ever_finer(covariance)):
            if np.sqrt(np.mean((expected(noise) - exact) ** 2)) <= CLOSE * np.std(exact):
                return noise
    return Noise.of(covariance, "quasi", MOST_KEPT, seed)


def _ever_finer(covariance: np.ndarray) -> Iterator[Noise]:
    """Yield Gauss-Hermite rules of up to `MOST_KEPT` nodes."""
    rank = int(np.linalg.matrix_rank(covariance))
    for nodes in (2, 3, 5, 9, 17, 33, 65):
        if rank and nodes**rank <= MOST_KEPT:
            yield Noise.of(covariance, "gauss-hermite", nodes)


def uses_next_state(problem: Problem) -> bool:
    """Return whether the reward, or the payment for an end, depends on x'."""
    if problem.end_amounts and problem.terminal is not None:
        return True
    return "x_next" in _looked_at(problem)


def uses_step(problem: Problem) -> bool:
    """Return whether the reward depends on the number of the step."""
    return "step" in _looked_at(problem)


def _looked_at(problem: Problem) -> tuple[str, ...]:
    """Return which of x' and the step the reward depends on."""
    reward = problem.reward
    if not isinstance(reward, Function | SeenReward):
        return ()
    return _arguments_used(reward, len(problem.model.state), len(problem.model.action))


@lru_cache(maxsize=64)
def _arguments_used(reward: Function | SeenReward, d_x: int, d_a: int) -> tuple[str, ...]:
    """Return the arguments that the reward depends on, and not merely accepts."""
    with jax.enable_x64(True):
        state, action = (jax.ShapeDtypeStruct((2, d), np.float64) for d in (d_x, d_a))
        step = jax.ShapeDtypeStruct((), np.int64)
        used = arguments_used(reward, state, action, state, step)
    return tuple(("x", "a", "x_next", "step")[i] for i in used)


def check_integration(integration: str, nodes: int | None) -> None:
    """Raise an error for an unknown integration or an invalid number of nodes."""
    if integration not in INTEGRATIONS:
        suggestion = hint(integration, INTEGRATIONS)
        raise InputError(f"unknown integration {integration!r}{suggestion}")
    if nodes is not None and nodes < 1:
        raise InputError(f"nodes is {nodes}; expected at least 1")


def _gauss_hermite(rank: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    from scipy.special import roots_hermitenorm

    if float(nodes) ** rank > MOST_NODES:
        raise InputError(
            f"Gauss-Hermite with {nodes} nodes on each of {rank} axes of noise is more than "
            f"{MOST_NODES} in all; use fewer, or integration='quasi'"
        )
    points, weights = roots_hermitenorm(nodes)
    units = np.array(list(itertools.product(points, repeat=rank)))
    products = np.prod(list(itertools.product(weights / weights.sum(), repeat=rank)), axis=1)
    return units, products


def _sobol(rank: int, nodes: int, seed: int) -> np.ndarray:
    """Return scrambled Sobol points, mapped to the normal; the next power of two of them."""
    from scipy.special import ndtri
    from scipy.stats import qmc

    power = max(int(np.ceil(np.log2(nodes))), 0)
    points = qmc.Sobol(rank, rng=np.random.default_rng(seed)).random_base2(power)
    return np.asarray(ndtri(np.clip(points, 1e-15, 1 - 1e-15)))


def _antithetic(rank: int, nodes: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=((nodes + 1) // 2, rank))
    return np.concatenate([drawn, -drawn])
