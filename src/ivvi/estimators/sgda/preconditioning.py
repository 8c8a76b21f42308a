"""How descent-ascent is set up: its starting point, its coordinates and its step sizes.

In new coordinates v~ = T v, the weights are W = W~ T. `Transformed` makes the saddle point well
conditioned and needs d x d numbers; `Scaled` centres and scales each feature and needs d; `Raw`
leaves the features as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.errors import InputError
from ivvi.estimators.sgda.sampler import Chunk
from ivvi.estimators.sgda.schedules import Decay, Schedule
from ivvi.features.design import Design
from ivvi.logs import Batch

MOST_STEP, SAFETY, POWER, DELAY = 0.5, 0.2, 0.35, 50.0
"""The automatic steps: min(MOST_STEP, SAFETY batch / E|phi~|^2) / (1 + t / DELAY)^POWER."""


class Coordinates(Protocol):
    """A linear change of features."""

    def of(self, rows: Floats) -> Floats:
        """Transform rows of features, (n, d)."""
        ...

    def weights(self, W: Floats) -> Floats:
        """Turn weights of the new features into weights of the old ones."""
        ...

    def inverse(self, W: Floats) -> Floats:
        """Turn weights of the old features into weights of the new ones."""
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """The features as they are."""

    def of(self, rows: Floats) -> Floats:
        """Return the rows as they are."""
        return rows

    def weights(self, W: Floats) -> Floats:
        """Return W."""
        return W

    def inverse(self, W: Floats) -> Floats:
        """Return W."""
        return W


@dataclass(frozen=True, slots=True, repr=False)
class Transformed(Compact):
    """v~ = T v with a matrix T."""

    T: Floats

    def of(self, rows: Floats) -> Floats:
        """Return the rows times T^T."""
        return rows @ self.T.T

    def weights(self, W: Floats) -> Floats:
        """Return W T."""
        return W @ self.T

    def inverse(self, W: Floats) -> Floats:
        """Return W T^+."""
        return W @ np.linalg.pinv(self.T)


@dataclass(frozen=True, slots=True, repr=False)
class Scaled(Compact):
    """v~_j = (v_j - centre_j v_0) / scale_j, where v_0 is the constant, if there is one."""

    centre: Floats
    scale: Floats
    constant: int | None

    @classmethod
    def of_rows(cls, rows: Floats, constant: int | None) -> Scaled:
        """Take centre and scale from rows, (n, d)."""
        centre = rows.mean(axis=0) if constant is not None else np.zeros(rows.shape[1])
        scale = np.sqrt(np.mean((rows - centre) ** 2, axis=0))
        if constant is not None:
            centre[constant] = 0.0
            scale[constant] = 1.0
        scale[scale == 0] = 1.0
        return cls(centre, scale, constant)

    def of(self, rows: Floats) -> Floats:
        """Centre and scale rows."""
        if self.constant is None:
            return rows / self.scale
        return (rows - rows[:, [self.constant]] * self.centre) / self.scale

    def weights(self, W: Floats) -> Floats:
        """Undo the scales, and let the constant carry the centres."""
        W = W / self.scale
        if self.constant is not None:
            W[:, self.constant] -= W @ self.centre
        return W

    def inverse(self, W: Floats) -> Floats:
        """Take the centres back from the constant, and scale."""
        W = W.copy()
        if self.constant is not None:
            W[:, self.constant] += W @ self.centre
        return W * self.scale


def decouple(Phi: Floats, Psi: Floats) -> tuple[Transformed, Transformed]:
    """Return coordinates of phi and psi that make A and B identities on these rows.

    With B = L L^T and L^-1 A = P S Q^T: psi~ = P^T L^-1 psi and phi~ = S^-1 Q^T phi.
    """
    n = len(Phi)
    unit_phi, unit_psi = (np.sqrt(np.mean(rows**2, axis=0)) for rows in (Phi, Psi))
    unit_phi[unit_phi == 0], unit_psi[unit_psi == 0] = 1.0, 1.0
    values, vectors = np.linalg.eigh((Psi / unit_psi).T @ (Psi / unit_psi) / n)
    keep = values > 1e-10 * values[-1]
    white = (vectors[:, keep] / np.sqrt(values[keep])).T / unit_psi
    left, size, right = np.linalg.svd(white @ (Psi.T @ (Phi / unit_phi)) / n)
    rank = int(np.sum(size > 1e-6))
    to_phi = np.zeros((len(right), len(right)))
    to_phi[:rank] = right[:rank] / size[:rank, None]
    to_phi[rank:] = right[rank:]
    return Transformed(to_phi / unit_phi), Transformed(left.T @ white)


def largest_eigenvalue(rows: Floats, steps: int = 30) -> float:
    """Return the largest eigenvalue of the rows' second moments, by power iteration in O(n d)."""
    v = np.ones(rows.shape[1]) / np.sqrt(rows.shape[1])
    value = 0.0
    for _ in range(steps):
        v = rows.T @ (rows @ v) / len(rows)
        value = float(np.linalg.norm(v))
        if value == 0:
            break
        v /= value
    return value


@dataclass(frozen=True, slots=True, repr=False)
class Setup(Compact):
    """Start, coordinates and steps.

    W0 and K0 are in these coordinates; `average` is what to return unless asked otherwise.
    """

    W0: Floats
    K0: Floats
    phi: Coordinates
    psi: Coordinates
    schedule: Schedule
    average: str


@dataclass(frozen=True, slots=True, repr=False)
class Start(Compact):
    """W_0 and K_0 as they were asked for: a number, an array, or None."""

    W: Any = None
    K: Any = None

    def arrays(self, design: Design) -> tuple[Floats, Floats]:
        """Return W_0 (d_y, d_phi) and K_0 (d_y, d_psi), zero where they are not given."""
        d_y = len(design.outputs)
        W0 = _array("start", self.W, (d_y, len(design.phi_names)))
        return W0, _array("start_K", self.K, (d_y, len(design.psi_names)))


def plain_setup(design: Design, start: Start, schedule: Schedule) -> Setup:
    """Return the setup of the paper: raw features and the given schedule."""
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
