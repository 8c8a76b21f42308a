"""The paper's two synthetic experiments: linear and nonlinear dynamics, settings I to VI."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError
from ivvi.rewards import Quadratic
from ivvi.simulators.world import World, gaussian, toeplitz, tridiagonal

SETTINGS = ("I", "II", "III", "IV", "V", "VI")
LINEAR_Z = {"I": 0.7, "II": 1.0, "III": 1.5, "IV": 0.7, "V": 1.0, "VI": 1.5}
NONLINEAR_Z = {"I": 0.5, "II": 0.9, "III": 1.5, "IV": 0.5, "V": 0.9, "VI": 1.5}
TOEPLITZ = {"IV": (-0.5, -0.3), "V": (0.1, 0.0), "VI": (0.5, 0.3)}
"""(rho of Sigma_e, rho of Sigma_a) in the robustness settings."""
REWARD_WEIGHT = 0.05


def linear_world(dim: int = 5, setting: str = "I") -> World:
    """Return x' = F_x x + F_a a + e, a = clip(z + e + noise) in [-1, 1]^k (section 5.1).

    Sigma_z = 0.7, 1, 1.5 times I; Sigma_e = Sigma_a tridiagonal in I-III, Toeplitz in
    IV-VI; x_0 is all tens; 80 episodes of 1000 steps. Policies are evaluated with the
    noise of settings I-III. W* = [0, F_x, F_a]; the paper writes P for F_x and -Q for F_a.
    """
    _check(dim, setting)
    F_x, F_a = tridiagonal(dim, 0.5, 0.2), -tridiagonal(dim, 0.5, 0.1)
    usual = tridiagonal(dim, 1.0, 0.3)
    rho = TOEPLITZ.get(setting)
    cov_e, cov_a = (toeplitz(dim, rho[0]), toeplitz(dim, rho[1])) if rho else (usual, usual)
    return World(
        name=f"linear k={dim} setting {setting}",
        d_x=dim,
        d_z=dim,
        actions=_unit_box(dim),
        transition=lambda x, a: jnp.asarray(F_x) @ x + jnp.asarray(F_a) @ a,
        reward=Quadratic((REWARD_WEIGHT,)),
        initial=lambda key: jnp.full(dim, 10.0),
        confounder=gaussian(cov_e),
        instrument=_independent(gaussian(LINEAR_Z[setting] * np.eye(dim))),
        behaviour=_clipped_behaviour(cov_a),
        noise=gaussian(usual),
        horizon=1000,
        episodes=80,
        W_star=np.hstack([np.zeros((dim, 1)), F_x, F_a]),
        label="synthetic, section 5.1 of the paper",
    )


def nonlinear_world(dim: int = 1, setting: str = "I") -> World:
    """Return x' = ln(|x - 1| + 1) - a / 2 + e, coordinate by coordinate (section 5.2).

    Sigma_z = 0.5, 0.9, 1.5 times I; Sigma_e = I and Sigma_a = I / 2 in I-III, Toeplitz in
    IV-VI; x_0 = 0; 80 episodes of 500 steps. Policies are evaluated with the noise of
    settings I-III.
    """
    _check(dim, setting)
    rho = TOEPLITZ.get(setting)
    identity = np.eye(dim)
    cov_e, cov_a = (
        (toeplitz(dim, rho[0]), toeplitz(dim, rho[1])) if rho else (identity, identity / 2)
    )
    return World(
        name=f"nonlinear k={dim} setting {setting}",
        d_x=dim,
        d_z=dim,
        actions=_unit_box(dim),
        transition=lambda x, a: jnp.log(jnp.abs(x - 1) + 1) - a / 2,
        reward=Quadratic((REWARD_WEIGHT,)),
        initial=lambda key: jnp.zeros(dim),
        confounder=gaussian(cov_e),
        instrument=_independent(gaussian(NONLINEAR_Z[setting] * identity)),
        behaviour=_clipped_behaviour(cov_a),
        noise=gaussian(identity),
        horizon=500,
        episodes=80,
        label="synthetic, section 5.2 of the paper",
    )


def _check(dim: int, setting: str) -> None:
    if dim < 1:
        raise InputError(f"the dimension is {dim}; expected at least 1")
    if setting not in SETTINGS:
        raise InputError(f"unknown setting {setting!r}; choose from {', '.join(SETTINGS)}")


def _unit_box(dim: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(-1.0, 1.0, (dim,), np.float64)


def _independent(draw: Callable[[Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """Return an instrument that depends on nothing, from a sampler."""
    return lambda key, x, history: draw(key)


def _clipped_behaviour(cov_a: np.ndarray) -> Callable[[Array, Array, Array, Array], Array]:
    """Return a ~ projection on [-1, 1]^k of N(z + e, cov_a)."""
    draw = gaussian(cov_a)

    def behaviour(key: Array, x: Array, z: Array, e: Array) -> Array:
        return jnp.clip(z + e + draw(key), -1.0, 1.0)

    return behaviour
