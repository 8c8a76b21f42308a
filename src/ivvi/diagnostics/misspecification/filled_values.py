"""One value that fills many cells inside the range of a column that is continuous otherwise.

Where nobody answered, some tables hold 0. It is no odd number where the column has values below and
above it, yet no drawn number comes twice: a value that fills a twentieth of the rows, while hardly
any other occurs again, was written there. At an end of the range it may be right (nothing was
bought, no dose was given), and so it may among whole numbers, or where another column has one value
in just these rows (no dose, no costs), and where episodes begin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.logs import Batch, Roles
from ivvi.logs.row_sample import first_rows

FILLED = 0.05
"""Share of the rows from which on a value fills a column."""
SIDE = 0.01
"""Share of the other values that must lie below it, and above."""
DISTINCT = 0.9
"""Share of the other values that must occur once."""
FEW_ROWS, AGAIN, FEWEST_ROWS = 256, 5, 100
"""Rows of a first look, in which a value must come so often; rows that make it no chance."""


def filled_values(head: Batch, roles: Roles, but: Collection[str] = ()) -> list[str]:
    """Return warnings of columns (`but` some) with a value that may stand for a missing one."""
    if len(head) < FEWEST_ROWS:
        return []
    texts = []
    filled = {name: fill for name, v in _columns(head, roles) if (fill := _filled(v))}
    columns = dict(_numbers(head, roles))
    others = [v for name, v in columns.items() if name not in filled]
    for name, (value, share) in filled.items():
        rows = columns[name] == value
        if name not in but and not (_follows(rows, others) or _begins(rows, head)):
            texts.append(
                f"{name} is exactly {value:g} in {share:.0%} of the rows and hardly ever twice the "
                f"same otherwise: if {value:g} stands for a missing value, "
                f"{_remedy(name, value, head, roles)}"
            )
    return texts


def _follows(rows: NDArray[np.bool_], others: list[Floats]) -> bool:
    """Return whether another column has one value in these rows, and nowhere else: no dose."""
    at = int(np.argmax(rows))
    return any(np.array_equal(column == column[at], rows) for column in others)


def _begins(rows: NDArray[np.bool_], head: Batch) -> bool:
    """Return whether these are first rows of episodes, or rows of one step: where things start."""
    if head.episode is None or head.step is None:
        return False
    first = np.zeros(len(rows), dtype=bool)
    first[first_rows(head)] = True
    return bool(first[rows].all() or len(np.unique(head.step[rows])) == 1)


def _remedy(name: str, value: float, head: Batch, roles: Roles) -> str:
    """Return how to make a value missing: in all columns, or in one if others hold it rightly."""
    others = [column for other, column in _numbers(head, roles) if other != name]
    if any((column == value).any() for column in others):
        return (
            f"empty these cells of {name}, and use --drop-missing (drop_missing=True); other "
            f"columns hold {value:g} too, so --missing {value:g} would remove too much"
        )
    return (
        f"use --missing {value:g} --drop-missing (read_logs(missing={value:g}, drop_missing=True))"
    )


def _columns(head: Batch, roles: Roles) -> Iterator[tuple[str, Floats]]:
    """Yield the states, actions and outcomes in which a value occurs again, by a quick look."""
    coded = {name for c in roles.categories for name in c.names} | set(roles.terminal)
    derived = {f"next_{name}" for name in roles.predicted} if roles.derived else set()
    parts = ((roles.state, head.x), (roles.action, head.a), (roles.outputs, head.y))
    for names, values in parts:
        first = np.sort(values[:: max(1, len(values) // FEW_ROWS)], axis=0)
        again = (first[AGAIN - 1 :] == first[: len(first) - AGAIN + 1]).any(axis=0)
        for at in np.flatnonzero(again & (first[0] < first[-1])).tolist():
            if names[at] not in coded | derived:
                yield names[at], values[:, at]


def _numbers(head: Batch, roles: Roles) -> Iterator[tuple[str, Floats]]:
    parts = ((roles.state, head.x), (roles.action, head.a), (roles.instrument, head.z))
    for names, values in (*parts, (roles.outputs, head.y)):
        yield from zip(names, values.T, strict=True)


def _filled(values: Floats) -> tuple[float, float] | None:
    """Return the value that fills a column, and its share of the rows, if one does."""
    distinct, counts = np.unique(values, return_counts=True)
    at = int(np.argmax(counts))
    share, others = counts[at] / len(values), len(values) - counts[at]
    below = counts[:at].sum() / max(others, 1)
    if share < FILLED or not SIDE <= below <= 1 - SIDE:
        return None
    rest = np.delete(distinct, at)
    if len(rest) < DISTINCT * others or (rest == np.round(rest)).mean() > 1 - DISTINCT:
        return None
    return float(distinct[at]), float(share)
