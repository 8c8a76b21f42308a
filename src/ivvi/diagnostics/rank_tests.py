"""Are the instruments strong enough together, whatever the errors look like?

Kleibergen and Paap's rank test for any number of endogenous features, and the effective F
of Montiel Olea and Pflueger for one. Both work on the first stages Pi = E[x psi~^T] in
whitened coordinates and on Omega, the variance of n^1/2 vec(Pi_hat).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.first_stage import partial_out
from ivvi.diagnostics.statistic import SINGULAR, SingularError, Statistic, quadratic
from ivvi.diagnostics.tails_and_quantiles import noncentral_quantile, noncentral_tail
from ivvi.estimators.covariance.scores import Scored
from ivvi.moments import Moments

BIASES = (0.05, 0.10, 0.20, 0.30)
"""Shares of the worst-case bias for which critical values are given."""


@dataclass(frozen=True, slots=True)
class RankTest:
    """A test that the first stages have full rank.

    Attributes
    ----------
    wald
        The statistic rk, chi-squared with q - m + 1 degrees of freedom.
    f
        rk / q, corrected for small samples: comparable with Stock and Yogo's values.
    """

    wald: Statistic
    f: float

    def to_json(self) -> dict[str, Any]:
        """Describe the test with JSON values."""
        return {"f": self.f, **self.wald.to_json()}


@dataclass(frozen=True, slots=True)
class EffectiveF:
    """Montiel Olea and Pflueger's effective F for one endogenous feature.

    Attributes
    ----------
    value
        n pi^T pi / tr(Omega).
    dimension
        K_eff, the degrees of freedom of its approximate distribution for a bias of 10%.
    critical
        Critical values of a 5% test, for each of `BIASES`.
    p_value
        Of the null that the bias may exceed 10% of its worst case.
    """

    value: float
    dimension: float
    critical: tuple[float, ...]
    p_value: float
    null: str = "the bias of two-stage least squares may exceed 10% of its worst case"

    @property
    def distribution(self) -> str:
        """Distribution at the edge of the null."""
        k = self.dimension
        return f"noncentral chi2({k:.3g}, {10 * k:.3g}) / {k:.3g} (Patnaik)"

    def to_json(self) -> dict[str, Any]:
        """Describe the statistic with JSON values."""
        return {
            "value": self.value,
            "null": self.null,
            "distribution": self.distribution,
            "df": [self.dimension],
            "p_value": self.p_value,
            "critical_values": {
                f"{b:.0%}": value for b, value in zip(BIASES, self.critical, strict=True)
            },
        }


def cragg_donald_test(value: float, moments: Moments) -> Statistic:
    """Return the test of full rank that Cragg and Donald's F is, under homoskedastic errors."""
    partialled = partial_out(moments)
    q, m = partialled.count, len(partialled.names)
    return Statistic(value * q * moments.n / partialled.freedom, (q - m + 1,), _null(m))


def kleibergen_paap(moments: Moments, scored: Scored) -> RankTest:
    """Kleibergen and Paap's rk test that the first-stage matrix has full rank m."""
    partialled = partial_out(moments)
    q, m = partialled.count, len(partialled.names)
    omega = scored.joint()
    if omega is None:
        raise ValueError("the rank test needs the joint variance of the first stages")
    rest = partialled.X - partialled.basis @ (partialled.basis.T @ partialled.X)
    Pi = partialled.space.excluded.means(moments, partialled.select)
    value = moments.n * rank_statistic(Pi, omega, rest.T @ rest)
    clusters = [count for count in scored.clusters if count is not None]
    freedom = moments.n - partialled.space.rank - scored.lost
    correction = freedom / moments.n
    if clusters:
        few = min(clusters)
        correction = freedom / (moments.n - 1) * (few - 1) / few
    return RankTest(Statistic(value, (q - m + 1,), _null(m)), value * correction / q)


def rank_statistic(Pi: Floats, omega: Floats, units: Floats) -> float:
    """Return how far Pi (m, q) is from rank m - 1, given the variance `omega` of vec(Pi).

    With Theta = Pi~^T in units of the covariance `units` (m, m) and U S V^T its singular
    values, lambda = U_2^T Theta v_m, where U_2 leaves out the first m - 1 left vectors and
    v_m is the last right one; the statistic is lambda^T Var(lambda)^-1 lambda.
    """
    last = len(Pi) - 1
    scale = np.linalg.inv(np.linalg.cholesky(units))
    left, _, right = np.linalg.svd((scale @ Pi).T)
    combine = np.kron(right[last] @ scale, left[:, last:].T)  # (q - m + 1, m q)
    return quadratic(combine @ Pi.ravel(), combine @ omega @ combine.T, "the first stages")


def effective_f(moments: Moments, scored: Scored | None = None) -> EffectiveF:
    """Montiel Olea and Pflueger's F (2013) for one endogenous feature.

    Without `scored`, under homoskedastic errors, it is the partial F. The critical values
    are those of their simplified procedure: the worst-case bias is bounded by one, and the
    weighted sum of noncentral chi-squareds is matched by one with K_eff degrees of freedom
    (Patnaik).
    """
    partialled = partial_out(moments)
    pi = partialled.space.excluded.means(moments, partialled.select)[0]
    if scored is None:
        rest = partialled.X - partialled.basis @ (partialled.basis.T @ partialled.X)
        noise = float(np.sum(rest**2)) * moments.n / partialled.freedom
        omega = noise * np.eye(partialled.count)
    else:
        omega = scored.blocks(partialled.space.rank)[0]
    trace, sizes = float(np.trace(omega)), np.linalg.eigvalsh(omega)
    if sizes[0] < -SINGULAR * abs(sizes[-1]):
        raise SingularError(
            "the two-way covariance of the first stage is not positive definite; use more clusters"
        )
    value = moments.n * float(pi @ pi) / trace
    largest, square = float(sizes[-1]), float(np.sum(omega**2))

    def dimension(x: float) -> float:
        return trace**2 * (1 + 2 * x) / (square + 2 * x * trace * largest)

    critical = []
    for bias in BIASES:
        k = dimension(1 / bias)
        critical.append(noncentral_quantile(0.95, k, k / bias) / k)
    k = dimension(10.0)
    return EffectiveF(value, k, tuple(critical), noncentral_tail(value * k, k, 10 * k))


def _null(m: int) -> str:
    moved = "is not moved by the instruments"
    if m == 1:
        return f"the endogenous feature {moved}"
    return f"some combination of the {m} endogenous features {moved}"
