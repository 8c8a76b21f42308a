"""The intervals beside Wald's, for the methods that have some."""

from __future__ import annotations

from collections.abc import Mapping

from ivvi.diagnostics import Diagnostics
from ivvi.estimators import Estimate, Method
from ivvi.estimators.covariance.scores import Scored
from ivvi.fitting.summary import half_widths
from ivvi.moments import Moments
from ivvi.weak_iv.robust_intervals import RobustIntervals, robust_intervals

METHODS = ("exact", "gmm", "liml", "fuller", "sgda")
"""Methods whose effects are those that the instruments identify, neither shrunk nor mixed."""


def beside_wald(
    method: Method,
    moments: Moments,
    estimate: Estimate,
    diagnostics: Diagnostics,
    scored: Mapping[str, Scored],
) -> RobustIntervals:
    """Return the intervals that a weak instrument cannot spoil, or why there are none."""
    name = method.name
    if name == "least-squares":
        return RobustIntervals(reason="least squares does not use the instruments")
    if name.partition(":")[0] not in METHODS or getattr(method, "ridge", None):
        return RobustIntervals(reason=f"the effects that {name} estimates are shrunk or mixed")
    return robust_intervals(moments, estimate, diagnostics, scored, half_widths(estimate))
