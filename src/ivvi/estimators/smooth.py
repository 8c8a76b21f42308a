"""The saddle point with rough features penalised, in both stages.

With second moments A, B, C of features in units of their spreads, and D, E the diagonal
matrices of their roughness (`features.products`),

    Omega = B + first_stage E
    w     = argmin  (c - A w)' Omega^-1 (c - A w) + penalty w' D w

for each output. Linear terms are free, so that a large penalty leaves the linear model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi.errors import InputError
from ivvi.estimators.estimate import Estimate, Rows, extension, finish
from ivvi.estimators.kclass import unadjusted
from ivvi.estimators.whitening import whiten
from ivvi.features.design import Design
from ivvi.features.products import Products
from ivvi.logs import Log
from ivvi.moments import Moments

LEAST = 1e-10
"""Added to the diagonal of matrices of columns in units of their spreads."""


@dataclass(frozen=True, slots=True)
class Smooth:
    """Two-stage least squares with rough features penalised, as a method of `ivvi.estimate`.

    Standard errors include the penalty's bias as in Nychka (1988): the variance of what the penalty
    removes, if the weights were drawn from the law for which it is optimal.

    Parameters
    ----------
    penalty
        One for each output.
    first_stage
        That of the first stage.
    rows
        Rows for which both were chosen: with more rows they fall in proportion.
    """

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = False
    one_solution: ClassVar[bool] = True
    uses_instruments: ClassVar[bool] = True

    penalty: tuple[float, ...]
    first_stage: float
    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", tuple(float(p) for p in self.penalty))
        if not all(p >= 0 for p in (*self.penalty, self.first_stage)) or self.rows < 1:
            raise InputError("penalties and their numbers of rows must not be negative")

    @property
    def name(self) -> str:
        """The word by which results know it."""
        return "smooth"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        from scipy.linalg import solve_triangular

        rows, share = Rows.of(moments), self.rows / moments.n
        rough_phi, rough_psi = roughness(moments.design)
        D, E = rough_phi[rows.phi_kept], rough_psi[rows.psi_kept]
        scale, scale_psi = _spread(rows.Phi), _spread(rows.Psi)
        Phi, Psi = rows.Phi / scale, rows.Psi / scale_psi
        root = np.linalg.cholesky(Psi.T @ Psi + np.diag(share * self.first_stage * E + LEAST))
        fitted = solve_triangular(root, Psi.T @ Phi, lower=True)
        c = solve_triangular(root, Psi.T @ rows.Y, lower=True)
        basis = solve_triangular(root, Psi.T @ whiten(moments).basis, lower=True)
        slopes, influence, breads, lost = [], [], [], []
        for penalty, moment in zip(self.penalty, c.T, strict=True):
            inverse = np.linalg.inv(fitted.T @ fitted + np.diag(share * penalty * D + LEAST))
            slopes.append(inverse @ (fitted.T @ moment) / scale)
            influence.append(inverse @ fitted.T @ basis / scale[:, None])
            units = moments.n * np.outer(scale, scale)
            breads.append(inverse / units)
            lost.append((inverse * (share * penalty * D)) @ inverse / units)
        parts = (np.array(slopes), np.array(influence), np.array(breads))
        estimate = finish(moments, rows, *parts, np.empty((0, len(scale))))
        extend = extension(moments, rows)
        taken = extend.T @ np.array(lost) @ extend
        taken *= np.diag(estimate.noise_cov)[:, None, None]
        covariance = unadjusted(estimate.noise_cov, estimate.bread)
        return replace(estimate, bread=estimate.bread[0], covariance=covariance, taken=taken)


def roughness(design: Design) -> tuple[Floats, Floats]:
    """Return the roughness of each column of phi (d_phi,) and psi (d_psi,); linear ones have 0."""
    every = np.zeros(design.width)
    for block, _, start in design.pieces:
        if isinstance(block, Products):
            every[start : start + len(block.terms)] = block.penalties
    return every[list(design.phi_columns)], every[list(design.psi_columns)]


def _spread(columns: Floats) -> Floats:
    size = np.linalg.norm(columns, axis=0)
    return np.where(size > 0, size, 1.0)
