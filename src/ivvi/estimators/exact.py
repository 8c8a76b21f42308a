"""The closed form of the saddle point: two-stage least squares for a vector of outputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi.checkpoint import Checkpoint
from ivvi.estimators.estimate import (
    RANK_TOLERANCE,
    Estimate,
    Floats,
    Rows,
    check_ridge,
    solve_rows,
)
from ivvi.logs import Log
from ivvi.moments import Moments


@dataclass(frozen=True, slots=True)
class Exact:
    """The unique solution of min_W max_K L(W, K), eq. (3.6) of the paper:

        W_sad = C B^-1 A (A^T B^-1 A)^-1.

    Where B is singular its pseudo-inverse is used (collinear but sufficient instruments
    change nothing); where A has not full column rank the solution of minimum norm is
    returned and `Estimate.null` holds the directions of W that are not identified.

    Parameters
    ----------
    ridge
        Penalty on the squared coefficients in units of the features' variances.
    debiased
        Divide the residual sum of squares by n - d_phi instead of n.
    """

    ridge: float = 0.0
    debiased: bool = False

    def __post_init__(self) -> None:
        check_ridge(self.ridge)

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "exact"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        rows = Rows.of(moments)
        basis = instrument_basis(rows)
        return solve_rows(moments, rows, basis, ridge=self.ridge, debiased=self.debiased)


def instrument_basis(rows: Rows) -> Floats:
    """Return an orthonormal basis (m, rank) of the span of the columns of Psi."""
    return orthonormal(rows.Psi)


def orthonormal(V: Floats, *, rescale: bool = True) -> Floats:
    """Return an orthonormal basis (m, rank) of the columns of V, ignoring their units.

    With `rescale` off, columns that are small against 1 count as zero.
    """
    scale = np.linalg.norm(V, axis=0)
    V = V / np.where(scale > 0, scale, 1.0) if rescale else V
    if 0 < V.shape[1] <= V.shape[0]:
        Q, R = np.linalg.qr(V)
        if np.abs(np.diag(R)).min() > RANK_TOLERANCE:
            return Q
    left, size, _ = np.linalg.svd(V, full_matrices=False)
    basis: Floats = left[:, size > RANK_TOLERANCE]
    return basis
