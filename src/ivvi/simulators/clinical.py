"""Simulators in the shape of the paper's motivating examples, for tests and tutorials.

The numbers are made up; they are not based on any patient's data.
"""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError
from ivvi.rewards import Function, Quadratic
from ivvi.simulators.world import World, gaussian

LABEL = "synthetic, made up for tests and tutorials"
NICU_SETTINGS = ("I", "II")
NICU_P = np.array([[0.3, 0.5], [0.2, 0.7]])
NICU_Q = np.array([[-0.8], [0.0]])
NICU_COV = np.array([[1.0, 0.3], [0.3, 0.5]])
FRAILTY = np.array([[0.6, 0.3], [0.3, 0.4]])
CARE_COST = 0.3
SEPSIS_P = np.array(
    [[0.7, 0.1, -0.1, 0.1], [0.2, 0.6, 0.0, 0.1], [0.0, 0.0, 0.8, 0.1], [0.2, 0.2, 0.1, 0.6]]
)
SEPSIS_Q = np.array([[-0.9, -1.5], [-0.6, 0.3], [1.2, 0.0], [0.0, -0.3]])
SEPSIS_START = np.array([2.0, 1.5, 0.0, 2.0])


def nicu_world(setting: str = "I") -> World:
    """Return a mother's deliveries: at a near hospital or one with intensive care (Example 1.1).

    An episode is a mother and a step is a delivery; she has two. The state is how badly the last
    delivery went (x0) and her recorded risk (x1). The action is to deliver where there is a
    high-level neonatal intensive care unit (1) or not (0). The instrument is how much further away
    that is, in units of ten minutes (she moves house in between). How frail the child looks is not
    recorded, and moves both action and outcome. In setting II a part of it is the mother's and
    lasts.

        x0' = 0.3 x0 + 0.5 x1 - 0.8 a + e0      x1' = 0.2 x0 + 0.7 x1 + e1
    """
    if setting not in NICU_SETTINGS:
        raise InputError(f"setting {setting!r} of nicu is unknown; expected I or II")

    def behaviour(key: Array, x: Array, z: Array, e: Array) -> Array:
        leaning = 0.3 + 0.6 * x[1:] - 0.8 * (z - 1.5) + 0.9 * e[:1]
        return jnp.where(leaning + jax.random.normal(key, (1,), jnp.float64) > 0, 1.0, 0.0)

    return World(
        name=f"nicu setting {setting}",
        d_x=2,
        d_z=1,
        actions=gymnasium.spaces.MultiBinary(1),
        transition=lambda x, a: jnp.asarray(NICU_P) @ x + jnp.asarray(NICU_Q) @ a,
        reward=Function.of(delivery_reward),
        initial=lambda key: 0.5 + gaussian(np.eye(2))(key),
        confounder=gaussian(NICU_COV),
        instrument=lambda key, x, history: jax.random.gamma(key, 3.0, (1,), jnp.float64) / 2,
        behaviour=behaviour,
        lasting=gaussian(FRAILTY) if setting == "II" else None,
        horizon=2,
        episodes=20_000,
        W_star=np.hstack([np.zeros((2, 1)), NICU_P, NICU_Q]),
        label=LABEL,
    )


def delivery_reward(x: Array, a: Array, x_next: Array) -> Array:
    """Return -(how badly the delivery went)^2 minus the cost of intensive care."""
    return -(x_next[..., 0] ** 2) - CARE_COST * a[..., 0]


def sepsis_world() -> World:
    """Return two days of a patient with sepsis, in blocks of four hours (Example 1.2).

    The state is the deficit of blood pressure (x0), lactate (x1), fluid balance (x2) and organ
    failure (x3), standardised. The actions are doses of fluids (a0) and of vasopressors (a1),
    as shares of the largest. The instruments are the physician's preference for each (z0, z1), the
    same for the whole stay. What the physician sees at the bedside is not recorded.
    """
    draw = gaussian(0.03 * np.eye(2))
    lean = np.array([[0.1, 0.07, -0.1, 0.0], [0.13, 0.0, 0.0, 0.07]])

    def behaviour(key: Array, x: Array, z: Array, e: Array) -> Array:
        bedside = 0.17 * jnp.stack([e[0] + e[1], e[0] + e[3]])
        return jnp.clip(0.33 + z + jnp.asarray(lean) @ x + bedside + draw(key), 0.0, 1.0)

    likings = gaussian(0.06 * np.eye(2))
    return World(
        name="sepsis",
        d_x=4,
        d_z=2,
        actions=gymnasium.spaces.Box(0.0, 1.0, (2,), np.float64),
        transition=lambda x, a: jnp.asarray(SEPSIS_P) @ x + jnp.asarray(SEPSIS_Q) @ a,
        reward=Quadratic((1.0, 0.5, 0.2, 1.0), (0.0,), (0.5, 1.0)),
        initial=lambda key: jnp.asarray(SEPSIS_START) + gaussian(0.5 * np.eye(4))(key),
        confounder=gaussian(0.2 * np.eye(4)),
        instrument=lambda key, x, history: likings(key),
        behaviour=behaviour,
        scope="episode",
        horizon=12,
        episodes=2_000,
        W_star=np.hstack([np.zeros((4, 1)), SEPSIS_P, SEPSIS_Q]),
        label=LABEL,
    )
