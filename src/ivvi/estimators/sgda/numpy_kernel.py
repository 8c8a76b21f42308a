"""The steps of descent-ascent in NumPy, in place: mini-batches of any size, little memory.

The same arithmetic as `ivvi.estimators.sgda.jax_kernel`. Nothing is compiled, so that mini-batches
may differ in length (episodes) and wide features need no memory besides their own.

`DualLoop` is the loop of the paper's authors instead: with the moments A, B, C of a mini-batch,

    K <- K + step_K (W A^T - C - K B)    many times,    then    W <- W - step_W K A.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.estimators.sgda.schedules import Schedule

BatchMoments = tuple[Floats, Floats, Floats]
"""A (d_psi, d_phi), B (d_psi, d_psi) and C (d_y, d_psi) of a mini-batch."""


@dataclass(frozen=True, slots=True)
class DualLoop:
    """How many dual steps each mini-batch gets before its primal step, and how they begin.

    With `restart` the dual schedule begins anew at j = 0 in every mini-batch, else it goes on;
    with `keep` K goes on from the mini-batch before, else it is zero again.
    """

    steps: int
    restart: bool = True
    keep: bool = True

    def ascend(
        self, state: NumpyState, schedule: Schedule, sign: float, moments: BatchMoments
    ) -> None:
        """Take the dual steps of one mini-batch, in place."""
        A, B, C = moments
        target = state.W @ A.T - C
        K = state.K if self.keep else np.zeros_like(state.K)
        first = 0 if self.restart else state.t * self.steps
        for j in range(first, first + self.steps):
            K = K + sign * schedule(j)[1] * (target - K @ B)
        state.K = K


@dataclass(slots=True, repr=False)
class NumpyState(Compact):
    """What `jax_kernel.JaxState` holds, changed in place."""

    t: int
    W: Floats
    K: Floats
    full_sum: Floats
    tail_sum: Floats
    tail_count: int
    path: Floats
    reached: int

    def record(self, tail: int, points: Sequence[int]) -> None:
        """Count a step that was taken: sums of iterates, and the path."""
        self.t += 1
        self.full_sum += self.W
        if self.t > tail:
            self.tail_sum += self.W
            self.tail_count += 1
        if self.reached < len(points) and points[self.reached] == self.t:
            self.path[self.reached] = self.W
            self.reached += 1

    @classmethod
    def begin(cls, W0: Floats, d_psi: int, n_points: int) -> NumpyState:
        """Return the state before the first step."""
        W, K = W0.copy(), np.zeros((len(W0), d_psi))
        path = np.zeros((n_points, *W0.shape))
        return cls(0, W, K, np.zeros_like(W), np.zeros_like(W), 0, path, 0)


def advance(  # noqa: PLR0913 - the rows of a call, then what all calls share
    state: NumpyState,
    Phi: Floats,
    Psi: Floats,
    Y: Floats,
    edges: Sequence[int],
    *,
    schedule: Schedule,
    sign: float,
    tail: int,
    points: Sequence[int],
    dual: DualLoop | None = None,
) -> NumpyState:
    """Take one step for the rows between each edge and the next; returns the same state."""
    with np.errstate(over="ignore", invalid="ignore"):
        for i, j in itertools.pairwise(edges):
            phi, psi, y = Phi[i:j], Psi[i:j], Y[i:j]
            if dual is None:
                _together(state, phi, psi, y, schedule, sign)
            else:
                n = len(phi)
                A = psi.T @ phi / n
                dual.ascend(state, schedule, sign, (A, psi.T @ psi / n, y.T @ psi / n))
                state.W -= schedule(state.t)[0] * (state.K @ A)
            state.record(tail, points)
    return state


def _together(
    s: NumpyState, phi: Floats, psi: Floats, y: Floats, schedule: Schedule, sign: float
) -> None:
    """Take one step in W and one in K, both from where they were."""
    step_W, step_K = schedule(s.t)
    dual = psi @ s.K.T
    error = phi @ s.W.T - y - dual
    s.W -= step_W / len(phi) * (dual.T @ phi)
    s.K += sign * step_K / len(phi) * (error.T @ psi)
