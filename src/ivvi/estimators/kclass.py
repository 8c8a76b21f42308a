"""The k-class: between least squares (k = 0) and two-stage least squares (k = 1), and beyond.

    W_k = Y' (I - k M) Phi (Phi' (I - k M) Phi)^-1,   M = I - Psi (Psi' Psi)^-1 Psi'

LIML takes the k that makes the over-identifying moments least significant, and Fuller a
little less; with weak instruments they are far less biased than two-stage least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi.errors import DataError, IdentificationError, InputError
from ivvi.estimators.covariance.weight_covariance import MOST_JOINT, Covariance
from ivvi.estimators.estimate import RANK_TOLERANCE, Estimate, Rows, finish
from ivvi.estimators.two_stage_least_squares import two_stage
from ivvi.estimators.whitening import exogenous, whiten
from ivvi.logs import Log
from ivvi.moments import Moments


@dataclass(frozen=True, slots=True)
class KClass:
    """The k-class estimator of a given k."""

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = False
    one_solution: ClassVar[bool] = False
    uses_instruments: ClassVar[bool] = True

    k: float

    def __post_init__(self) -> None:
        if not np.isfinite(self.k):
            raise InputError(f"k is {self.k}; expected a finite number")

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return f"kclass:{self.k:g}"

    def doubt(self, n: int) -> str:
        """Return a warning if k is so far below one that it mixes in regression, else ''.

        The estimate has the limit of two-stage least squares only if (1 - k) n^1/2 vanishes.
        """
        if (1 - self.k) * math.sqrt(n) < 1:
            return ""
        return (
            f"k = {self.k:g} is far below one: the estimate is partly that of regression, so it is "
            "confounded, and its intervals do not allow for that; use the method exact (k = 1), "
            "liml or fuller:1"
        )

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        return _solve(moments, np.full(len(moments.design.outputs), self.k), self.name)


@dataclass(frozen=True, slots=True)
class LIML:
    """Limited-information maximum likelihood, one output at a time: `liml_k` for its k."""

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = True
    one_solution: ClassVar[bool] = True
    uses_instruments: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "liml"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        return _solve(moments, self.ks(moments), self.name)

    def ks(self, moments: Moments) -> Floats:
        """Return its k for each output, (d_y,)."""
        return liml_k(moments)


@dataclass(frozen=True, slots=True)
class Fuller:
    """LIML with k less c / (n - rank of psi); c = 1 is nearly unbiased, c = 4 has least error."""

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = True
    one_solution: ClassVar[bool] = True
    uses_instruments: ClassVar[bool] = True

    c: float = 1.0

    def __post_init__(self) -> None:
        if not self.c >= 0 or not np.isfinite(self.c):
            raise InputError(f"Fuller's c is {self.c:g}; it must not be negative")

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return f"fuller:{self.c:g}"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        return _solve(moments, self.ks(moments), self.name)

    def ks(self, moments: Moments) -> Floats:
        """Return its k for each output, (d_y,)."""
        freedom = moments.n - whiten(moments).rank - moments.lost()
        ks: Floats = liml_k(moments) - self.c / freedom
        return ks


def liml_k(moments: Moments) -> Floats:
    """Return LIML's k for each output, (d_y,).

    The smallest ratio, over combinations of the output and the endogenous features, of what
    the exogenous features leave to what all of psi leaves; 1 when just identified.
    """
    design, rows = moments.design, Rows.of(moments)
    space = whiten(moments)
    if moments.n <= space.rank + 1:
        raise DataError(f"{moments.n} rows are too few for {space.rank} instrument features")
    inside = [i for i, c in enumerate(rows.phi_kept) if c not in set(exogenous(moments))]
    roots = np.empty(len(design.outputs))
    for j in range(len(roots)):
        output_and_endogenous = np.column_stack([rows.Y[:, j], rows.Phi[:, inside]])
        short = output_and_endogenous - space.included @ (space.included.T @ output_and_endogenous)
        scale = np.linalg.norm(short, axis=0)
        short = short / np.where(scale > 0, scale, 1.0)
        long = short - space.excluded.basis @ (space.excluded.basis.T @ short)
        _, size, right = np.linalg.svd(long, full_matrices=False)
        if size[-1] < RANK_TOLERANCE:
            raise DataError(
                f"LIML has no k for the output {design.outputs[j]!r}: a combination of it and the "
                "actions is an exact function of the instruments"
            )
        roots[j] = np.linalg.svd(short @ (right.T / size), compute_uv=False)[-1] ** 2
    return roots


def _solve(moments: Moments, ks: Floats, name: str) -> Estimate:
    """Solve for each output with its own k."""
    rows = Rows.of(moments)
    basis = whiten(moments).basis
    first = two_stage(moments, 0.0)
    if not first.identified:
        raise IdentificationError(
            f"{name} needs instruments that identify W, but these do not identify "
            f"{' and '.join(first.unidentified)}; use the method exact"
        )
    scale = np.linalg.norm(rows.Phi, axis=0)
    Phi, fitted = rows.Phi / scale, basis.T @ rows.Phi / scale
    D, strong = Phi.T @ Phi, fitted.T @ fitted
    slopes, influence, breads = [], [], []
    for k, y in zip(ks, rows.Y.T, strict=True):
        inverse = np.linalg.inv((1 - k) * D + k * strong)
        moment = (1 - k) * Phi.T @ y + k * fitted.T @ (basis.T @ y)
        slopes.append(inverse @ moment / scale)
        influence.append(inverse @ fitted.T / scale[:, None])
        breads.append(inverse / np.outer(scale, scale) / moments.n)
    parts = (np.array(slopes), np.array(influence), np.array(breads))
    estimate = finish(moments, rows, *parts, np.empty((0, len(scale))))
    covariance = unadjusted(estimate.noise_cov, estimate.bread)
    return replace(estimate, bread=first.bread, covariance=covariance)


def unadjusted(noise_cov: Floats, breads: Floats) -> Covariance:
    """noise_cov_jj bread_j; between outputs noise_cov_ij times the roots of both breads."""
    d_y, d_phi = breads.shape[:2]
    blocks = np.diag(noise_cov)[:, None, None] * breads
    joint = None
    if d_y * d_phi <= MOST_JOINT:
        values, vectors = np.linalg.eigh(breads)
        roots = vectors * np.sqrt(values.clip(min=0))[:, None, :] @ vectors.transpose(0, 2, 1)
        whole = np.einsum("ij,iab,jcb->iajc", noise_cov, roots, roots)
        joint = whole.reshape(d_y * d_phi, d_y * d_phi)
    return Covariance("unadjusted", blocks, joint)
