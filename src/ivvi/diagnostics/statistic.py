"""A test statistic with its null, its distribution and its p-value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statistic:
    """One test.

    Attributes
    ----------
    value
        The statistic.
    df
        Degrees of freedom: (numerator, denominator) for F, (k,) for chi-squared.
    null
        The hypothesis that a small p-value speaks against.
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
        from scipy import special  # slow to import, and only p-values need it

        if len(self.df) == 2:
            return float(special.fdtrc(*self.df, self.value))
        return float(special.chdtrc(self.df[0], self.value))

    def to_json(self) -> dict[str, Any]:
        """Describe the statistic with JSON values."""
        return {
            "value": self.value,
            "distribution": self.distribution,
            "p_value": self.p_value,
            "null": self.null,
        }
