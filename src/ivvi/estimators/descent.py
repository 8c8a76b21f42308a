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

from ivvi.estimators.estimate import Floats
from ivvi.estimators.schedules import Schedule


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class State:
    """What descent-ascent carries from step to step."""

    t: Any
    W: Any
    K: Any
    full_sum: Any
    tail_sum: Any
    tail_count: Any
    path: Any
    reached: Any

    @classmethod
    def begin(cls, W0: Floats, d_psi: int, n_points: int) -> State:
        """Return the state before the first step."""
        zero, W = jnp.asarray(0), jnp.asarray(W0)
        path = jnp.zeros((n_points, *W0.shape))
        K = jnp.zeros((len(W0), d_psi))
        return cls(zero, W, K, jnp.zeros_like(W), jnp.zeros_like(W), zero, path, zero)


@partial(jax.jit, static_argnames=("schedule",))
def advance(
    state: State,
    Phi: Any,
    Psi: Any,
    Y: Any,
    *,
    schedule: Schedule,
    sign: float,
    tail: int,
    points: Any,
) -> State:
    """Take one step for each mini-batch, (steps, batch, d) arrays."""

    def step(s: State, rows: tuple[Any, Any, Any]) -> tuple[State, None]:
        phi, psi, y = rows
        step_W, step_K = schedule(s.t)
        dual = psi @ s.K.T
        error = phi @ s.W.T - y - dual
        W = s.W - step_W * (dual.T @ phi) / len(phi)
        K = s.K + sign * step_K * (error.T @ psi) / len(phi)
        t = s.t + 1
        late = (t > tail).astype(W.dtype)
        hit = points[jnp.minimum(s.reached, len(points) - 1)] == t
        path = jax.lax.cond(hit, lambda p: p.at[s.reached].set(W), lambda p: p, s.path)
        return State(
            t,
            W,
            K,
            s.full_sum + W,
            s.tail_sum + late * W,
            s.tail_count + (t > tail),
            path,
            s.reached + hit,
        ), None

    return jax.lax.scan(step, state, (Phi, Psi, Y))[0]  # type: ignore[no-any-return]
