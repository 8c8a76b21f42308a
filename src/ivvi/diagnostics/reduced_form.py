"""The reduced form: the regression of the outputs on the instruments themselves.

    y = Pi psi(x, z) + noise,   Pi = C B^-1

It needs no assumption about the action. An instrument that does not move the output here is not
informative about the effect of the action either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.weight_covariance import sandwich
from ivvi.estimators.whitening import whiten
from ivvi.moments import Moments

FREE = 1e-6
"""A feature with a larger share in collinear directions is not identified."""


@dataclass(frozen=True, slots=True, repr=False)
class ReducedForm(Compact):
    """Coefficients of psi.

    Attributes
    ----------
    names
        Features of psi, (d_psi,).
    excluded
        Those of them that phi does not have: the instruments.
    W, se
        Coefficients and standard errors, (d_y, d_psi); NaN where psi is collinear.
    """

    names: tuple[str, ...]
    excluded: tuple[str, ...]
    W: Floats
    se: Floats

    def to_json(self) -> dict[str, Any]:
        """Describe the reduced form with JSON values, null for what is not identified."""
        values = {
            name: [[float(v) if np.isfinite(v) else None for v in row] for row in matrix]
            for name, matrix in (("W", self.W), ("se", self.se))
        }
        return {"psi": list(self.names), "instruments": list(self.excluded), **values}


def reduced_form_score(moments: Moments, errors: Resolved) -> Score | None:
    """Return what to add up over the rows for its variance; None if there are too few rows.

    Independent rows need no more than the products with psi~ mapped to one coordinate each.
    """
    space = whiten(moments)
    if moments.n <= space.rank + moments.lost():
        return None
    R = space.residual_map(moments, _outputs(moments))
    if errors.kind != "robust":
        return Score(R, space)
    return Score(
        R, replace(space, to_white=space.to_white @ space.of_psi(moments.design).T), diagonal=True
    )


def reduced_form(moments: Moments, errors: Resolved, scored: Scored | None) -> ReducedForm | None:
    """Regress y on psi, with the standard errors asked for; None if there are too few rows."""
    design, space, n = moments.design, whiten(moments), moments.n
    if n <= space.rank + moments.lost():
        return None
    of_psi, select = space.of_psi(design), _outputs(moments)
    means = space.means(moments, select)
    if scored is None:
        R = space.residual_map(moments, select)
        noise = np.diag(R @ moments.second @ R.T).clip(min=0)
        few = n / (n - space.rank - moments.lost()) if errors.requested.debiased else 1.0
        variance = few * noise[:, None] * np.sum(of_psi * of_psi, axis=1) / n
    else:
        omega = scored.blocks(space.rank if errors.debiased else None)
        if errors.kind == "robust":
            variance = omega / n
        else:
            variance = np.diagonal(sandwich(of_psi, omega, None, n)[0], axis1=1, axis2=2)
    se = np.sqrt(np.where(variance >= 0, variance, np.nan))
    se[:, _free(moments, of_psi)] = np.nan
    shared = {design.names[c] for c in design.shared}
    excluded = tuple(name for name in design.psi_names if name not in shared)
    return ReducedForm(design.psi_names, excluded, means @ of_psi.T, se)


def _outputs(moments: Moments) -> Floats:
    """Select y from the rows v, (d_y, p)."""
    selected: Floats = np.eye(moments.design.width)[list(moments.design.y_columns)]
    return selected


def _free(moments: Moments, of_psi: Floats) -> Any:
    """Return which coefficients collinear features of psi leave open, (d_psi,)."""
    psi = list(moments.design.psi_columns)
    spread = np.sqrt(np.diag(moments.second)[psi])
    scaled = of_psi * np.where(spread > 0, spread, 1.0)[:, None]
    left, size, _ = np.linalg.svd(scaled, full_matrices=False)
    span = left[:, size > FREE * size[0]]
    return 1 - np.sum(span**2, axis=1) > FREE
