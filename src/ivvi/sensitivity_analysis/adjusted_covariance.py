"""The uncertainty of W(E) when the instrument has the direct effects E.

The effects are removed, and y - E psi~ is regressed as y was (Conley, Hansen and Rossi, 2012). Row
i of W becomes W_i - L E_i, and its residual

    u_i(E) = u_i - E_i . q,   q = psi~ - L^T phi,

so that the variance of a coefficient is quadratic in E_i, whatever the standard errors assume.
It needs the joint variance of the scores of (u, q). That comes from the moments alone if errors are
unadjusted, else from the moments of single episodes or from one more pass over the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.estimators import Estimate, Exact
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import holds_clusters, score
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.whitening import whiten
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.logs import Log
from ivvi.sensitivity_analysis.violations import Exclusion

SCALED = (
    "{kind} standard errors need the rows to be recomputed under a direct effect: here they "
    "grow like unadjusted ones; pass the log (log=, --log), or fit with its episodes kept "
    "(episodes=True, --keep-episodes)"
)


@dataclass(frozen=True, slots=True)
class VarianceCurve:
    """The variance of a coefficient at size t of a violation, v0 + v1 t + v2 t^2."""

    v0: float
    v1: float
    v2: float

    def se(self, t: float) -> float:
        """Return the standard error at size t."""
        return float(np.sqrt(max(self.v0 + self.v1 * t + self.v2 * t**2, 0.0)))


@dataclass(frozen=True, eq=False, repr=False)
class Variances(Compact):
    """Variances of the coefficients of W at every violation.

    Attributes
    ----------
    exclusion
        The implications of the log for direct effects.
    middle
        Covariance of (u, q), (d_y + r, d_y + r), times the bread where errors are unadjusted;
        else the covariance of their scores, (d_y + r, k, d_y + r, k) for k coordinates of psi.
    estimate
        Two-stage least squares.
    note
        A note on the standard errors; empty where they are the fit's own.
    """

    exclusion: Exclusion
    middle: Floats
    estimate: Estimate
    note: str = ""

    @classmethod
    def of(
        cls, exclusion: Exclusion, errors: Resolved, episode: str | None, log: Log | None = None
    ) -> Variances:
        """Return the variances, from the rows of the log if it is given."""
        moments, estimate = exclusion.moments, Exact().solve(exclusion.moments)
        R = np.vstack([estimate.residual_map, _left_of_psi(exclusion)])
        has_clusters = holds_clusters(moments, errors, episode)
        if errors.kind != "unadjusted" and (log is not None or has_clusters):
            log = None if log is None else errors.prepared(log)
            scores = Score(R, whiten(moments), joint=True)
            joint = score({"": scores}, errors, moments, log)[""].joint()
            if joint is None:
                raise ValueError("the scores were not asked for together")
            k = whiten(moments).rank
            return cls(exclusion, joint.reshape(len(R), k, len(R), k), estimate)
        mean = R @ moments.mean
        second = R @ (moments.scatter / moments.weight) @ R.T + np.outer(mean, mean)
        note = "" if errors.kind == "unadjusted" else SCALED.format(kind=errors.kind)
        return cls(exclusion, second, estimate, note)

    def along(self, output: int, feature: int, direction: Floats) -> VarianceCurve:
        """Return the variance of W[output, feature] for direct effects t sigma G, G (r,).

        At t = 0 it is that of the model; the whole curve is scaled to that.
        """
        d_y = len(self.estimate.W)
        move = np.zeros((2, d_y + self.exclusion.rank))
        move[0, output], move[1, d_y:] = 1.0, -self.exclusion.noise[output] * direction
        L = self.estimate.influence[feature]
        if self.middle.ndim == 2:
            moved = move @ self.middle @ move.T
        else:
            moved = np.einsum("ia,arbs,jb,r,s->ij", move, self.middle, move, L, L, optimize=True)
        variance = float(standard_errors(self.exclusion.model)[output, feature]) ** 2
        scale = variance / moved[0, 0] if moved[0, 0] > 0 else 0.0
        return VarianceCurve(variance, float(2 * scale * moved[0, 1]), float(scale * moved[1, 1]))


def _left_of_psi(exclusion: Exclusion) -> Floats:
    """Return the map of v to q = psi~ - L^T phi, (r, p)."""
    design = exclusion.moments.design
    R = np.zeros((exclusion.rank, design.width))
    R[:, list(design.psi_columns)] = exclusion.space.of_psi(design).T
    R[:, list(design.phi_columns)] -= exclusion.influence.T
    return R


def standard_errors(model: Dynamics) -> Floats:
    """Return the standard errors of W, (d_y, d_phi); NaN where they are not known."""
    if model.bread.size == 0:
        return np.full(model.W.shape, np.nan)
    variance: Any
    if model.W_cov is None:
        variance = np.outer(np.diag(model.noise_cov), np.diag(model.bread))
    elif model.W_cov.ndim == 2:
        variance = np.diag(model.W_cov).reshape(model.W.shape)
    else:
        variance = np.diagonal(model.W_cov, axis1=1, axis2=2)
    se: Floats = np.sqrt(np.maximum(variance, 0.0))
    return se


def rows_of(source: ValueInputs) -> Log | None:
    """Return the log of a fit, if it can still be read."""
    log = source.fit.log if source.fit else None
    return log if log is not None and all(path.exists() for path in log.table.files) else None


def errors_of(source: ValueInputs) -> tuple[Resolved, str | None]:
    """Return the standard errors of a fit, and its column of episodes."""
    if source.fit is None:
        raise InputError("expected a fit or a saved model; found bare dynamics")
    return source.fit.errors, source.fit.roles.episode or "row"
