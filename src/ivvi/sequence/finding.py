"""One question asked of a log, with its answer and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ivvi.sequence.cluster_tests import LargestContrast


@dataclass(frozen=True, slots=True)
class Check:
    """One question asked of a log.

    Attributes
    ----------
    name
        A word for it.
    test
        The test, or None with a `reason`.
    level
        The p-value below which the check counts as failed.
    finding
        What was found, in words.
    advice
        What to do when it fails.
    reason
        Why the check does not apply.
    negligible
        Whether what was found is too small to matter, however sure it is.
    """

    name: str
    test: LargestContrast | None
    level: float
    finding: str = ""
    advice: str = ""
    reason: str = ""
    negligible: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether the log is free of what the check looks for; None where it cannot be asked."""
        if self.test is None:
            return None
        return self.negligible or self.test.p_value >= self.level

    def to_json(self) -> dict[str, Any]:
        """Describe the check with JSON values."""
        described: dict[str, Any] = {"passed": self.passed, "reason": self.reason or None}
        if self.test is not None:
            described |= self.test.statistic.to_json()
            described["compared"] = self.test.compared
            described["p_value_adjusted"] = self.test.p_value
            described["negligible"] = self.negligible
        return described | {
            "finding": self.finding or None,
            "advice": self.advice if self.passed is False else None,
        }
