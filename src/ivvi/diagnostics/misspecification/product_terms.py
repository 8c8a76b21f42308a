"""Products of columns that linear features lack: of states, instruments, and two actions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, zip_longest

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
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
    varies = [(Term((states[i], instruments[j]), "varies"), x[i], z[j]) for i, j in pairs]
    together = [
        (Term((states[i], states[j]), "together"), x[i], x[j])
        for i, j in combinations(range(len(x)), 2)
    ]
    once, twice = (
        [(Term((states[i], instruments[j]), "turns"), turned[i], z[j]) for i, j in pairs if bent[i]]
        for turned in _turned(np.ascontiguousarray(rows.x.T))
    )
    squares = bool(bent.all() and bent_z.all()) and not _have_two_values(rows.a.T).any()
    joint = _joint_terms(x, z, rows.a, roles, "joint" if squares else "levels")
    uses = (varies, joint, together, once, twice)
    terms += [one for row in zip_longest(*uses) for one in row if one is not None]
    filled = np.empty((min(len(terms), MOST_TERMS), len(rows)))
    for row, (_, one, other) in zip(filled, terms, strict=False):
        np.multiply(one, other, out=row)
    return [term for term, _, _ in terms[:MOST_TERMS]], filled


def _joint_terms(x: Floats, z: Floats, a: Floats, roles: Roles, means: str) -> list[_Product]:
    """Return products of two actions, each as the instruments tell it: do they work together?

    Indicators of one category have none, as they exclude each other.
    """
    column = {name: one.column for one in roles.categories for name in one.names}
    pairs = [
        (i, j)
        for (i, one), (j, other) in combinations(enumerate(roles.action), 2)
        if column.get(one, one) != column.get(other, other)
    ]
    if not pairs:
        return []
    of_state = np.vstack([np.ones(len(a)), x])
    beside = z - _coefficients(of_state, z).T @ of_state
    told = cut((_coefficients(beside, a.T).T @ beside).T)
    acted = roles.action
    return [(Term((acted[i], acted[j]), means), told[i], told[j]) for i, j in pairs]


def _coefficients(given: Floats, targets: Floats) -> Floats:
    """Return the regression of rows (q, n) on those given (p, n), (p, q), by normal equations."""
    return np.asarray(np.linalg.lstsq(given @ given.T, given @ targets.T, rcond=ROUNDING)[0])


def _turned(values: Floats) -> tuple[Floats, Floats]:
    """Return a whole wave and two of them over the ranks of rows (d, n), standardised.

    A line tells nothing of a wave: with ranks r from 0 to 1 they are cos 2 pi r and
    cos 4 pi r = 2 cos^2 2 pi r - 1.
    """
    once = np.cos(2 * np.pi * _ranks(values))
    return _standardised(once), _standardised(2 * once**2 - 1)


def _ranks(values: Floats) -> Floats:
    """Return the ranks in each row of (d, n), from 0 to 1; equal values share theirs."""
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    place, last = np.arange(values.shape[1]), values.shape[1] - 1
    differs = np.diff(ordered) != 0
    below = np.where(np.pad(differs, ((0, 0), (1, 0))), place, 0)
    upto = np.where(np.pad(differs, ((0, 0), (0, 1))), place, last)
    first = np.maximum.accumulate(below, axis=1)
    final = np.minimum.accumulate(upto[:, ::-1], axis=1)[:, ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + final + 1) / (2 * len(place)), axis=1)
    return ranks


def _have_two_values(columns: Floats) -> NDArray[np.bool_]:
    """Return which rows of (d, n) hold two values at most; a few of each rule out most."""
    two = np.ones(len(columns), dtype=bool)
    for i, values in enumerate(columns):
        for part in (values[:FEW], values):
            two[i] = two[i] and ((part == part.min()) | (part == part.max())).all()
    return two


def cut(columns: Floats) -> Floats:
    """Return columns (n, d) as rows (d, n), cut at their outer quantiles and standardised."""
    values = np.ascontiguousarray(columns.T)
    every = max(1, values.shape[1] // QUANTILE_ROWS)
    low, high = np.quantile(values[:, ::every], (CUT, 1 - CUT), axis=1)
    rare = low == high  # nothing would be left of events that are rare
    low, high = np.where(rare, values.min(axis=1), low), np.where(rare, values.max(axis=1), high)
    values = np.clip(values, low[:, None], high[:, None])
    return _standardised(values)


def _standardised(values: Floats) -> Floats:
    """Return rows (d, n) less their means, in standard deviations."""
    rest = values - values.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.einsum("dn,dn->d", rest, rest) / rest.shape[1])[:, None]
    scaled: Floats = rest / np.where(spread > 0, spread, 1.0)
    return scaled
