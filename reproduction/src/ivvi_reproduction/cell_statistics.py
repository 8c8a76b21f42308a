"""Figures of merit from the records of one experiment, by cell, with their spread."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi_reproduction.records import JobRecord

Key = tuple[str, str, str, str]
"""Variant, column, who, setting."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over logs, its standard deviation, and half of a 95% interval (Student's t)."""

    mean: float
    sd: float
    half: float
    logs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Summarise one value per log; None where there is none."""
        n = len(values)
        if n == 0:
            return None
        sd = float(np.std(values, ddof=1)) if n > 1 else math.nan
        return cls(float(np.mean(values)), sd, student(n) * sd / math.sqrt(n), n)


def student(n: int) -> float:
    """Return the 97.5% point of Student's t with n - 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(n - 1, 0.975)) if n > 1 else math.nan


class CellStatistics:
    """The records of one experiment by cell; logs in order of their seeds."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        self.cells: dict[Key, list[JobRecord]] = {}
        for record in records:
            key = (record["variant"], record["column"], record["who"], record["setting"])
            self.cells.setdefault(key, []).append(record)
        for records_of_cell in self.cells.values():
            records_of_cell.sort(key=lambda record: int(record["seed"]))

    def results(self, key: Key) -> list[dict[str, Any]]:
        """Return the results of a cell, one per log; none where it was not run."""
        return [record["result"] for record in self.cells.get(key, [])]

    def values(self, key: Key, of: str) -> list[Any]:
        """Return one part of the results of a cell, where it is known."""
        parts = (result.get(of) for result in self.results(key))
        return [value for value in parts if value is not None]

    def optimal(self, variant: str, column: str, of: str = "returns") -> np.ndarray | None:
        """Return the return of planning with the truth; None where it was not run."""
        values = [
            r
            for key in self.cells
            if key[:3] == (variant, column, "optimal")
            for r in self.values(key, of=of)
        ]
        return np.array(values[0]) if values else None

    def regrets(self, key: Key) -> list[float]:
        """Return the mean regret over episodes of each log that led to a policy."""
        best = self.optimal(key[0], key[1])
        if best is None:
            return []
        return [float(np.mean(best - np.array(r))) for r in self.values(key, of="returns")]

    def descent(self, key: Key) -> str:
        """Return how descent-ascent ended: one word, or each word with its count."""
        words: Counter[str] = Counter(self.values(key, of="status"))
        words["leads to no policy"] += sum(
            result.get("returns") is None and result.get("status") != "diverged"
            for result in self.results(key)
        )
        verbs = {"diverged": "diverges", "stalled": "stalls", "converged": "converges"}
        endings = [(verbs.get(word, str(word)), n) for word, n in words.most_common() if n]
        if len(endings) == 1:
            return endings[0][0]
        return ", ".join(f"{word} ({n})" for word, n in endings)

    def seconds(self, key: Key) -> list[float]:
        """Return the CPU seconds of the estimation of each log."""
        seconds = (record["seconds"].get("estimation") for record in self.cells.get(key, []))
        return [float(value) for value in seconds if value is not None]
