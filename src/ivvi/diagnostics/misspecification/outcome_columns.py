"""Was a column that nobody named made from the outcome, or is it a place that moves the instrument?

A grade, a diagnosis or a band of the dose goes with the instrument, because this moved the action
and the outcome. An effect changes once such a column is absorbed, and rows of one value are alike,
but it is the column that is to blame: it must not be absorbed, clustered by or made a state. A
place moves the instrument by itself. So the means of z differ between the values of either, given
the states x; given x, a, y, their squares and the products of a and y too, they still differ
between places, and no longer between the values of an outcome.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi.diagnostics.misspecification.outcome_timing import basis_of, left_by
from ivvi.diagnostics.tails_and_quantiles import f_tail
from ivvi.features.design import Design
from ivvi.logs import Batch

LEVEL, BESIDE = 0.05, 1e-3
"""The p-values over all instruments: below the first they go with a column, and above the second
they do not any more, given actions and outcomes."""


def is_outcome(design: Design, rows: Batch, codes: Ints, smooth: Floats | None = None) -> bool:
    """Return whether groups of rows go with the instruments only as actions and outcomes do.

    What is `smooth` (n, k) counts as explained too.
    """
    x, a, z, y = parts_of(design, rows)
    if not z.size:
        return False
    both = np.column_stack([a, y])
    both = (both - both.mean(axis=0)) / np.maximum(both.std(axis=0), 1e-300)
    pairs = itertools.combinations_with_replacement(both.T, 2)
    given = [x, x**2, *([] if smooth is None else [smooth])]
    more = [*given, both, np.column_stack([one * other for one, other in pairs])]
    return _p_value(z, given, codes) < LEVEL and _p_value(z, more, codes) > BESIDE


def _p_value(z: Floats, given: Sequence[Floats], codes: Ints) -> float:
    """Return the p-value of equal means of each z in all groups, given some columns (F test)."""
    beside, one = np.column_stack(given), np.zeros(len(z), dtype=np.int64)
    squares = []
    for groups in (one, codes):
        rest, basis = (from_means(part, groups, None) for part in (z, beside))
        rest = left_by(basis_of(basis), rest) if basis.any() else rest
        squares.append(np.sum(rest**2, axis=0))
    lost = int(codes.max())
    freedom = len(z) - 1 - beside.shape[1] - lost
    if freedom < 1 or lost < 1:
        return 1.0
    between, within = squares[0] - squares[1], np.maximum(squares[1], 1e-300)
    ratios = (between / lost) / (within / freedom)
    return min(f_tail(float(ratio), lost, freedom) for ratio in ratios) * len(ratios)


def parts_of(design: Design, rows: Batch, noisy: Sequence[int] | None = None) -> list[Floats]:
    """Return the varying columns of the rows: states, actions, instruments, some or all outputs."""
    V, place = design.rows(rows), {c: at for at, c in enumerate(design.varying.tolist())}
    shared, phi, psi = set(design.shared), design.phi_columns, design.psi_columns
    kinds = (
        design.shared,
        [c for c in phi if c not in shared],
        [c for c in psi if c not in shared],
        [design.y_columns[i] for i in (range(len(design.outputs)) if noisy is None else noisy)],
    )
    return [V[:, [place[c] for c in kind if c in place]] for kind in kinds]


def from_means(columns: Floats, codes: Ints, weight: Floats | None) -> Floats:
    """Return columns (n, d) less their means in each group, times the root of weights."""
    mass = np.ones(len(columns)) if weight is None else weight / weight.mean()
    count = np.bincount(codes, weights=mass)
    rest = np.empty_like(columns)
    for at, column in enumerate(columns.T):
        mean = column.mean()
        means = np.bincount(codes, weights=mass * (column - mean)) / count
        left = column - mean - means[codes]
        size = np.linalg.norm(column - mean)
        rest[:, at] = left if np.linalg.norm(left) > 1e-6 * size else 0.0
    return np.sqrt(mass)[:, None] * rest
