"""Are the instruments valid together, and is there confounding at all?"""

from __future__ import annotations

import numpy as np

from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.strength import Partialled, residual
from ivvi.estimators.estimate import Estimate, Floats, Rows
from ivvi.estimators.exact import instrument_basis, orthonormal
from ivvi.moments import Moments


def sargan(moments: Moments, estimate: Estimate) -> tuple[Statistic, ...] | None:
    """Sargan's test of over-identification, one for each output: n R^2 of residual on psi.

    Chi-squared with rank(psi) - d_phi degrees of freedom under homoskedastic errors. None
    when the model is just identified or not identified.
    """
    rows = Rows.of(moments)
    basis = instrument_basis(rows)
    freedom = basis.shape[1] - rows.Phi.shape[1]
    if freedom <= 0 or not estimate.identified:
        return None
    rest = rows.Y - rows.Phi @ estimate.W[:, rows.phi_kept].T
    explained = np.sum((basis.T @ rest) ** 2, axis=0)
    values = moments.n * _ratio(explained, np.sum(rest**2, axis=0))
    null = "every instrument is valid, given that enough of them are"
    return tuple(Statistic(float(value), (freedom,), null) for value in values)


def wu_hausman(moments: Moments) -> tuple[Statistic, ...] | None:
    """Wu and Hausman's test, one for each output: do the actions need an instrument at all?

    The first stages' residuals are added to the least-squares regression of y on phi; if
    the actions are not confounded they explain nothing. None when nothing is endogenous or
    too little is identified to ask.
    """
    rows, parts = Rows.of(moments), Partialled.of(moments)
    Q = orthonormal(rows.Phi)
    added = orthonormal(np.column_stack([rows.Phi, residual(parts.basis, parts.X)]))
    q = added.shape[1] - Q.shape[1]
    freedom = moments.n - added.shape[1] - (moments.layout.constant is not None)
    if q < len(parts.names) or not q or freedom <= 0:
        return None
    total = np.sum(rows.Y**2, axis=0)
    before = total - np.sum((Q.T @ rows.Y) ** 2, axis=0)
    after = total - np.sum((added.T @ rows.Y) ** 2, axis=0)
    after = np.maximum(after, np.finfo(float).eps * total)  # a perfect fit is rounding error
    values = _ratio((before - after) / q, after / freedom)
    null = "the actions are not confounded (least squares would do)"
    return tuple(Statistic(float(value), (q, freedom), null) for value in values)


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Divide, taking 0 / 0 (an output that never varies) for 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)
