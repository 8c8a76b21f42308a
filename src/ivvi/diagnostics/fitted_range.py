"""Do fitted values stay where outcomes were?

Those of features that are too rich, or that the instruments move too little, do not: their
weights are large and cancel only on average.

Fitted values W phi(x, a) may leave the range of the outcome where confounding is strong, for
what the confounder did to the outcome then cancelled what the action did. That is no fault of
the features, and W is known well; so the warning asks for both, fitted values out of range and
an estimation error of theirs, E[phi' Cov(W_i) phi], that is no small part of the outcome's
variance. Where they leave the range by far and often, no such excuse is made.
"""

from __future__ import annotations

import numpy as np

from ivvi.estimators import Estimate
from ivvi.features.design import Floats
from ivvi.logs import Batch
from ivvi.moments import Moments

OFTEN, FAR_OFTEN = 0.01, 0.05
"""Shares of rows with a fitted value out of the outcome's range, and out by half of it."""
UNSURE = 0.1
"""Share of the outcome's variance that the error of fitted values may have."""


def leaves_range(estimate: Estimate, moments: Moments, head: Batch) -> str:
    """Return a warning about the worst output whose fitted values leave its range, or nothing."""
    if moments.design.is_raw or not np.isfinite(estimate.W).all() or not len(head):
        return ""  # of linear features there are none that are simpler
    fitted = estimate.design.phi(head.x, head.a) @ estimate.W.T
    low, high = head.y.min(axis=0), head.y.max(axis=0)
    reach = high - low
    out = np.mean((fitted < low - OFTEN * reach) | (fitted > high + OFTEN * reach), axis=0)
    far = np.mean((fitted < low - reach / 2) | (fitted > high + reach / 2), axis=0)
    unsure = estimation_share(estimate, moments)
    bad = (reach > 0) & (((out > OFTEN) & (unsure > UNSURE)) | (far > FAR_OFTEN))
    if not bad.any():
        return ""
    at = int(np.argmax(np.where(bad, out, -1.0)))
    y = moments.design.y_columns[at]
    ratio = estimate.noise_cov[at, at] * moments.weight / moments.scatter[y, y]
    return (
        f"the fitted values of {moments.design.outputs[at]} leave its range in {out[at]:.0%} of "
        f"the rows, with errors of {ratio:.2g} times its variance: the features are too rich for "
        "these instruments; use fewer or simpler ones, or a penalty (the method ridge)"
    )


def estimation_share(estimate: Estimate, moments: Moments) -> Floats:
    """Return E[phi' Cov(W_i) phi] / Var(y_i) for each output, (d_y,)."""
    phi, y = list(moments.design.phi_columns), list(moments.design.y_columns)
    mean = moments.mean[phi]
    D = moments.scatter[np.ix_(phi, phi)] / moments.weight + np.outer(mean, mean)
    total = np.diag(moments.scatter)[y] / moments.weight
    error = np.einsum("jk,ijk->i", D, estimate.W_cov.blocks)
    share: Floats = error / np.where(total > 0, total, 1.0)
    return share
