"""Plans of descent-ascent: where to start, in which coordinates to walk, with which steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.errors import InputError
from ivvi.estimators.sgda.preconditioning import (
    Coordinates,
    Raw,
    Scaled,
    decouple,
    largest_eigenvalue,
)
from ivvi.estimators.sgda.sampler import Chunk
from ivvi.estimators.sgda.schedules import Decay, Schedule
from ivvi.features.design import Design, Floats
from ivvi.logs import Batch

MOST_STEP, SAFETY, POWER, DELAY = 0.5, 0.2, 0.35, 50.0
"""The automatic steps: min(MOST_STEP, SAFETY batch / E|phi~|^2) / (1 + t / DELAY)^POWER."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Start, coordinates and steps.

    W0 and K0 are in these coordinates; `average` is what to return unless asked otherwise.
    """

    W0: Floats
    K0: Floats
    phi: Coordinates
    psi: Coordinates
    schedule: Schedule
    average: str


@dataclass(frozen=True, slots=True)
class Start:
    """W_0 and K_0 as they were asked for: a number, an array, or None."""

    W: Any = None
    K: Any = None

    def arrays(self, design: Design) -> tuple[Floats, Floats]:
        """Return W_0 (d_y, d_phi) and K_0 (d_y, d_psi), zero where they are not given."""
        d_y = len(design.outputs)
        W0 = _array("start", self.W, (d_y, len(design.phi_names)))
        return W0, _array("start_K", self.K, (d_y, len(design.psi_names)))


def plain_setup(design: Design, start: Start, schedule: Schedule) -> Setup:
    """Raw features and a schedule as it is given, as in the paper."""
    return Setup(*start.arrays(design), Raw(), Raw(), schedule, "last")


def automatic_setup(rows: Chunk, design: Design, start: Start, size: float) -> tuple[Setup, float]:
    """Coordinates that make A and B identities on these rows, and their closed form to start.

    Steps suit mini-batches of `size` rows; any below 2 are stable in these coordinates.
    """
    Phi, Psi, Y = rows
    phi, psi = decouple(Phi, Psi)
    W0, K0 = start.arrays(design)
    W0, K0 = phi.inverse(W0), psi.inverse(K0)
    Phi, Psi = phi.of(Phi), psi.of(Psi)
    if start.W is None:
        fitted = Psi @ (Psi.T @ Phi / len(Y))
        W0 = np.asarray(np.linalg.lstsq(fitted, Y, rcond=None)[0].T, dtype=np.float64)
    return Setup(W0, K0, phi, psi, _steps(Phi, size, MOST_STEP), "full"), 2.0


def diagonal_setup(rows: Chunk, design: Design, start: Start, size: float) -> tuple[Setup, float]:
    """Each feature centred and scaled by itself, and steps below the stable ones: O(d)."""
    Phi, Psi, Y = rows
    constant = design.constant
    phi = Scaled.of_rows(Phi, constant)
    psi = Scaled.of_rows(Psi, None if constant is None else design.psi_columns.index(constant))
    W0, K0 = start.arrays(design)
    W0, K0 = phi.inverse(W0), psi.inverse(K0)
    Phi, Psi = phi.of(Phi), psi.of(Psi)
    if start.W is None and constant is not None:
        W0[:, constant] = Y.mean(axis=0)
    stable = stable_step(Phi, Psi)
    return Setup(W0, K0, phi, psi, _steps(Phi, size, min(1.0, stable) * MOST_STEP), "tail"), stable


def stable_step(Phi: Floats, Psi: Floats) -> float:
    """Return 1 / max(lambda_max(D), lambda_max(B)).

    With equal steps eta in W and K, a direction in which B is b and A is a needs eta < b / a^2
    and eta < 2 / b; since a^2 <= b lambda_max(D), this step satisfies both.
    """
    return 1 / max(largest_eigenvalue(Phi), largest_eigenvalue(Psi))


def mean_length(rows: Batch) -> float:
    """Return the mean number of rows of an episode."""
    return 1.0 if rows.episode is None else len(rows) / len(np.unique(rows.episode))


def _steps(Phi: Floats, size: float, most: float) -> Decay:
    step = min(most, SAFETY * size / float(np.mean(np.sum(Phi**2, axis=1))))
    return Decay(step, power=POWER, delay=DELAY)


def _array(name: str, value: Any, shape: tuple[int, int]) -> Floats:
    array = np.asarray(0.0 if value is None else value, dtype=np.float64)
    if array.shape not in ((), shape):
        raise InputError(f"{name} has shape {array.shape}; expected a number or {shape}")
    return np.broadcast_to(array, shape).copy()
