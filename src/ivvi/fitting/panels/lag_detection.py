"""Find states that are an output of the row before: lags that a user has put into the table.

A log with `ylag` among its states and `y` as its next state is the same panel as one whose next
states are found among its rows, and fixed effects bias it in the same way. A state is such a lag
if it equals the output of the row before of the same unit, wherever that output moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi.logs import Batch, Roles

ALIKE, FEWEST = 0.8, 20
"""Share of the rows that must agree (others follow a gap), and rows to tell it by."""
MOST_UNITS, MOST_ROWS, MOST_PAIRS = 500, 8192, 20
"""Units and rows that are looked at, and pairs of columns that are compared in any order."""
AT_FIRST = 256
"""Rows that rule most pairs out."""
ROUNDING = 1e-9
DIFFERENT = 0.9
"""Share of a unit's outputs that must differ for an agreement in another order to be no chance."""


@dataclass(frozen=True, slots=True)
class OwnLags:
    """States that hold an output of an earlier row, and whether it is the row before."""

    states: tuple[str, ...]
    in_order: bool = True


def own_lags(rows: Batch, units: Ints, roles: Roles) -> OwnLags | None:
    """Return the states of rows (n,) that are lags of an output, by the units of the rows (n,)."""
    first = np.flatnonzero(units < MOST_UNITS)[:MOST_ROWS]
    rows, units = rows.chosen(first), units[first]
    order = in_order(rows, units)
    same = units[order][1:] == units[order][:-1]
    before, after = order[:-1][same], order[1:][same]
    outputs = [y for y in rows.y.T if len(np.unique(y)) > 1]
    lags = [
        name
        for name, x in zip(roles.state, rows.x.T, strict=True)
        if any(_follows(x[after], y[before], y[after]) for y in outputs)
    ]
    if lags:
        return OwnLags(tuple(lags))
    if len(roles.state) * len(outputs) > MOST_PAIRS:
        return None
    lags = [
        name
        for name, x in zip(roles.state, rows.x.T, strict=True)
        if any(_comes_again(x, y, units) for y in outputs)
    ]
    return OwnLags(tuple(lags), in_order=False) if lags else None


def in_order(rows: Batch, units: Ints) -> Ints:
    """Return the places of the rows unit by unit, by their steps or as they stand in the log."""
    if rows.step is None:
        return np.argsort(units, kind="stable")
    return np.lexsort((np.asarray(rows.step, dtype=np.float64), units))


def _follows(x: Floats, before: Floats, now: Floats) -> bool:
    """Whether x is the output of the row before, in rows in which the output has moved."""
    if len(x) > 4 * AT_FIRST and not _follows(x[:AT_FIRST], before[:AT_FIRST], now[:AT_FIRST]):
        return False
    moved = before != now
    equal = _equal(x, before)[moved]
    return len(equal) >= FEWEST and bool(equal.mean() >= ALIKE)


def _comes_again(x: Floats, y: Floats, units: Ints) -> bool:
    """Whether x of most rows is y of another row of the unit, in any order."""
    pairs = np.unique(np.column_stack([units, y]), axis=0)
    if len(pairs) < DIFFERENT * len(y) or len(y) < FEWEST:
        return False
    known = set(zip(units.tolist(), y.tolist(), strict=True))
    repeats = sum(pair in known for pair in zip(units.tolist(), x.tolist(), strict=True))
    own = np.count_nonzero(_equal(x, y))
    most = len(y) - len(np.unique(units))  # the first row of a unit has nothing before it
    return bool(most >= FEWEST and repeats - own >= ALIKE * most)


def _equal(one: Floats, other: Floats) -> np.ndarray:
    return np.asarray(np.abs(one - other) <= ROUNDING * np.maximum(np.abs(other), 1e-300))
