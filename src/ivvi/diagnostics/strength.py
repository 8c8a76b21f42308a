"""How strongly the instruments move the features, as the paper measures it: mu_iv, ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi.estimators import Exact
from ivvi.estimators.estimate import Rows
from ivvi.estimators.whitening import whiten
from ivvi.features.feature_map import describe_direction
from ivvi.moments import Moments


@dataclass(frozen=True, slots=True)
class Strength:
    """Instrument strength as the paper defines it, and identification.

    Attributes
    ----------
    mu_iv
        Smallest eigenvalue of A^T B^-1 A (Proposition 4.1); zero when not identified.
    eigenvalues
        All eigenvalues of A^T B^+ A, ascending, (d_phi,).
    weakest
        The eigenvector of mu_iv in words: the combination of features about which the
        instruments say least, in the features' own units.
    mu_b
        Smallest eigenvalue of B.
    rank, d_phi
        Rank of A, and what it must be for W to be identified.
    rank_psi, d_psi
        Rank of B and its size; a smaller rank means collinear instruments.
    unidentified
        Directions of W that are not identified, in words.
    """

    mu_iv: float
    eigenvalues: tuple[float, ...]
    weakest: str
    mu_b: float
    rank: int
    d_phi: int
    rank_psi: int
    d_psi: int
    unidentified: tuple[str, ...]

    @property
    def identified(self) -> bool:
        """Whether A has full column rank."""
        return self.rank == self.d_phi

    @property
    def mu_iv_identified(self) -> float:
        """Smallest eigenvalue over the identified directions."""
        return self.eigenvalues[self.d_phi - self.rank]

    def mean_smallest(self, count: int = 5, *, with_zeros: bool = True) -> float:
        """Average the `count` smallest eigenvalues, as the paper does for MovieLens.

        Its table is reached only when the numerical zero of an unidentified direction is
        counted among them (`with_zeros`).
        """
        first = 0 if with_zeros else self.d_phi - self.rank
        return float(np.mean(self.eigenvalues[first : first + count]))


def strength(moments: Moments) -> Strength:
    """Compute mu_iv, mu_B and the ranks."""
    design, space = moments.design, whiten(moments)
    A = space.means(moments, np.eye(design.width)[list(design.phi_columns)])  # E[phi psi~^T]
    left, size, _ = np.linalg.svd(A, full_matrices=True)
    eigenvalues = np.zeros(len(design.phi_names))
    eigenvalues[: len(size)] = size**2
    estimate = Exact().solve(moments)
    rank = len(design.phi_names) - len(estimate.null)
    ascending = np.sort(eigenvalues)
    ascending[: len(estimate.null)] = 0.0
    psi_size = np.linalg.svd(Rows.of(moments, centred=False).Psi, compute_uv=False)
    collinear = space.rank < len(design.psi_names)
    return Strength(
        mu_iv=float(ascending[0]),
        eigenvalues=tuple(ascending.tolist()),
        weakest=describe_direction(left[:, -1].tolist(), design.phi_names),
        mu_b=0.0 if collinear else float(psi_size[-1] ** 2),
        rank=rank,
        d_phi=len(design.phi_names),
        rank_psi=space.rank,
        d_psi=len(design.psi_names),
        unidentified=estimate.unidentified,
    )
