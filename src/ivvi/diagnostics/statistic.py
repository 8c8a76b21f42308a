"""A test statistic with its null, its distribution and its p-value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Result
from ivvi.diagnostics.tails_and_quantiles import chi2_tail, f_tail
from ivvi.errors import DataError

SINGULAR = 1e-12
"""A covariance with a smaller ratio of eigenvalues counts as singular."""


class SingularError(DataError):
    """A covariance cannot be inverted, so that the statistic that needs it does not exist."""


@dataclass(frozen=True, slots=True, repr=False)
class Statistic(Result):
    """One test.

    Attributes
    ----------
    value
        The statistic.
    df
        Degrees of freedom: (numerator, denominator) for F, (k,) for chi-squared.
    null
        The hypothesis that a small p-value rejects.
    """

    value: float
    df: tuple[int, ...]
    null: str

    @property
    def distribution(self) -> str:
        """Distribution under the null, such as ``F(2, 97)``."""
        inside = ", ".join(map(str, self.df))
        return f"F({inside})" if len(self.df) == 2 else f"chi2({inside})"

    @property
    def p_value(self) -> float:
        """Probability under the null of a value at least as large."""
        if len(self.df) == 2:
            return f_tail(self.value, *self.df)
        return chi2_tail(self.value, *self.df)

    def summary(self) -> str:
        """Return the statistic, its law, its p-value and the null in a line."""
        return f"{self.value:.4g}, p = {self.p_value:.4g} by {self.distribution}; null: {self.null}"

    def to_json(self) -> dict[str, Any]:
        """Describe the statistic with JSON values."""
        return {
            "value": self.value,
            "distribution": self.distribution,
            "df": list(self.df),
            "p_value": self.p_value,
            "null": self.null,
        }


def quadratic(g: Floats, covariance: Floats, what: str) -> float:
    """Return g^T covariance^-1 g, refusing a singular covariance of `what`."""
    scale = np.sqrt(np.diag(covariance).clip(min=0))
    if not (scale > 0).all():
        raise SingularError(
            f"the covariance of {what} has zero or negative variance in some direction (as "
            "can happen with few two-way clusters)"
        )
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    if values[0] <= SINGULAR * values[-1]:
        raise SingularError(
            f"the covariance of {what} is singular ({len(g)} moments): use more rows or clusters, "
            "or fewer instruments"
        )
    return float(np.sum((vectors.T @ (g / scale)) ** 2 / values))
