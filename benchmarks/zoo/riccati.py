"""Linear dynamics, quadratic costs: values without constraints, by Riccati's recursion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zoo.world import World


@dataclass(frozen=True, eq=False)
class LinearQuadratic:
    """x' = c + P x + Q a + e, r = -(x - target)' D (x - target) - a' R a, and values.

    `values[h]` are (K, k, c) of V_h(x) = x' K x + 2 k' x + c, of all actions.
    """

    c: np.ndarray
    P: np.ndarray
    Q: np.ndarray
    D: np.ndarray
    target: np.ndarray
    R: np.ndarray
    values: tuple[tuple[np.ndarray, np.ndarray, float], ...]
    gains: tuple[tuple[np.ndarray, np.ndarray], ...]


def affine(world: World) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return c, P, Q of the mean of a linear world."""
    x, a = np.eye(world.d_x), np.eye(world.d_a)
    none = np.zeros((world.d_x, world.d_a)), np.zeros((world.d_a, world.d_x))
    c = world.mean(np.zeros((1, world.d_x)), np.zeros((1, world.d_a)))[0]
    return c, (world.mean(x, none[0]) - c).T, (world.mean(none[1], a) - c).T


def riccati(world: World) -> LinearQuadratic:
    """Return the unconstrained values of a linear world with a `Quadratic` reward."""
    c, P, Q = affine(world)
    wide = np.ones(world.d_x)
    D = np.diag(wide * world.reward.weight)
    R = np.diag(np.ones(world.d_a) * world.reward.action_weight)
    target, noise = wide * world.reward.target, np.diag(np.square(world.spread))
    K, k, level = np.zeros_like(D), np.zeros(world.d_x), 0.0
    values, gains = [(K, k, level)], []
    for _ in range(world.horizon):
        g = world.discount
        curve = R - g * Q.T @ K @ Q + 1e-12 * np.eye(world.d_a)
        L = np.linalg.solve(curve, g * Q.T @ K @ P)
        one = np.linalg.solve(curve, g * Q.T @ (K @ c + k))
        A, b = P + Q @ L, c + Q @ one
        level = (
            g * (b @ K @ b + 2 * k @ b + level + np.trace(K @ noise))
            - target @ D @ target
            - one @ R @ one
        )
        k = g * A.T @ (K @ b + k) + D @ target - L.T @ R @ one
        K = g * A.T @ K @ A - D - L.T @ R @ L
        values.append((K, k, level))
        gains.append((L, one))
    return LinearQuadratic(c, P, Q, D, target, R, tuple(reversed(values)), tuple(reversed(gains)))


def quadratic(x: np.ndarray, value: tuple[np.ndarray, np.ndarray, float]) -> np.ndarray:
    K, k, level = value
    return np.einsum("...i,ij,...j->...", x, K, x) + 2 * x @ k + level


def riccati_policy(world: World, lq: LinearQuadratic) -> tuple[Callable, Callable]:
    """Return the unconstrained policy, clipped to the box, and its value at first states."""
    low, high = world.actions.low, world.actions.high

    def policy(x: np.ndarray, h: int) -> np.ndarray:
        L, one = lq.gains[h]
        return np.clip(x @ L.T + one, low, high)

    return policy, lambda x: quadratic(x, lq.values[0])
