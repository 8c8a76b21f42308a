"""Two-step efficient GMM: instruments weighted by how noisy their moments are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi.errors import DataError, IdentificationError, InputError
from ivvi.estimators.covariance.estimate_covariance import residual_score
from ivvi.estimators.covariance.scores import score
from ivvi.estimators.covariance.standard_errors import StandardErrors
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.estimate import Estimate, Rows, dual, exactly_fitted, extension, with_weights
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.estimators.whitening import Whitened, whiten
from ivvi.logs import Log
from ivvi.moments import Moments

SINGULAR = 1e-12
"""Eigenvalues below this share of the largest make a weight that cannot be inverted."""


@dataclass(frozen=True, slots=True)
class GMM:
    """Two-step GMM, one output at a time: W_j minimises g^T Omega_j^-1 g, g = E[u_j psi~].

    Omega_j, the variance of n^1/2 g at the closed form, comes from one more pass over the
    rows. With as many instruments as features it is the closed form itself.

    Parameters
    ----------
    weight
        Which rows Omega takes to depend on each other. `estimate` fills in the standard
        errors that are asked for.
    """

    needs_rows: ClassVar[bool] = True
    has_robust_intervals: ClassVar[bool] = True
    one_solution: ClassVar[bool] = True
    uses_instruments: ClassVar[bool] = True

    weight: StandardErrors | Resolved | None = None

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "gmm"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from the moments and one pass over the rows of `log`."""
        first = Exact().solve(moments)
        if not first.identified:
            raise IdentificationError(
                "GMM needs instruments that identify W, but these do not identify "
                f"{' and '.join(first.unidentified)}; use the method exact"
            )
        errors = self._resolved(moments, log)
        if errors.kind == "unadjusted":
            return first
        residuals = residual_score(first, moments, errors, moments.n)
        rows = None if log is None else errors.prepared(log)
        scored = score({"W": replace(residuals, joint=False)}, errors, moments, rows)["W"]
        return reweighted(moments, first, scored.blocks())

    def _resolved(self, moments: Moments, log: Log | None) -> Resolved:
        if isinstance(self.weight, Resolved):
            return self.weight
        if log is None:
            raise InputError("GMM needs the rows of a log, not their moments alone")
        return (self.weight or StandardErrors()).for_moments(moments, log)


def reweighted(moments: Moments, first: Estimate, omega: Floats) -> Estimate:
    """Return the estimate whose moments are weighted by omega^-1, (d_y, r, r)."""
    space, rows = whiten(moments), Rows.of(moments)
    A, back = centred_moments(moments, space, rows)
    c = space.means(moments, _select(moments, moments.design.y_columns))
    W, influence = np.empty_like(first.W), []
    exact = exactly_fitted(moments, np.diag(first.noise_cov))
    for j, (moment, variance) in enumerate(zip(c, omega, strict=True)):
        root = np.eye(len(variance)) if exact[j] else inverse_root(variance)
        solution = np.linalg.pinv(root @ A) @ root
        influence.append(back.T @ solution)
        W[j] = (solution @ moment) @ back
    estimate = with_weights(moments, first, W, first.K)
    residual = rows.Y - rows.Phi @ W[:, rows.phi_kept].T
    K = dual(moments, rows, residual)
    return replace(estimate, K=K, influence=np.array(influence))


def centred_moments(moments: Moments, space: Whitened, rows: Rows) -> tuple[Floats, Floats]:
    """Return A~ = E[psi~ phi_c^T] (r, d_phi) for centred features, and the map back to W.

    Features other than the constant are centred, which keeps the digits of those with a
    large mean; theta @ back (d_phi, d_phi) are the weights W of coefficients theta.
    """
    design = moments.design
    A = space.means(moments, _select(moments, design.phi_columns)).T
    back = np.zeros((A.shape[1],) * 2)
    back[rows.phi_kept] = extension(moments, rows)
    if design.constant is not None:
        back[design.constant, design.constant] = 1.0
        A[0, rows.phi_kept] = 0.0
    return A, back


def inverse_root(variance: Floats) -> Floats:
    """Return M with M^T M = variance^-1, refusing a singular variance."""
    scale = np.sqrt(np.diag(variance).clip(min=0))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(variance / np.outer(safe, safe))
    if not (scale > 0).all() or values[0] <= SINGULAR * values[-1]:
        raise DataError(
            f"the weight of {len(variance)} moments is singular: use more rows or clusters, or "
            "fewer instruments"
        )
    root: Floats = (vectors / np.sqrt(values)).T / scale
    return root


def _select(moments: Moments, columns: tuple[int, ...]) -> Floats:
    return np.eye(moments.design.width)[list(columns)]
