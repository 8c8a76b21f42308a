"""Was the outcome of a row recorded after its action? Then its next state is the wrong one.

A panel row often holds this week's price and this week's sales. Read as a state that the action
follows, sales look like something the price of their own row cannot have moved, and the effect
of a price is looked for in next week's. The instrument shows it: drawn for this row's action, it
says nothing about a state that was there before, given the row before. With r the residuals of
regressions on the row before (state, action, instrument, their squares), the score

    u_t = r(z_t) r(x_t)

has mean zero then. Its variance is the largest of those by row, by episode and by step, so that
neither a slow confounder nor a shock that all episodes share raises the alarm. An instrument that
was assigned by the state of its row has such a score too, and no harm in it: the rows cannot tell
the two apart, and the warning names both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi.diagnostics.distributions import f_tail
from ivvi.features.design import Floats
from ivvi.logs import Batch, Roles

LEVEL = 1e-3
"""The p-value, adjusted for the number of pairs of columns, below which there is a warning."""
MATTERS = 0.01
"""Share of a state's variance, given the row before, that its own instrument must explain."""
FEWEST_CLUSTERS = 4
FEWEST_ROWS = 100
MOST_ROWS = 20_000
"""Rows to look at: with these a share of `MATTERS` is 14 standard errors of independent rows."""


@dataclass(frozen=True, slots=True)
class OwnRow:
    """An instrument that explains the state of its own row, given the row before."""

    instrument: str
    state: str
    share: float
    p_value: float

    @property
    def warning(self) -> str:
        """What to know, and what to do."""
        return (
            f"{self.instrument} explains {self.share:.0%} of {self.state} in its own row, given "
            f"the row before (p = {self.p_value:.1g}): if it was assigned by {self.state}, all is "
            f"well; if {self.state} was recorded after the action of that row, it is an outcome "
            "and not a state: say --seen after (seen='after'), or name what follows the action "
            "with --next-state (next_state=), and as states what was known before it"
        )


def explained_in_own_row(head: Batch, roles: Roles) -> OwnRow | None:
    """Return the instrument that explains most of a state in its own row, if one does.

    Looks at the first transitions of a log whose next states are derived from the next rows.
    """
    if not roles.derived or head.episode is None or head.step is None:
        return None
    steps = _numbers(head.step)
    follows = np.flatnonzero((head.episode[1:] == head.episode[:-1]) & (np.diff(steps) == 1))
    follows = follows[:MOST_ROWS]
    if len(follows) < FEWEST_ROWS or (head.weight is not None and not head.weight.all()):
        return None
    before = np.column_stack([head.x[follows], head.a[follows], head.z[follows]])
    regressors = np.column_stack([np.ones(len(follows)), before, before**2])
    if len(follows) < 4 * regressors.shape[1]:
        return None
    basis = _basis(regressors)
    x, z = _left(basis, head.x[follows + 1]), _left(basis, head.z[follows + 1])
    groups = [_codes(head.episode[follows]), _codes(_moments(head, roles, steps)[follows])]
    explained = [
        OwnRow(roles.instrument[k], roles.state[s], *_test(z[:, k], x[:, s], groups))
        for k in range(z.shape[1])
        for s in range(x.shape[1])
        if np.linalg.norm(z[:, k]) > 0 and np.linalg.norm(x[:, s]) > 0
    ]
    sure = [
        one for one in explained if one.p_value * len(explained) < LEVEL and one.share >= MATTERS
    ]
    return max(sure, key=lambda one: one.share, default=None)


def _test(z: Floats, x: Floats, groups: list[NDArray[np.int64]]) -> tuple[float, float]:
    """Return the share of x that z explains, and the p-value of none."""
    u = z * x
    variance, freedom = float(u @ u), len(u) - 1
    for codes in groups:
        sums = np.bincount(codes, weights=u)
        if len(sums) >= FEWEST_CLUSTERS and float(sums @ sums) > variance:
            variance, freedom = float(sums @ sums), len(sums) - 1
    share = float(u.sum() ** 2 / ((z @ z) * (x @ x)))
    square = float(u.sum() ** 2) / variance
    centred = square / max(1 - square / (freedom + 1), 1e-9)  # the variance about the mean
    return share, f_tail(centred, 1, freedom)


def _basis(columns: Floats) -> Floats:
    scale = np.linalg.norm(columns, axis=0)
    left, size, _ = np.linalg.svd(columns / np.where(scale > 0, scale, 1.0), full_matrices=False)
    basis: Floats = left[:, size > 1e-7 * size[0]]
    return basis


def _left(basis: Floats, V: Floats) -> Floats:
    """Return what an orthonormal basis leaves of the columns of V, rounding errors as zeros."""
    rest = V - basis @ (basis.T @ V)
    nothing = np.linalg.norm(rest, axis=0) <= 1e-6 * np.linalg.norm(V, axis=0)
    return np.where(nothing, 0.0, rest)


def _moments(head: Batch, roles: Roles, steps: NDArray[Any]) -> NDArray[Any]:
    """Return what tells rows of one time: their dates, where these are read, else their steps."""
    if roles.dates in roles.cluster and len(head.clusters) == len(roles.cluster):
        return head.clusters[roles.cluster.index(str(roles.dates))]
    return steps


def _numbers(step: NDArray[np.generic]) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = np.asarray(step, dtype=np.float64)
    return numbers


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return codes
