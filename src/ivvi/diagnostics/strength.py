"""How strongly the instruments move the features: mu_iv, ranks, first stages.

All of it comes from the moments; n enters only through degrees of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.diagnostics.statistic import Statistic
from ivvi.estimators.estimate import RANK_TOLERANCE, Floats, Rows
from ivvi.estimators.exact import Exact, instrument_basis, orthonormal
from ivvi.features import describe_direction
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


@dataclass(frozen=True, slots=True)
class FirstStage:
    """The regression of one endogenous feature on psi.

    `partial_f` tests the instruments that phi does not contain; `partial_r2` is what they
    explain of what the exogenous features leave.
    """

    feature: str
    partial_f: Statistic
    partial_r2: float

    def to_json(self) -> dict[str, Any]:
        """Describe the first stage with JSON values."""
        return {**self.partial_f.to_json(), "partial_r2": self.partial_r2}


@dataclass(frozen=True, slots=True)
class Partialled:
    """Endogenous features and instruments after regression on the exogenous features.

    Attributes
    ----------
    names
        The endogenous features, those of phi that psi does not have.
    X
        Their residual rows (m, d_endogenous).
    basis
        Orthonormal basis (m, q) of the excluded instruments' residuals.
    freedom
        n minus the rank of psi (the constant included).
    """

    names: tuple[str, ...]
    X: Floats
    basis: Floats
    freedom: int

    @classmethod
    def of(cls, moments: Moments) -> Partialled:
        """Partial the shared features out of the others."""
        layout, rows = moments.layout, Rows.of(moments)
        shared = set(layout.shared)
        columns = np.array(layout.psi_columns)[rows.psi_kept]
        exogenous = [i for i, c in enumerate(columns) if c in shared]
        excluded = [i for i, c in enumerate(columns) if c not in shared]
        inside = [i for i, c in enumerate(rows.phi_kept) if c not in shared]
        Q = orthonormal(rows.Psi[:, exogenous])
        scale = np.linalg.norm(rows.Psi[:, excluded], axis=0)
        Z = residual(Q, rows.Psi[:, excluded] / np.where(scale > 0, scale, 1.0))
        basis = orthonormal(Z, rescale=False)
        rank = Q.shape[1] + basis.shape[1] + (layout.constant is not None)
        names = tuple(layout.phi_names[rows.phi_kept[i]] for i in inside)
        return cls(names, residual(Q, rows.Phi[:, inside]), basis, moments.n - rank)


def strength(moments: Moments) -> Strength:
    """Compute mu_iv, mu_B and the ranks."""
    layout = moments.layout
    raw = Rows.of(moments, centred=False)
    basis = instrument_basis(raw)
    _, size, right = np.linalg.svd(basis.T @ raw.Phi, full_matrices=True)
    eigenvalues = np.zeros(len(layout.phi_names))
    eigenvalues[: len(size)] = size**2
    estimate = Exact().solve(moments)
    rank = len(layout.phi_names) - len(estimate.null)
    ascending = np.sort(eigenvalues)
    ascending[: len(estimate.null)] = 0.0
    psi_size = np.linalg.svd(raw.Psi, compute_uv=False)
    return Strength(
        mu_iv=float(ascending[0]),
        eigenvalues=tuple(ascending.tolist()),
        weakest=describe_direction(right[-1].tolist(), layout.phi_names),
        mu_b=float(psi_size[-1] ** 2) if len(psi_size) == len(layout.psi_names) else 0.0,
        rank=rank,
        d_phi=len(layout.phi_names),
        rank_psi=basis.shape[1],
        d_psi=len(layout.psi_names),
        unidentified=estimate.unidentified,
    )


def first_stage(moments: Moments) -> tuple[FirstStage, ...]:
    """Regress each endogenous feature on psi; partial F and R^2 of the excluded instruments.

    Empty when nothing is endogenous or there are no more rows than instruments.
    """
    parts = Partialled.of(moments)
    if parts.freedom <= 0:
        return ()
    explained = np.sum((parts.basis.T @ parts.X) ** 2, axis=0)
    total = np.sum(parts.X**2, axis=0)
    q = parts.basis.shape[1]
    stages = []
    for name, fit, all_ in zip(parts.names, explained, total, strict=True):
        rest = max(all_ - fit, np.finfo(float).eps * all_)
        f = (fit / q) / (rest / parts.freedom) if q and rest > 0 else 0.0
        null = f"the instruments do not move {name} given the exogenous features"
        statistic = Statistic(float(f), (q, parts.freedom), null)
        stages.append(FirstStage(name, statistic, float(fit / all_) if all_ > 0 else 0.0))
    return tuple(stages)


def cragg_donald(moments: Moments) -> float | None:
    """Cragg and Donald's F: the first-stage F of the worst combination of endogenous features.

    The smallest eigenvalue of S^-1/2 X' P_Z X S^-1/2 / q with S the covariance of the
    first stages' residuals; equal to the partial F when there is one endogenous feature.
    None when nothing is endogenous, the order condition fails, or some combination is an
    exact function of the instruments or of the exogenous features.
    """
    parts = Partialled.of(moments)
    q, m = parts.basis.shape[1], len(parts.names)
    if not m or q < m or parts.freedom <= 0:
        return None
    scale = np.linalg.norm(parts.X, axis=0)
    if (scale == 0).any():
        return None
    X = parts.X / scale
    fitted = parts.basis.T @ X
    rest = residual(parts.basis, X)
    if min(np.linalg.svd(V, compute_uv=False)[-1] for V in (X, rest)) < RANK_TOLERANCE:
        return None
    _, triangle = np.linalg.qr(rest)
    whitened = np.linalg.solve(triangle.T, fitted.T).T
    smallest = np.linalg.svd(whitened, compute_uv=False)[-1] ** 2
    return float(smallest * parts.freedom / q)


def residual(Q: Floats, V: Floats) -> Floats:
    """Return what the orthonormal columns of Q leave of V, with rounding errors set to zero."""
    rest = V - Q @ (Q.T @ V)
    nothing = np.linalg.norm(rest, axis=0) <= RANK_TOLERANCE * np.linalg.norm(V, axis=0)
    return np.where(nothing, 0.0, rest)
