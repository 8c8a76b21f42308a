"""Bekker's (1994) standard errors for LIML and Fuller: many weak instruments.

With u = y - X w, P the projection on psi, alpha = u' P u / u' u and X~ = X - u (u' X) / (u' u),

    H^-1 (sigma^2 [(1 - alpha)^2 X~' P X~ + alpha^2 X~' (I - P) X~]) H^-1,   H = X' P X - a X' X,

where a = 1 - 1 / k for the estimator's own k (Hansen, Hausman and Newey, 2008, without their terms
in third and fourth moments: errors are assumed homoskedastic and near normal). All of it follows
from the moments. The usual standard errors ignore that the fitted first stage is itself noisy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.estimators.covariance.weight_covariance import MOST_JOINT, Covariance
from ivvi.estimators.estimate import RANK_TOLERANCE, Estimate, Rows
from ivvi.moments import Moments


def with_bekker(estimate: Estimate, moments: Moments, ks: Floats) -> Estimate:
    """Return a k-class estimate with Bekker's covariance, `ks` (d_y,) being its k by output."""
    rows = Rows.of(moments, centred=False)
    scale = np.linalg.norm(rows.Phi, axis=0)
    X, sigma2 = rows.Phi / scale, np.diag(estimate.noise_cov)
    basis = _span(rows.Psi)
    blocks = np.empty((len(ks), len(scale), len(scale)))
    for j, k in enumerate(ks):
        u = rows.Y[:, j] - rows.Phi @ estimate.W[j]
        size = u @ u
        left = X - np.outer(u, u @ X) / size
        fitted, alpha = basis.T @ left, float(np.sum((basis.T @ u) ** 2) / size)
        inside, whole = fitted.T @ fitted, left.T @ left
        middle = (1 - alpha) ** 2 * inside + alpha**2 * (whole - inside)
        own = basis.T @ X
        H = own.T @ own - (1 - 1 / k) * (X.T @ X)
        half = np.linalg.solve(H, np.eye(len(scale))) / scale[:, None]
        blocks[j] = sigma2[j] * half @ middle @ half.T / moments.n
    joint = _joined(blocks, estimate.noise_cov)
    debiased = estimate.W_cov.debiased
    return replace(
        estimate, covariance=Covariance("unadjusted", blocks, joint, (), debiased, bekker=True)
    )


def _span(Psi: Floats) -> Floats:
    """Return an orthonormal basis of the columns."""
    size = np.linalg.norm(Psi, axis=0)
    left, values, _ = np.linalg.svd(Psi / np.where(size > 0, size, 1.0), full_matrices=False)
    span: Floats = left[:, values > RANK_TOLERANCE * values[0]]
    return span


def _joined(blocks: Floats, noise_cov: Floats) -> Floats | None:
    """Join the outputs by the correlation of their errors and the roots of their blocks."""
    d_y, d_phi = blocks.shape[:2]
    if d_y * d_phi > MOST_JOINT:
        return None
    values, vectors = np.linalg.eigh(blocks)
    roots = vectors * np.sqrt(values.clip(min=0))[:, None, :] @ vectors.transpose(0, 2, 1)
    spread = np.sqrt(np.diag(noise_cov))
    correlation = noise_cov / np.outer(spread, spread)
    whole = np.einsum("ij,iab,jcb->iajc", correlation, roots, roots)
    joint: Floats = whole.reshape(d_y * d_phi, d_y * d_phi)
    return joint
