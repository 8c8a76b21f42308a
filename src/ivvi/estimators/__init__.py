"""From moments to W and its covariance: the saddle point, the k-class, GMM, least squares."""

from ivvi.estimators.covariance.standard_errors import StandardErrors
from ivvi.estimators.covariance.weight_covariance import Covariance
from ivvi.estimators.empirical_bayes import Shrunk
from ivvi.estimators.estimate import Estimate, Method
from ivvi.estimators.gmm import GMM
from ivvi.estimators.kclass import LIML, Fuller, KClass
from ivvi.estimators.penalised import Penalised
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.estimators.two_stage_least_squares import Exact, LeastSquares

__all__ = [
    "GMM",
    "LIML",
    "SGDA",
    "Covariance",
    "Estimate",
    "Exact",
    "Fuller",
    "KClass",
    "LeastSquares",
    "Method",
    "Penalised",
    "Shrunk",
    "StandardErrors",
]
