"""Is there confounding at all? If not, least squares suffices and is more precise.

The residuals of the first stages are the part of the actions that the instruments do not explain.
If they help to predict the outputs, given phi, the actions are confounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.diagnostics.first_stage import denominator, partial_out, residual
from ivvi.diagnostics.overidentification import dependent, noiseless, ratio
from ivvi.diagnostics.statistic import Statistic, quadratic
from ivvi.estimators import Estimate, LeastSquares
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.estimate import RANK_TOLERANCE, Rows, exactly_fitted, rounding_error
from ivvi.estimators.whitening import Whitened, orthonormal, whiten
from ivvi.moments import Moments, remembered

NULL = "the actions are not confounded (least squares would suffice)"


@dataclass(frozen=True, slots=True, repr=False)
class Augmented(Compact):
    """The regression of y on phi and the first stages' residuals.

    Attributes
    ----------
    space
        Coordinates of what the residuals add to phi, (p, q).
    gamma
        Coefficients on them, (d_y, q).
    noise
        Covariance of what is left, (d_y, d_y), divided by n.
    R
        Map of the rows v to what is left, (d_y, p).
    freedom
        n less the number of coefficients.
    """

    space: Whitened
    gamma: Floats
    noise: Floats
    R: Floats
    freedom: int

    def score(self, *, joint: bool = False) -> Score:
        """Return what to add up over the rows for a robust test."""
        return Score(self.R, self.space, joint)


@remembered
def augment(moments: Moments) -> Augmented | None:
    """Add the residuals; None when they add fewer columns than there are actions."""
    rows, partialled = Rows.of(moments), partial_out(moments)
    phi = whiten(moments, "phi")
    rest = residual(partialled.basis, partialled.X)
    scale = np.linalg.norm(rest, axis=0)
    if not len(scale) or (scale == 0).any():
        return None
    inside = phi.basis.T @ rest
    new, size, right = np.linalg.svd((rest - phi.basis @ inside) / scale, full_matrices=False)
    freedom = moments.n - phi.rank - len(scale) - moments.lost()
    if size[-1] < RANK_TOLERANCE or freedom <= 0:
        return None
    to_new = right.T / size / scale[:, None]
    maps = partialled.space.residual_map(moments, partialled.select).T
    if moments.design.constant is not None:
        maps[moments.design.constant] = 0.0  # the residuals have mean zero
    slopes = phi.to_white[:, phi.rank - len(inside) :]
    space = Whitened(phi.shift, (maps - slopes @ inside) @ to_new, new, 0)
    joint_space = Whitened(
        phi.shift, np.hstack([phi.to_white, space.to_white]), phi.basis, phi.rank
    )
    outputs = np.eye(moments.design.width)[list(moments.design.y_columns)]
    gamma = rows.Y.T @ new
    left = rows.Y - phi.basis @ (phi.basis.T @ rows.Y) - new @ gamma.T
    return Augmented(
        space, gamma, left.T @ left, joint_space.residual_map(moments, outputs), freedom
    )


def wu_hausman(moments: Moments) -> tuple[Statistic, ...] | None:
    """Wu and Hausman's test, one for each output: do the actions need an instrument at all?

    The F test of the first stages' residuals in the regression of y on phi and them. None
    when nothing is endogenous or too little is identified to ask.
    """
    augmented = augment(moments)
    if augmented is None:
        return None
    q = augmented.gamma.shape[1]
    values = _values(moments, augmented)
    return tuple(Statistic(float(value), (q, augmented.freedom), NULL) for value in values)


def _values(moments: Moments, augmented: Augmented) -> Floats:
    """Return Wu and Hausman's F of each output, (d_y,).

    Zero where phi alone fits exactly. Where only phi and the residuals together do, what they
    leave counts as the rounding error that it may be: confounding is then beyond doubt.
    """
    q, noise = augmented.gamma.shape[1], np.diag(augmented.noise)
    added = np.sum(augmented.gamma**2, axis=1)
    least = rounding_error(moments)
    left = np.where(exactly_fitted(moments, noise + added), 0.0, np.maximum(noise, least))
    return ratio(added / q, left / augmented.freedom)


def joint_wu_hausman(moments: Moments) -> Statistic | None:
    """The same for all outputs together, a Wald test: (n - k) tr(S^-1 gamma gamma^T)."""
    augmented = augment(moments)
    if augmented is None or dependent(moments, augmented.noise):
        return None
    value = augmented.freedom * float(
        np.trace(np.linalg.solve(augmented.noise, augmented.gamma @ augmented.gamma.T))
    )
    return Statistic(value, (augmented.gamma.size,), NULL)


def robust_wu_hausman(moments: Moments, scored: Scored) -> tuple[Statistic, ...] | None:
    """The same test under the standard errors asked for, one for each output."""
    augmented = augment(moments)
    if augmented is None:
        return None
    q = augmented.gamma.shape[1]
    df = (q, denominator(scored, augmented.freedom))
    omega = scored.blocks(moments.n - augmented.freedom - moments.lost())
    plain = _values(moments, augmented)
    values = (
        float(value) if exact else moments.n * quadratic(gamma, part, "the residuals' effects") / q
        for gamma, part, exact, value in zip(
            augmented.gamma, omega, noiseless(moments, omega), plain, strict=True
        )
    )
    return tuple(Statistic(value, df, NULL) for value in values)


def durbin(moments: Moments, estimate: Estimate) -> tuple[Statistic, ...] | None:
    """Durbin's test, one for each output: n times a difference of explained squares.

    What psi and phi explain of the least-squares residuals, less what psi explains of the
    two-stage ones, in units of the former; chi-squared with one degree an action.
    """
    rows, partialled = Rows.of(moments), partial_out(moments)
    plain = LeastSquares().solve(moments)
    if not estimate.identified or augment(moments) is None:
        return None
    e, u = (rows.Y - rows.Phi @ one.W[:, rows.phi_kept].T for one in (plain, estimate))
    joint_space = orthonormal(np.column_stack([rows.Psi, rows.Phi]))
    explained = np.sum((joint_space.T @ e) ** 2, axis=0) - np.sum(
        (partialled.space.basis.T @ u) ** 2, axis=0
    )
    total = np.sum(e**2, axis=0)
    values = moments.n * ratio(explained, np.where(exactly_fitted(moments, total), 0.0, total))
    return tuple(Statistic(float(value), (len(partialled.names),), NULL) for value in values)
