"""What the first rows of a log warn of, once the estimate is known."""

from __future__ import annotations

from ivvi.diagnostics.fitted_range import leaves_range
from ivvi.diagnostics.timing import explained_in_own_row
from ivvi.estimators import Estimate
from ivvi.logs import Batch, Roles
from ivvi.moments import Moments


def notes_on(head: Batch, roles: Roles, estimate: Estimate, moments: Moments) -> tuple[str, ...]:
    """Return warnings: an outcome taken for a state, fitted values out of range."""
    own = explained_in_own_row(head, roles)
    found = (own.warning if own else "", leaves_range(estimate, moments, head))
    return tuple(text for text in found if text)
