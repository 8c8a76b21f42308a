"""Least squares of a vector of outputs: with the instruments (two-stage), and without.

`Exact` is the closed form of the saddle point; `LeastSquares` is the regression that confounding
biases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ivvi._io.checkpoint import Checkpoint
from ivvi.estimators.estimate import Estimate, Rows, check_ridge, solve_rows
from ivvi.estimators.whitening import whiten
from ivvi.logs import Log
from ivvi.moments import Moments, remembered


@dataclass(frozen=True, slots=True)
class Exact:
    """The unique solution of min_W max_K L(W, K), eq. (3.6) of the paper:

        W_sad = C B^-1 A (A^T B^-1 A)^-1.

    Where B is singular its pseudo-inverse is used (collinear but sufficient instruments
    change nothing); where A has not full column rank the solution of minimum norm is
    returned and `Estimate.null` holds the directions of W that are not identified.

    Parameters
    ----------
    ridge
        Penalty on the squared coefficients in units of the features' variances.
    """

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = True
    one_solution: ClassVar[bool] = True
    uses_instruments: ClassVar[bool] = True

    ridge: float = 0.0

    def __post_init__(self) -> None:
        check_ridge(self.ridge)

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "exact"

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W from moments."""
        return two_stage(moments, self.ridge)


@remembered
def two_stage(moments: Moments, ridge: float) -> Estimate:
    """Solve by two-stage least squares, once for the same moments."""
    return solve_rows(moments, Rows.of(moments), whiten(moments).basis, ridge=ridge)


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """Regression of y on phi(x, a), the paper's baseline: it ignores the instrument.

    Where something unrecorded moved both the action and the outcome its estimate is biased, often
    with the wrong sign, and its standard errors describe the wrong number.

    Parameters
    ----------
    ridge
        As for `Exact`.
    """

    needs_rows: ClassVar[bool] = False
    has_robust_intervals: ClassVar[bool] = False
    one_solution: ClassVar[bool] = False
    uses_instruments: ClassVar[bool] = False

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
        return regression(moments, self.ridge)


@remembered
def regression(moments: Moments, ridge: float) -> Estimate:
    """Solve by least squares, once for the same moments."""
    basis = whiten(moments, "phi").basis
    return replace(solve_rows(moments, Rows.of(moments), basis, ridge=ridge), instruments="phi")
