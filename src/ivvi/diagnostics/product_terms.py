"""Products of columns that linear features lack: of states, instruments, and two actions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, zip_longest

import numpy as np

from ivvi.features.design import Floats
from ivvi.logs import Batch, Roles

MOST_TERMS = 120
"""Terms to look at."""
ROUNDING = 1e-9
CUT, QUANTILE_ROWS = 0.025, 1024
"""Share of rows beyond the outer quantiles, on either side, and rows that tell these."""


@dataclass(frozen=True, slots=True)
class Term:
    """Something that a linear fit may leave out: its `columns`, and what it `means`."""

    columns: tuple[str, ...]
    means: str


_Product = tuple[Term, Floats, Floats]
"""A term, and the two columns that it is the product of."""
Terms = tuple[list[Term], Floats]
"""Terms and their values, (c, n)."""


def product_terms(rows: Batch, roles: Roles) -> Terms:
    """Return products by their use: bends, effects that vary, states that work together.

    Of too many pairs of a state and an instrument those come first in which each comes once, and
    every use has its share of the terms that are looked at.
    """
    x, z, (states, instruments) = cut(rows.x), cut(rows.z), (roles.state, roles.instrument)
    terms: list[_Product] = []
    for means, names, columns in (("bends", states, x), ("dose", instruments, z)):
        for name, values in zip(names, columns, strict=True):
            if not _has_two_values(values):
                terms.append((Term((name,), means), values, values))
    several = max(len(x), len(z))
    pairs = [(i % several, (i + by) % several) for by in range(several) for i in range(several)]
    pairs = [(i, j) for i, j in pairs if i < len(x) and j < len(z)][:MOST_TERMS]
    varies = [(Term((states[i], instruments[j]), "varies"), x[i], z[j]) for i, j in pairs]
    together = [
        (Term((states[i], states[j]), "together"), x[i], x[j])
        for i, j in combinations(range(len(x)), 2)
    ]
    once, twice = (
        [
            (Term((states[i], instruments[j]), "turns"), turned[i], z[j])
            for i, j in pairs
            if not _has_two_values(x[i])
        ]
        for turned in _turned(rows.x)
    )
    uses = (varies, _joint_terms(rows, roles), together, once, twice)
    terms += [one for row in zip_longest(*uses) for one in row if one is not None]
    Q = np.empty((min(len(terms), MOST_TERMS), len(rows)))
    for row, (_, one, other) in zip(Q, terms, strict=False):
        np.multiply(one, other, out=row)
    return [term for term, _, _ in terms[:MOST_TERMS]], Q


def _joint_terms(rows: Batch, roles: Roles) -> list[_Product]:
    """Return products of two actions, each as the instruments tell it: do they work together?

    Indicators of one category have none, as they exclude each other.
    """
    of_state, z = np.column_stack([np.ones(len(rows)), cut(rows.x).T]), cut(rows.z).T
    beside = z - of_state @ np.linalg.lstsq(of_state, z, rcond=ROUNDING)[0]
    told = cut(z @ np.linalg.lstsq(beside, rows.a, rcond=ROUNDING)[0])
    column = {name: one.column for one in roles.categories for name in one.names}
    squares = not any(_has_two_values(v) for v in np.hstack([rows.x, rows.a, rows.z]).T)
    return [
        (Term((one, other), "joint" if squares else "levels"), told[i], told[j])
        for (i, one), (j, other) in combinations(enumerate(roles.action), 2)
        if column.get(one, one) != column.get(other, other)
    ]


def _turned(columns: Floats) -> tuple[Floats, Floats]:
    """Return a whole wave and two of them over the ranks of columns (n, d), as rows (d, n).

    A line tells nothing of a wave: with ranks from 0 to 1 they are cos 2 pi r and cos 4 pi r.
    The ranks are those among a part of the rows.
    """
    every = max(1, len(columns) // QUANTILE_ROWS)
    ranks, ordered = np.empty(columns.shape), np.sort(columns[::every], axis=0)
    for rank, some, column in zip(ranks.T, ordered.T, columns.T, strict=True):
        rank[:] = np.searchsorted(some, column) + np.searchsorted(some, column, "right")
    waves = [cut(np.cos(k * np.pi * ranks / len(ordered))) for k in (1, 2)]
    return waves[0], waves[1]


def _has_two_values(values: Floats) -> bool:
    return bool(((values == values.min()) | (values == values.max())).all())


def cut(columns: Floats) -> Floats:
    """Return columns (n, d) as rows (d, n), cut at their outer quantiles and standardised."""
    values = np.ascontiguousarray(columns.T)
    every = max(1, values.shape[1] // QUANTILE_ROWS)
    low, high = np.quantile(values[:, ::every], (CUT, 1 - CUT), axis=1)
    rare = low == high  # nothing would be left of events that are rare
    low, high = np.where(rare, values.min(axis=1), low), np.where(rare, values.max(axis=1), high)
    values = np.clip(values, low[:, None], high[:, None])
    values -= values.mean(axis=1, keepdims=True)
    spread = values.std(axis=1, keepdims=True)
    scaled: Floats = values / np.where(spread > 0, spread, 1.0)
    return scaled
