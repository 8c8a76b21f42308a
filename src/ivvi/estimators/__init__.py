"""From moments to W: the exact saddle point, and the confounded baseline."""

from ivvi.estimators.estimate import Estimate, Method
from ivvi.estimators.exact import Exact
from ivvi.estimators.least_squares import LeastSquares

__all__ = ["Estimate", "Exact", "LeastSquares", "Method"]
