"""The compiled core of descent-ascent: one step for each mini-batch.

W <- W - step_W (K psi) phi^T
K <- K + step_K (W phi - y - K psi) psi^T
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi._io.arrays import Floats
from ivvi.estimators.sgda.schedules import Schedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class JaxState:
    """What descent-ascent carries from step to step.

    Averages are kept as their distance from the last iterate, which the step at hand gives
    at little cost: with W_t the iterate before step t,

        sum of W_1 .. W_T = T W_T + drift,   drift = sum over t < T of t (W_t - W_{t+1}),

    and the same from iterate `tail` + 1 on with the weights max(t - tail, 0).
    """

    t: Any
    W: Any
    K: Any
    full_drift: Any
    tail_drift: Any
    tail_count: Any
    path: Any
    reached: Any

    @classmethod
    def begin(cls, W0: Floats, d_psi: int, n_points: int) -> JaxState:
        """Return the state before the first step."""
        zero, W = jnp.asarray(0), jnp.asarray(W0)
        path = jnp.zeros((n_points, *W0.shape))
        K = jnp.zeros((len(W0), d_psi))
        return cls(zero, W, K, jnp.zeros_like(W), jnp.zeros_like(W), zero, path, zero)

    @property
    def full_sum(self) -> Floats:
        """Sum of all iterates, the start left out."""
        return _sum(self.t, self.W, self.full_drift)

    @property
    def tail_sum(self) -> Floats:
        """Sum of the last `tail_count` iterates."""
        return _sum(self.tail_count, self.W, self.tail_drift)


def _sum(count: Any, W: Any, drift: Any) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):  # where it diverged
        total: Floats = np.asarray(count) * np.asarray(W) + np.asarray(drift)
    return total


@partial(jax.jit, static_argnames=("schedule",))
def advance(
    state: JaxState,
    Phi: Any,
    Psi: Any,
    Y: Any,
    *,
    schedule: Schedule,
    sign: float,
    tail: int,
    points: Any,
) -> JaxState:
    """Take one step for each mini-batch, (steps, batch, d) arrays."""

    def step(s: JaxState, rows: tuple[Any, Any, Any]) -> tuple[JaxState, None]:
        phi, psi, y = rows
        step_W, step_K = schedule(s.t)
        dual = psi @ s.K.T
        error = phi @ s.W.T - y - dual
        move = (step_W / len(phi)) * (dual.T @ phi)
        W = s.W - move
        K = s.K + (sign * step_K / len(phi)) * (error.T @ psi)
        t = s.t + 1
        hit = points[jnp.minimum(s.reached, len(points) - 1)] == t
        path = jax.lax.cond(hit, lambda p: p.at[s.reached].set(W), lambda p: p, s.path)
        return JaxState(
            t,
            W,
            K,
            s.full_drift + s.t * move,
            s.tail_drift + jnp.maximum(s.t - tail, 0) * move,
            jnp.maximum(t - tail, 0),
            path,
            s.reached + hit,
        ), None

    return jax.lax.scan(step, state, (Phi, Psi, Y))[0]  # type: ignore[no-any-return]


SEPARATE = JaxState(None, 0, 0, 0, 0, None, 0, None)
"""Axes of a state of several runs side by side: they share only the step counter."""


def begin_many(W0: Floats, d_psi: int, n_points: int) -> JaxState:
    """Return the state of several runs before the first step, from starts (runs, d_y, d_phi)."""
    begin = partial(JaxState.begin, d_psi=d_psi, n_points=n_points)
    state: JaxState = jax.vmap(begin, out_axes=SEPARATE)(jnp.asarray(W0))
    return state


@partial(jax.jit, static_argnames=("schedule",))
def advance_many(state: JaxState, Phi: Any, Psi: Any, Y: Any, **settings: Any) -> JaxState:
    """Take the steps of several runs at once, (steps, runs, batch, d) arrays."""
    together = jax.vmap(
        partial(advance, **settings), in_axes=(SEPARATE, 1, 1, 1), out_axes=SEPARATE
    )
    state = together(state, Phi, Psi, Y)
    return state
