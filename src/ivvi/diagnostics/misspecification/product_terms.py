"""Products of columns that linear features lack: of states, instruments, and two actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, zip_longest

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi.logs import Batch, Roles

MOST_TERMS = 120
"""Terms to look at."""
ROUNDING = 1e-9
CUT, QUANTILE_ROWS = 0.025, 1024
"""Share of rows beyond the outer quantiles, on either side, and rows that tell these."""
FEW = 64
"""Rows that mostly show a third value."""


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
    bent, bent_z = (~_have_two_values(values) for values in (x, z))
    terms: list[_Product] = []
    for means, names, columns, bends in (
        ("bends", states, x, bent),
        ("dose", instruments, z, bent_z),
    ):
        for name, values, bend in zip(names, columns, bends, strict=True):
            if bend:
                terms.append((Term((name,), means), values, values))
    several = max(len(x), len(z))
    pairs = [(i % several, (i + by) % several) for by in range(several) for i in range(several)]
    pairs = [(i, j) for i, j in pairs if i < len(x) and j < len(z)][:MOST_TERMS]
    varies = ((Term((states[i], instruments[j]), "varies"), x[i], z[j]) for i, j in pairs)
    together = (
        (Term((states[i], states[j]), "together"), x[i], x[j])
        for i, j in combinations(range(len(x)), 2)
    )

    def turning(waves: Floats) -> Iterator[_Product]:
        for i, j in pairs:
            if bent[i]:
                yield Term((states[i], instruments[j]), "turns"), waves[i], z[j]

    once, twice = map(turning, _turned(np.ascontiguousarray(rows.x.T)))
    squares = bool(bent.all() and bent_z.all()) and not _have_two_values(rows.a.T).any()
    joint = _joint_terms(x, z, rows.a, roles, "joint" if squares else "levels")
    uses = (varies, joint, together, once, twice)
    in_turn = (one for row in zip_longest(*uses) for one in row if one is not None)
    terms = [*terms[:MOST_TERMS], *islice(in_turn, max(0, MOST_TERMS - len(terms)))]
    filled = np.empty((len(terms), len(rows)))
    for row, (_, one, other) in zip(filled, terms, strict=True):
        np.multiply(one, other, out=row)
    return [term for term, _, _ in terms], filled


def _joint_terms(x: Floats, z: Floats, a: Floats, roles: Roles, means: str) -> Iterator[_Product]:
    """Yield products of two actions, each as the instruments predict it: do they work together?

    Indicators of one category have none, as they exclude each other.
    """
    column = {name: one.column for one in roles.categories for name in one.names}
    pairs = [
        (i, j)
        for (i, one), (j, other) in combinations(enumerate(roles.action), 2)
        if column.get(one, one) != column.get(other, other)
    ]
    if not pairs:
        return
    of_state = np.vstack([np.ones(len(a)), x])
    beside = z - _coefficients(of_state, z).T @ of_state
    predicted = cut((_coefficients(beside, a.T).T @ beside).T)
    for i, j in pairs:
        yield Term((roles.action[i], roles.action[j]), means), predicted[i], predicted[j]


def _coefficients(given: Floats, targets: Floats) -> Floats:
    """Return the regression of rows (q, n) on those given (p, n), (p, q), by normal equations."""
    return np.asarray(np.linalg.lstsq(given @ given.T, given @ targets.T, rcond=ROUNDING)[0])


def _turned(values: Floats) -> tuple[Floats, Floats]:
    """Return one full wave and two waves over the ranks of rows (d, n), standardised.

    A wave is uncorrelated with a line: with ranks r from 0 to 1 they are cos 2 pi r and
    cos 4 pi r = 2 cos^2 2 pi r - 1.
    """
    n, ranks = values.shape[1], np.empty(values.shape, dtype=np.int64)
    for row, out in zip(values, ranks, strict=True):
        out[:] = _ranks(row)
    wave = np.cos(np.pi * np.arange(1, 2 * n) / n)  # at r = (rank + 1) / (2 n)
    return _standardised(wave[ranks]), _standardised((2 * wave**2 - 1)[ranks])


def _ranks(values: Floats) -> Ints:
    """Return twice the ranks of values (n,), from 0 on; equal values share theirs."""
    order = np.argsort(values)
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    counts = np.diff(starts, append=len(values))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.repeat(2 * starts + counts - 1, counts)
    return ranks


def _have_two_values(columns: Floats) -> NDArray[np.bool_]:
    """Return which rows of (d, n) hold at most two values; the first few rule out most rows."""
    two = np.ones(len(columns), dtype=bool)
    for i, values in enumerate(columns):
        for part in (values[:FEW], values):
            two[i] = two[i] and ((part == part.min()) | (part == part.max())).all()
    return two


def cut(columns: Floats) -> Floats:
    """Return columns (n, d) as rows (d, n), cut at their outer quantiles and standardised."""
    values = columns.T.copy()
    every = max(1, values.shape[1] // QUANTILE_ROWS)
    low, high = np.quantile(values[:, ::every], (CUT, 1 - CUT), axis=1)
    rare = low == high  # nothing would be left of events that are rare
    low, high = np.where(rare, values.min(axis=1), low), np.where(rare, values.max(axis=1), high)
    return _standardised(np.clip(values, low[:, None], high[:, None], out=values))


def _standardised(values: Floats) -> Floats:
    """Centre rows (d, n) at their means and divide them by their standard deviations, in place."""
    values -= values.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.einsum("dn,dn->d", values, values) / values.shape[1])[:, None]
    values /= np.where(spread > 0, spread, 1.0)
    return values
