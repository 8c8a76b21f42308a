"""How much any policy could earn in the model."""

from __future__ import annotations

from ivvi.planners.comparison import Bound
from ivvi.planners.problem import Rule
from ivvi.planners.trials import Trials


def upper_bound(trials: Trials, plan: Rule, grid: Rule | None) -> Bound | None:
    """Return a bound on the mean return of any policy in the trials, None where none is known."""
    return None
