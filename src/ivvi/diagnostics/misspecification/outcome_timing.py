"""Was the outcome of a row recorded after its action? Then its next state is the wrong one.

A panel row often contains this week's price and this week's sales. Suppose that sales are read as a
state, known before the action. Then the price cannot have moved the sales of its own row, and its
effect is estimated on next week's sales. The instrument reveals it: drawn for this row's action, it
is unrelated to an earlier state, given the row before. With r the residuals of regressions on the
row before (state, action, instrument, their squares), the score

    u_t = r(z_t) r(x_t)

has mean zero then. This is tested twice. Within steps, z, x and the row before are centred at their
means at the step: this removes shocks that all episodes share, and three steps of many episodes are
enough. Between steps, a curved trend is removed and each step is one draw; if episodes share the
instrument, this is the only test. If the slope of x on z within steps differs from that between
steps, it is not z that moves x but something that moves both from step to step, such as a season
(`shared_trends`). Variation between steps is then no evidence. The variance is the largest about
the mean of those by row, episode, step, draw of the instrument (rows of a step with one value) and
path of it (episodes with the same values), so that neither a slow confounder nor the shocks of a
region raise the alarm. Groups of fewer than `FEWEST_CLUSTERS` are left out, and few long episodes
are cut into stretches: sums of few groups are all of one sign where z does explain x, and a
variance of theirs would hide it. An instrument that was assigned by the state of its row has such a
score too, and no harm in it: the rows cannot tell the two apart, and the warning names both.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.logs import Batch, Roles
from ivvi.logs.evenly_spaced_rows import spread

LEVEL = 1e-3
"""The p-value, adjusted for the number of pairs of columns, below which there is a warning."""
MATTERS = 0.01
"""Share of a state's variance, given the row before, that its own instrument must explain."""
FEWEST_CLUSTERS = 20
STRETCHES = 40
"""Number of stretches that a log of fewer episodes is cut into."""
APART = 3.0
"""Standard errors between two slopes from which on they differ."""
FEWEST_STEPS = 8
"""Steps that are enough to be compared with each other."""
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
            f"the row before (p = {self.p_value:.1g}): if it was assigned by {self.state}, this is "
            f"fine; if {self.state} was recorded after the action of that row, it is an outcome "
            "and not a state: use --seen after (seen='after'), or name as next states what "
            "follows the action (--next-state, next_state=), and as states what was known before it"
        )


def explained_in_own_row(head: Batch, roles: Roles) -> OwnRow | None:
    """Return the instrument that explains most of a state in its own row, or None.

    Looks at the first transitions of a log whose next states are derived from the next rows.
    """
    head = spread(head, MOST_ROWS) if roles.derived else head
    if not roles.derived or head.episode is None or head.step is None:
        return None
    steps = _numbers(head.step)
    follows = np.flatnonzero((head.episode[1:] == head.episode[:-1]) & (np.diff(steps) == 1))
    if len(follows) < FEWEST_ROWS or (head.weight is not None and not head.weight.all()):
        return None
    before = np.column_stack([head.x[follows], head.a[follows], head.z[follows]])
    regressors = np.column_stack([np.ones(len(follows)), before, before**2])
    if len(follows) < 4 * regressors.shape[1]:
        return None
    now = follows + 1
    moment = codes_of(row_times(head, roles, steps)[now])
    episode = head.episode[now]
    groups = [stretches(episode), *(codes_of(one[now]) for one in head.clusters)]
    draws = [draws_of(values, episode, moment) for values in head.z[now].T]
    tests = []
    for within in (True, False):
        if not within and moment.max() + 1 < FEWEST_STEPS:
            continue
        trend = np.column_stack([regressors, moment, moment**2.0])
        parts = (regressors if within else trend, head.x[now], head.z[now])
        basis, x, z = (_from_means(part, moment) if within else part for part in parts)
        basis = basis_of(basis)
        x, z = left_by(basis, x), left_by(basis, z)
        for k, s in itertools.product(range(z.shape[1]), range(x.shape[1])):
            sets = [*groups, *draws[k], moment]
            sets = [one for one in sets if one.max() + 1 >= FEWEST_CLUSTERS]
            sets = sets if within else [*sets, moment]
            lost = basis.shape[1] + within * moment.max()
            tests.append((k, s, _test(z[:, k], x[:, s], sets, lost)))
    by_pair = {(k, s): test for k, s, test in reversed(tests)}  # within, where z varies there
    explained = [
        OwnRow(roles.instrument[k], roles.state[s], test.share, test.p_value)
        for k, s, test in tests
        if test is not None and not test.differs(by_pair[k, s])
    ]
    sure = [
        one for one in explained if one.p_value * len(explained) < LEVEL and one.share >= MATTERS
    ]
    return max(sure, key=lambda one: one.share, default=None)


@dataclass(frozen=True, slots=True)
class _Slope:
    """The share of x that z explains, the p-value of none, the slope and its variance."""

    share: float
    p_value: float
    slope: float
    variance: float

    def differs(self, other: _Slope | None) -> bool:
        """Whether the slopes differ by more than their errors."""
        if other is None or other is self:
            return False
        return (self.slope - other.slope) ** 2 > APART**2 * (self.variance + other.variance)


def _test(z: Floats, x: Floats, groups: list[Ints], lost: int) -> _Slope | None:
    """Return the slope of x on z; None if nothing is left of one of them.

    `lost` are the degrees of freedom of what both were regressed on.
    """
    if not (z.any() and x.any()):
        return None
    u, left = z * x, 1 - lost / len(z)
    total, variance, freedom = float(u.sum()), len(u) * float(np.var(u)), len(u) - 1
    for codes in groups:
        sums = np.bincount(codes, weights=u)
        spread = len(sums) * float(np.var(sums, ddof=1))
        if spread > variance:
            variance, freedom = spread, len(sums) - 1
    share, size = total**2 / float((z @ z) * (x @ x)), float(z @ z)
    p_value = f_tail(left * total**2 / max(variance, 1e-300), 1, freedom)
    return _Slope(share, p_value, total / size, variance / size**2)


def _from_means(columns: Floats, codes: Ints) -> Floats:
    """Return columns (n, d) less their means in each group, rounding errors as zeros."""
    count = np.bincount(codes)
    means = np.column_stack([np.bincount(codes, weights=column) / count for column in columns.T])
    rest = columns - means[codes]
    nothing = np.linalg.norm(rest, axis=0) <= 1e-6 * np.linalg.norm(columns, axis=0)
    return np.where(nothing, 0.0, rest)


def draws_of(z: Floats, episode: NDArray[Any], moment: Ints) -> tuple[Ints, Ints]:
    """Return the groups of rows of a step with one z, and of episodes with one path of z."""
    value, unit = codes_of(z), codes_of(episode)
    at_step = np.random.default_rng(0).normal(size=moment.max() + 1)[moment]
    path = np.bincount(unit, weights=(1 + value) * at_step)  # alike only where all values are
    return codes_of(moment * (value.max() + 1) + value), codes_of(path)[unit]


def stretches(episode: NDArray[Any]) -> Ints:
    """Number the episodes or, where they are few, stretches of them."""
    codes = codes_of(episode)
    if codes.max() + 1 >= FEWEST_CLUSTERS:
        return codes
    length = -(-len(codes) // STRETCHES)
    return codes_of(codes * len(codes) + np.arange(len(codes)) // length)


def basis_of(columns: Floats) -> Floats:
    """Return an orthonormal basis of the span of columns (n, d)."""
    scale = np.linalg.norm(columns, axis=0)
    left, size, _ = np.linalg.svd(columns / np.where(scale > 0, scale, 1.0), full_matrices=False)
    basis: Floats = left[:, size > 1e-7 * size[0]]
    return basis


def left_by(basis: Floats, columns: Floats) -> Floats:
    """Return the residuals of columns (n, d) on an orthonormal basis, rounding errors as zeros."""
    rest = columns - basis @ (basis.T @ columns)
    nothing = np.linalg.norm(rest, axis=0) <= 1e-6 * np.linalg.norm(columns, axis=0)
    return np.where(nothing, 0.0, rest)


def row_times(head: Batch, roles: Roles, steps: NDArray[Any]) -> NDArray[Any]:
    """Return the time of each row: its date, where dates are read, or else its step."""
    if roles.dates in roles.cluster and len(head.clusters) == len(roles.cluster):
        return head.clusters[roles.cluster.index(str(roles.dates))]
    return steps


def _numbers(step: NDArray[np.generic]) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = np.asarray(step, dtype=np.float64)
    return numbers


def codes_of(values: NDArray[Any]) -> Ints:
    """Number values from 0 on."""
    codes: Ints = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return codes
