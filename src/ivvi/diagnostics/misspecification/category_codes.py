"""Is a whole-number state an amount, or the code of a category that was read as an amount?

A hospital's number is not an amount: linear features give the fifth hospital five times the effect
of the first. The rows reveal a code if the mean of an outcome or an action, given the other states
and the instruments, differs between the numbers in a way that no line fits. With e the residuals of
a regression on [1, x, z] and D the indicators of all values but two, less their regression on the
same, the scores of clusters g,

    s_g = sum of D_i e_i over the rows i of g,

have mean zero if the mean is linear in the number; with S their sum, S' (sum_g s_g s_g')^-1 S is
compared with Hotelling's law. Counts, ages and ordered scores are amounts: the line must also miss
a good part of the variation between their means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.logs import Batch, Roles
from ivvi.logs.evenly_spaced_rows import spread

LEVEL = 1e-4
"""The p-value, adjusted for the number of pairs of columns, below which there is a warning."""
MISSED = 0.25
"""Share of the variation between the numbers' means that a line must miss."""
MATTERS = 0.01
"""Share of the residual variance that this must be."""
FEWEST_VALUES, MOST_VALUES = 3, 20
FEWEST_ROWS, MOST_ROWS = 100, 10_000
ROWS_PER_VALUE = 5
CLUSTERS_TO_SPARE = 10
"""Number of clusters that the test needs beyond the number of indicators."""
MOST_REGRESSORS = 200


@dataclass(frozen=True, slots=True)
class CategoryCode:
    """A state of whole numbers in which the mean of another column is not linear."""

    state: str
    values: int
    of: str
    p_value: float

    @property
    def warning(self) -> str:
        """What to know, and what to do."""
        return (
            f"{self.state} has {self.values} whole-number values, and the mean of {self.of} is far "
            f"from linear in them (p = {self.p_value:.1g}): if they are codes and not amounts, use "
            f"--categorical {self.state} (categorical={self.state!r})"
        )


def category_codes(head: Batch, roles: Roles) -> list[CategoryCode]:
    """Return the states among the first rows that seem to be codes, each with what shows it."""
    coded = {name for c in roles.categories for name in c.names}
    rows = spread(head, MOST_ROWS)
    code_like = {
        name: x
        for name, x in zip(roles.state, rows.x.T, strict=True)
        if name not in coded and _is_code_like(x)
    }
    if not code_like or (rows.weight is not None and not rows.weight.all()):
        return []
    base = np.column_stack([np.ones(len(rows)), rows.x, rows.z])
    if len(rows) < FEWEST_ROWS or base.shape[1] > min(MOST_REGRESSORS, len(rows) / 2):
        return []
    others = np.column_stack([rows.y, rows.a])
    names = (*roles.outputs, *roles.action)
    groups = _groups(rows)
    codes = []
    for name, x in code_like.items():
        p_values = _lack_of_fit(x, base, others, groups) * len(code_like)
        at = int(np.argmin(p_values))
        if p_values[at] < LEVEL:
            codes.append(CategoryCode(name, len(np.unique(x)), names[at], float(p_values[at])))
    return codes


def _groups(rows: Batch) -> np.ndarray:
    """Number the episodes of rows, or the clusters that hold whole ones, (n,)."""
    groups = np.arange(len(rows)) if rows.episode is None else rows.episode
    first = np.unique(groups, return_index=True, return_inverse=True)[1:]
    for codes in rows.clusters:
        if np.array_equal(codes[first[0]][first[1]], codes):  # no episode reaches over two
            groups = codes
    return np.asarray(np.unique(groups, return_inverse=True)[1])


def _is_code_like(x: Floats) -> bool:
    """Return whether a column holds a few whole numbers, each several times."""
    if not (x == np.round(x)).all():
        return False
    counts = np.unique(x, return_counts=True)[1]
    return FEWEST_VALUES <= len(counts) <= MOST_VALUES and bool(counts.min() >= ROWS_PER_VALUE)


def _lack_of_fit(x: Floats, base: Floats, others: Floats, groups: np.ndarray) -> Floats:
    """Return p-values for the columns of `others`, (m,); one where what the line misses is small.

    `base` are the regressors, the number `x` itself among them.
    """
    place = np.unique(x, return_inverse=True)[1]
    levels = np.eye(int(place.max()) + 1)[place][:, 1:]
    rest = base[:, [j for j in range(base.shape[1]) if not np.array_equal(base[:, j], x)]]
    between = _explained(rest, levels, others)
    missed, total = between - _explained(rest, x[:, None], others), _left(rest, others)
    D, noise = (_residuals(base, columns) for columns in (levels[:, :-1], others))
    q, count = D.shape[1], int(groups.max()) + 1
    p_values = np.ones(noise.shape[1])
    if count < q + CLUSTERS_TO_SPARE:
        return p_values
    for j in np.flatnonzero((missed > MATTERS * total) & (missed > MISSED * between)):
        scores = np.zeros((count, q))
        np.add.at(scores, groups, D * noise[:, [j]])
        S = scores.sum(axis=0)
        wald = float(S @ np.linalg.lstsq(scores.T @ scores, S, rcond=None)[0])
        p_values[j] = f_tail(wald * (count - q) / (q * max(count - wald, 1e-12)), q, count - q)
    return np.asarray(np.minimum(p_values * noise.shape[1], 1.0))


def _residuals(base: Floats, columns: Floats) -> Floats:
    span = np.linalg.qr(base)[0]
    residuals: Floats = columns - span @ (span.T @ columns)
    return residuals


def _left(base: Floats, columns: Floats) -> Floats:
    """Sums of squares that a regression on `base` leaves, (m,)."""
    left: Floats = np.sum(_residuals(base, columns) ** 2, axis=0)
    return left


def _explained(base: Floats, more: Floats, columns: Floats) -> Floats:
    """Sums of squares that `more` regressors explain beyond `base`, (m,)."""
    return _left(base, columns) - _left(np.column_stack([base, more]), columns)
