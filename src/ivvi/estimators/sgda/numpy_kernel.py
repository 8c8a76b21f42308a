"""The steps of descent-ascent in NumPy, in place: mini-batches of any size, little memory.

The same arithmetic as `ivvi.estimators.sgda.jax_kernel`. Nothing is compiled, so that mini-batches
may differ in length (episodes) and wide features need no memory beside their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ivvi.estimators.sgda.schedules import Schedule
from ivvi.features.design import Floats


@dataclass(slots=True)
class State:
    """What descent-ascent carries from step to step, as in `descent.State`; changed in place."""

    t: int
    W: Floats
    K: Floats
    full_sum: Floats
    tail_sum: Floats
    tail_count: int
    path: Floats
    reached: int

    @classmethod
    def begin(cls, W0: Floats, d_psi: int, n_points: int) -> State:
        """Return the state before the first step."""
        W, K = W0.copy(), np.zeros((len(W0), d_psi))
        path = np.zeros((n_points, *W0.shape))
        return cls(0, W, K, np.zeros_like(W), np.zeros_like(W), 0, path, 0)


def advance(  # noqa: PLR0913
    state: State,
    Phi: Floats,
    Psi: Floats,
    Y: Floats,
    edges: Sequence[int],
    *,
    schedule: Schedule,
    sign: float,
    tail: int,
    points: Sequence[int],
) -> State:
    """Take one step for the rows between each edge and the next; returns the same state."""
    s = state
    with np.errstate(over="ignore", invalid="ignore"):
        for i, j in itertools.pairwise(edges):
            phi, psi, y = Phi[i:j], Psi[i:j], Y[i:j]
            step_W, step_K = schedule(s.t)
            dual = psi @ s.K.T
            error = phi @ s.W.T - y - dual
            s.W -= step_W / len(phi) * (dual.T @ phi)
            s.K += sign * step_K / len(phi) * (error.T @ psi)
            s.t += 1
            s.full_sum += s.W
            if s.t > tail:
                s.tail_sum += s.W
                s.tail_count += 1
            if s.reached < len(points) and points[s.reached] == s.t:
                s.path[s.reached] = s.W
                s.reached += 1
    return s
