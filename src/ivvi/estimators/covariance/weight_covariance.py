"""The covariance of W, under one assumption about which rows are independent.

An estimate moves with row i by u_ij L_j psi~_i / n in row j of W, where u are the
residuals, psi~ the whitened instrument features and L_j its influence matrix (d_phi, r).
With Omega the variance of n^-1/2 sum_i u_i (x) psi~_i, however it is estimated,

    cov(W_i., W_j.) = L_i Omega_ij L_j^T / n.

Homoskedastic errors make Omega_ij = noise_cov_ij I, and this noise_cov_ij bread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.errors import InputError

MOST_JOINT = 1500
"""With at most this many coefficients the covariance between outputs is also kept."""


@dataclass(frozen=True, slots=True, repr=False)
class Covariance:
    """Covariance of the weights W (d_y, d_phi).

    Attributes
    ----------
    kind
        ``unadjusted``, ``robust``, ``clustered`` or ``hac``.
    blocks
        Covariance of each output's row of W, (d_y, d_phi, d_phi).
    joint
        Covariance of all of W, its rows one after another, (d_y d_phi, d_y d_phi); None
        where that is too large to keep.
    clusters
        Number of clusters by column, for clustered errors.
    debiased
        Whether the small-sample correction is in.
    bandwidth
        Largest lag of a HAC covariance.
    effective
        Effective number of clusters of each coefficient, (d_y, d_phi).
    freedom
        Degrees of freedom of its t statistic, (d_y, d_phi), for clustered errors that are
        corrected for small samples.
    cr2
        Whether each cluster is corrected for its leverage.
    bekker
        Whether it allows for many instruments, as Bekker's does.
    """

    kind: str
    blocks: Floats
    joint: Floats | None = None
    clusters: tuple[tuple[str, int], ...] = ()
    debiased: bool = False
    bandwidth: int | None = None
    effective: Floats | None = None
    freedom: Floats | None = None
    cr2: bool = False
    bekker: bool = False

    def __repr__(self) -> str:
        return f"Covariance({self})"

    @property
    def se(self) -> Floats:
        """Standard errors, (d_y, d_phi); NaN where a two-way variance came out negative."""
        variance = np.diagonal(self.blocks, axis1=1, axis2=2)
        return np.sqrt(np.where(variance >= 0, variance, np.nan))

    def of(self, combinations: Floats) -> Floats:
        """Return the covariance (q, q) of combinations (q, d_y d_phi) of vec(W).

        vec(W) are the rows of W one after another.
        """
        covariance: Floats
        if self.joint is not None:
            covariance = combinations @ self.joint @ combinations.T
            return covariance
        d_y, d_phi = self.blocks.shape[:2]
        parts = combinations.reshape(len(combinations), d_y, d_phi)
        used = np.flatnonzero(np.any(parts != 0, axis=(0, 2)))
        if len(used) > 1:
            raise InputError(
                f"the covariance between outputs is not kept for {d_y} x {d_phi} weights; "
                "ask for it with StandardErrors(joint=True), or look at one output at a time"
            )
        rows = parts[:, used].reshape(len(combinations), -1)
        covariance = rows @ self.blocks[used].sum(axis=0) @ rows.T
        return covariance

    def plus(self, blocks: Floats) -> Covariance:
        """Return the covariance plus a matrix for each output, (d_y, d_phi, d_phi)."""
        joint = None
        if self.joint is not None:
            d_y, d_phi = blocks.shape[:2]
            whole = self.joint.reshape(d_y, d_phi, d_y, d_phi).copy()
            whole[range(d_y), :, range(d_y)] += blocks
            joint = whole.reshape(d_y * d_phi, -1)
        return replace(self, blocks=self.blocks + blocks, joint=joint)

    def scaled(self, factors: Floats) -> Covariance:
        """Return the covariance with the variance of each weight times its factor, (d_y, d_phi)."""
        root = np.sqrt(factors)
        blocks = self.blocks * root[:, :, None] * root[:, None, :]
        joint = None if self.joint is None else self.joint * np.outer(root.ravel(), root.ravel())
        return replace(self, blocks=blocks, joint=joint)

    def to_json(self) -> dict[str, Any]:
        """Describe the choice, not the matrix, with JSON values."""
        return {
            "se_kind": self.kind,
            "clusters": dict(self.clusters) or None,
            "debiased": self.debiased,
            "bandwidth": self.bandwidth,
            "cr2": self.cr2,
            "bekker": self.bekker,
            "effective_clusters": None if self.effective is None else self.effective.tolist(),
            "freedom": None if self.freedom is None else self.freedom.tolist(),
        }

    def __str__(self) -> str:
        """Return the choice in words, such as ``clustered by episode (50)``."""
        words = {
            "unadjusted": "unadjusted (homoskedastic)",
            "robust": "robust to heteroskedasticity",
            "clustered": "clustered by " + " and ".join(f"{c} ({k:,})" for c, k in self.clusters),
            "hac": f"HAC along episodes, {self.bandwidth} lags",
        }[self.kind]
        if self.effective is not None:
            words += f", effectively {float(np.min(self.effective)):.1f} or more"
        if self.cr2:
            return words + ", CR2"
        words += ", Bekker's for many instruments" if self.bekker else ""
        return words + (", small-sample corrected" if self.debiased else "")


def homoskedastic(noise_cov: Floats, bread: Floats) -> Covariance:
    """Return the covariance noise_cov_ij bread."""
    blocks = np.diag(noise_cov)[:, None, None] * bread
    small = len(noise_cov) * len(bread) <= MOST_JOINT
    joint = np.asarray(np.kron(noise_cov, bread), dtype=np.float64) if small else None
    return Covariance("unadjusted", blocks, joint)


def sandwich(influence: Floats, blocks: Floats, joint: Floats | None, n: int) -> Any:
    """Return L_j Omega_jj L_j^T / n (d_y, d_phi, d_phi), and the joint matrix if it is held.

    `influence` is (d_phi, r), or (d_y, d_phi, r) when it differs between outputs.
    """
    d_y, r = len(blocks), blocks.shape[-1]
    L = np.broadcast_to(influence, (d_y, *influence.shape[-2:]))
    small = np.empty((d_y, L.shape[1], L.shape[1]))
    for i in range(d_y):  # one by one: of hundreds of outputs, each of the arrays is gigabytes
        small[i] = L[i] @ blocks[i] @ L[i].T / n
    if joint is None:
        return small, None
    middle = joint.reshape(d_y, r, d_y, r)
    whole = np.einsum("iar,irjs,jbs->iajb", L, middle, L, optimize=True) / n
    size = d_y * L.shape[1]
    return small, whole.reshape(size, size)
