"""Coordinates in which descent-ascent walks: v~ = T v, and W = W~ T for the weights.

`Transformed` makes the saddle point well conditioned and needs d x d numbers; `Scaled`
centres and scales each feature and needs d; `Raw` leaves the features as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ivvi.features.design import Floats


class Coordinates(Protocol):
    """A linear change of features."""

    def of(self, V: Floats) -> Floats:
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

    def of(self, V: Floats) -> Floats:
        """Return V."""
        return V

    def weights(self, W: Floats) -> Floats:
        """Return W."""
        return W

    def inverse(self, W: Floats) -> Floats:
        """Return W."""
        return W


@dataclass(frozen=True, slots=True)
class Transformed:
    """v~ = T v with a matrix T."""

    T: Floats

    def of(self, V: Floats) -> Floats:
        """Return V T^T."""
        return V @ self.T.T

    def weights(self, W: Floats) -> Floats:
        """Return W T."""
        return W @ self.T

    def inverse(self, W: Floats) -> Floats:
        """Return W T^+."""
        return W @ np.linalg.pinv(self.T)


@dataclass(frozen=True, slots=True)
class Scaled:
    """v~_j = (v_j - centre_j v_0) / scale_j, where v_0 is the constant, if there is one."""

    centre: Floats
    scale: Floats
    constant: int | None

    @classmethod
    def of_rows(cls, V: Floats, constant: int | None) -> Scaled:
        """Take centre and scale from rows, (n, d)."""
        centre = V.mean(axis=0) if constant is not None else np.zeros(V.shape[1])
        scale = np.sqrt(np.mean((V - centre) ** 2, axis=0))
        if constant is not None:
            centre[constant] = 0.0
            scale[constant] = 1.0
        scale[scale == 0] = 1.0
        return cls(centre, scale, constant)

    def of(self, V: Floats) -> Floats:
        """Centre and scale rows."""
        if self.constant is None:
            return V / self.scale
        return (V - V[:, [self.constant]] * self.centre) / self.scale

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
    unit_phi, unit_psi = (np.sqrt(np.mean(V**2, axis=0)) for V in (Phi, Psi))
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


def largest_eigenvalue(V: Floats, steps: int = 30) -> float:
    """Return that of V^T V / n, by power iteration: O(n d), no d x d matrix."""
    v = np.ones(V.shape[1]) / np.sqrt(V.shape[1])
    value = 0.0
    for _ in range(steps):
        v = V.T @ (V @ v) / len(V)
        value = float(np.linalg.norm(v))
        if value == 0:
            break
        v /= value
    return value
