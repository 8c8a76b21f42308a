"""Ordinary regression, the baseline that the confounder misleads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ivvi._io.checkpoint import Checkpoint
from ivvi.estimators.estimate import Estimate, Rows, check_ridge, solve_rows
from ivvi.estimators.whitening import whiten
from ivvi.logs import Log
from ivvi.moments import Moments


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """Regression of y on phi(x, a), the paper's baseline: it ignores the instrument.

    Where something unrecorded moved both the action and the outcome its estimate is
    biased, often in sign, and its standard errors are about the wrong number.

    Parameters
    ----------
    ridge
        As for `Exact`.
    """

    ridge: float = 0.0

    def __post_init__(self) -> None:
        check_ridge(self.ridge)

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "least-squares"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        rows = Rows.of(moments)
        basis = whiten(moments, "phi").basis
        return replace(solve_rows(moments, rows, basis, ridge=self.ridge), instruments="phi")
