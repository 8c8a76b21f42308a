"""Outputs that are exact functions of the features: an age, a ward, a clock.

What is left of them is rounding error, and so are the standard errors and the small
coefficients that come of it. Such outputs are recognised, and their rounding errors are set to
zero.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ivvi.estimators.covariance.covariance import Covariance
from ivvi.estimators.estimate import Estimate, exactly_fitted
from ivvi.features.design import Floats
from ivvi.moments import Moments

ROUNDING = 1e-7
"""What a feature adds to an output, in units of the output's size, that counts as nothing."""


def without_rounding(estimate: Estimate, moments: Moments) -> Estimate:
    """Return the estimate with outputs that it fits exactly named, without error."""
    if not np.isfinite(estimate.W).all():
        return estimate
    exact = exactly_fitted(moments, np.diag(estimate.noise_cov))
    if not exact.any():
        return estimate
    design = moments.design
    phi, y = list(design.phi_columns), list(design.y_columns)
    second = np.diag(moments.scatter) / moments.weight + moments.mean**2
    adds = np.abs(estimate.W) * np.sqrt(second[phi])
    nothing = adds <= ROUNDING * np.maximum(np.sqrt(second[y])[:, None], np.finfo(float).tiny)
    W = np.where(exact[:, None] & nothing, 0.0, estimate.W)
    return replace(
        estimate,
        W=W,
        covariance=_without(estimate.W_cov, exact),
        exact=tuple(name for name, one in zip(design.outputs, exact, strict=True) if one),
    )


def _without(W_cov: Covariance, exact: NDArray[np.bool_]) -> Covariance:
    """Return the covariance with none of the exact outputs."""
    blocks: Floats = np.where(exact[:, None, None], 0.0, W_cov.blocks)
    if W_cov.joint is None:
        return replace(W_cov, blocks=blocks)
    zero = np.repeat(exact, W_cov.blocks.shape[1])
    joint: Floats = np.where(zero[:, None] | zero, 0.0, W_cov.joint)
    return replace(W_cov, blocks=blocks, joint=joint)
