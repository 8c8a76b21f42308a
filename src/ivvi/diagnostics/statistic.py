"""A test statistic with its null, its distribution and its p-value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ivvi.diagnostics.tails import chi2_tail, f_tail


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
        if len(self.df) == 2:
            return f_tail(self.value, *self.df)
        return chi2_tail(self.value, *self.df)

    def to_json(self) -> dict[str, Any]:
        """Describe the statistic with JSON values."""
        return {
            "value": self.value,
            "distribution": self.distribution,
            "p_value": self.p_value,
            "null": self.null,
        }
