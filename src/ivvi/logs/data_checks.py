"""What makes a log unusable: missing, too large or contradictory values, a copied instrument.

The errors count over the whole table, read once more, and name a row as the user's file does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi._io.arrays import Bools, Floats
from ivvi.errors import LARGEST, DataError, LargeError, MissingError
from ivvi.logs.batch import Batch
from ivvi.logs.schema import Roles
from ivvi.logs.tables.arrow import as_numpy, flags, missing, too_large
from ivvi.logs.tables.table import BatchSource

ColumnArrays = dict[str, NDArray[Any]]
MANY_FEATURES = 200
"""Features from which on rows are counted before the first pass."""
ROUNDING = 1e-12
"""Share by which a multiple of a column may differ from it."""
FEWEST, FEW_VALUES, MANY = 20, 10, 1000
"""Rows, and different actions among the first of them, that lie on a line by no chance."""


def absent_values(block: pa.RecordBatch, roles: Roles) -> dict[str, Bools]:
    """Return which values of each column are missing; a row that ends needs no next state."""
    absent = {name: missing(block.column(name)) for name in roles.columns}
    if roles.terminal:
        ends = [as_numpy(block.column(name)) > 0 for name in roles.terminal]
        ended = np.logical_or.reduce(ends)
        for name in roles.next_state:
            absent[name] &= ~ended
    return absent


def check_enough_rows(table: BatchSource, roles: Roles, features: int) -> None:
    """Refuse a table with no more rows than features: sums of many features take minutes."""
    if features < MANY_FEATURES or roles.frequency:
        return
    rows = table.num_rows
    if rows is None:  # a text file: one of its columns says how many
        rows = 0
        for block in table.batches(roles.keys[:1] or roles.action[:1], (), 1 << 16):
            rows += block.num_rows
            if rows > features:
                return
    if rows <= features:
        raise DataError(
            f"{table.label} has {rows:,} rows, which cannot estimate {features:,} coefficients of "
            "each output; expected more rows, or fewer states and features"
        )


def missing_error(table: BatchSource, roles: Roles) -> MissingError:
    """Count the missing values of the whole table, a category's once, and name the first."""
    total, bad_rows, row, first = 0, 0, 0, ""
    empty_actions: dict[str, None] = {}
    acts = {_own_name(name, roles) for name in roles.action}
    for block in _read_whole(table, roles):
        absent: dict[str, Bools] = {}
        for name, mask in absent_values(block, roles).items():
            own = _own_name(name, roles)
            absent[own] = absent[own] | mask if own in absent else mask
        masks = np.array(list(absent.values()))
        empty_actions |= {name: None for name in absent if name in acts and absent[name].any()}
        total, bad_rows = total + int(masks.sum()), bad_rows + int(masks.any(axis=0).sum())
        if not first and masks.any():
            at = int(np.flatnonzero(masks.any(axis=0))[0])
            name = list(absent)[int(np.flatnonzero(masks[:, at])[0])]
            first = f"the first in column {name!r}, {_place(table, roles, block, row, at)}"
        row += block.num_rows
    return MissingError(
        f"{table.label} has {total} missing or infinite values in {bad_rows} of {row} rows, "
        f"{first}; drop those rows with drop_missing (--drop-missing) or repair them"
        + _none_given(tuple(empty_actions))
    )


def _none_given(actions: Sequence[str]) -> str:
    """Return what an empty cell of an action may mean; then such rows must not be dropped."""
    if not actions:
        return ""
    return (
        f"; if an empty {' or '.join(actions)} means that none was given, write 0 there (dropping "
        "such rows would select those who were given some)"
    )


def large_error(table: BatchSource, roles: Roles) -> LargeError:
    """Count the values of the whole table that are too large and name the first."""
    total, row, first = 0, 0, ""
    for block in _read_whole(table, roles):
        values = {name: as_numpy(block.column(name)) for name in roles.numeric}
        masks = np.array([too_large(v) for v in values.values()])
        total += int(masks.sum())
        if not first and masks.any():
            at = int(np.flatnonzero(masks.any(axis=0))[0])
            name = roles.numeric[int(np.flatnonzero(masks[:, at])[0])]
            place = _place(table, roles, block, row, at)
            first = f"{values[name][at]:g} in column {name!r}, {place}"
        row += block.num_rows
    more = f" ({total} in all)" if total > 1 else ""
    return LargeError(
        f"{table.label} has a value too large to compute with, {first}{more}; expected at most "
        f"{LARGEST:g}: repair it, or use other units"
    )


def telling_columns(table: BatchSource, roles: Roles) -> tuple[str, ...]:
    """Columns of episode and step as the user has them, if the rows are not those of the file."""
    if not (roles.is_moved and roles.episode):
        return ()
    asked = dict(roles.asked)
    names = *(roles.episode_parts or (roles.episode,)), *(asked.get("step") or ())
    return tuple(name for name in names if name in table.schema.names)


def check_terminal(values: ColumnArrays, roles: Roles) -> None:
    """Refuse terminal columns that hold anything but 0 and 1."""
    for name in roles.terminal:
        end = values[name]
        strange = ~((end == 0) | (end == 1) | np.isnan(end))
        if strange.any():
            at = int(np.flatnonzero(strange)[0])
            raise DataError(
                f"terminal column {name!r} holds {end[at]:g}; expected true and false, 1 and 0, "
                "or text that names the kind of end"
            )


def ended_rows(values: ColumnArrays, roles: Roles) -> Bools:
    """Return which rows ended their episode; refuse one with two kinds of end."""
    each = np.array([values[name] > 0 for name in roles.terminal])
    if (twice := each.sum(axis=0) > 1).any():
        at = int(np.flatnonzero(twice)[0])
        kinds = [repr(n) for n, ends in zip(roles.terminal, each[:, at], strict=True) if ends]
        raise DataError(
            f"terminal columns {' and '.join(kinds)} are both true in one row; expected one kind "
            "of end"
        )
    ended: Bools = each.sum(axis=0) > 0
    return ended


def checked_weight(weight: Floats, roles: Roles) -> Floats:
    """Return weights of rows, or refuse them."""
    if (weight < 0).any():
        raise DataError(
            f"weight column {roles.weight!r} holds {weight.min():g}; weights must not be negative"
        )
    if roles.frequency and (broken := weight != np.round(weight)).any():
        raise DataError(
            f"weight column {roles.weight!r} holds {weight[broken][0]:g}; frequency weights count "
            "rows: expected whole numbers, or weights of the kind probability"
        )
    return weight


def after_end_error(table: BatchSource, roles: Roles, block: pa.RecordBatch, at: int) -> DataError:
    """Return the error for a row that follows the end of its own episode."""
    return DataError(
        f"terminal column {', '.join(map(repr, roles.terminal))} says that the episode has "
        f"ended, and a row follows it ({_row_words(table, roles, block, at)}); expected the end in "
        "the last row of an episode, and nothing (or false) in the others"
    )


def fact_error(
    table: BatchSource, roles: Roles, block: pa.RecordBatch, at: int, name: str
) -> DataError:
    """Return the error for a state that was assumed constant and changes."""
    return DataError(
        f"state {name!r} looked constant within episodes but changes "
        f"({_row_words(table, roles, block, at)}); sort the rows by {roles.episode}; then the "
        "first rows show the change, and the fit predicts this state"
    )


LITTLE = 1e-3
"""Share of what an instrument varies by that rounding may leave of it beside a multiple of it."""


class CopyWatch:
    """Notices an instrument that equals a state or action in every row, or a multiple of it.

    Such a column would not fail by itself: an instrument equal to the action turns the
    estimate into confounded least squares without a word. Each pair is compared until
    the first row that differs, which is almost always in the first batch.
    """

    def __init__(self, roles: Roles, alike: Sequence[tuple[int, int]] | None = None) -> None:
        self._roles = roles
        self._others = roles.state + roles.action
        pairs = itertools.product(range(len(roles.instrument)), range(len(self._others)))
        self._alike = list(pairs if alike is None else alike)
        self._lines: dict[tuple[int, int], tuple[float, float]] = {}
        self._rows = 0

    @property
    def alike(self) -> tuple[tuple[int, int], ...]:
        """Pairs (instrument, other column) that have been equal so far; lines need enough rows."""
        few = self._lines if self._rows < FEWEST else {}
        return tuple(pair for pair in self._alike if pair not in few)

    def look(self, batch: Batch) -> None:
        """Compare the pairs that have been equal so far."""
        if not self._alike:
            return
        self._rows += len(batch)
        few = np.hstack([batch.x[:3], batch.a[:3]])
        possible = _may_agree(batch.z[:3], few, batch.x.shape[1])
        columns = [*batch.x.T, *batch.a.T]
        self._alike = [
            (j, i)
            for j, i in self._alike
            if possible[j, i] and self._agrees((j, i), batch.z[:, j], columns[i])
        ]

    def _agrees(self, pair: tuple[int, int], z: Floats, other: Floats) -> bool:
        """Whether an instrument is still a copy, or still the same c + d times an action."""
        if pair not in self._lines and z[0] == other[0] and np.array_equal(z, other):
            return True
        if pair[1] < len(self._roles.state):
            return False
        line = self._lines.get(pair) or _line(z, other)
        if line is None or not _lies_on(z, other, line):
            return False
        self._lines[pair] = line
        return True

    def check(self) -> None:
        """Refuse what stayed equal over the whole pass."""
        if self._alike:
            j, i = self._alike[0]
            role = "state" if i < len(self._roles.state) else "action"
            raise DataError(
                f"instrument column {self._roles.instrument[j]!r} equals the {role} column "
                f"{self._others[i]!r} in every row, or a multiple of it; an instrument must be a "
                "separate variable"
            )


def _may_agree(z: Floats, others: Floats, states: int) -> Bools:
    """Return by the first three rows which instruments may be copies of which columns, (d_z, d).

    They begin alike or, columns after the `states`, lie on a line: almost always they do neither.
    """
    equal: Bools = z[0][:, None] == others[0]
    if len(z) < 3:
        equal[:, states:] = True
        return equal
    with np.errstate(over="ignore", invalid="ignore"):
        rises, others_rise = z[1:] - z[0], others[1:, states:] - others[0, states:]
        one = np.outer(rises[0], others_rise[1])
        other = np.outer(rises[1], others_rise[0])
        largest = np.outer(abs(z).max(axis=0), abs(others[:, states:]).max(axis=0))
        near = abs(one - other) <= 1e-3 * (abs(one) + abs(other)) + 1e-9 * largest
    equal[:, states:] |= near
    return equal


def _line(z: Floats, a: Floats) -> tuple[float, float] | None:
    """Return c and d of the line z = c + d a through two rows; None where a has few values."""
    low, high = int(a.argmin()), int(a.argmax())
    if a[low] == a[high] or z[low] == z[high] or len(np.unique(a[:MANY])) < FEW_VALUES:
        return None
    slope = float((z[high] - z[low]) / (a[high] - a[low]))
    return float(z[low] - slope * a[low]), slope


def _lies_on(z: Floats, a: Floats, line: tuple[float, float]) -> bool:
    """Whether z = c + d a up to rounding; a few rows are compared first.

    Far from zero (times in milliseconds), rounding may be more than all that z varies by, so what
    is left must also be little beside that.
    """
    c, d = line
    span = abs(d) * float(np.ptp(a)) or np.inf
    for rows in (slice(8), slice(None)):
        rest = np.abs(z[rows] - c - d * a[rows])
        rounding = ROUNDING * (np.abs(z[rows]) + abs(c) + np.abs(d * a[rows]))
        if (rest > np.minimum(rounding, LITTLE * span)).any():
            return False
    return True


def _read_whole(table: BatchSource, roles: Roles) -> Iterator[pa.RecordBatch]:
    """Read the columns of a log again, and those that tell a row to its user."""
    columns = list(dict.fromkeys((*roles.columns, *telling_columns(table, roles))))
    return table.batches(columns, roles.numeric, 1 << 16)


def _place(table: BatchSource, roles: Roles, block: pa.RecordBatch, before: int, at: int) -> str:
    """Name the row of the user's file, by its number, or by its episode and step."""
    if telling := telling_columns(table, roles):
        return ", ".join(f"{name} {block.column(name)[at].as_py()}" for name in telling)
    return f"row {before + at} (from 0)"


def _row_words(table: BatchSource, roles: Roles, block: pa.RecordBatch, at: int) -> str:
    """Name a row by its episode and step as the user's file has them."""
    keys = {key: block.column(key)[at] for key in roles.keys}
    telling = telling_columns(table, roles)
    both = list(dict.fromkeys([*keys, *telling]))
    for batch in table.batches(both, (), 1 << 16) if telling else ():
        same = [flags(pc.equal(batch.column(key), value)) for key, value in keys.items()]
        for row in np.flatnonzero(np.logical_and.reduce(same))[:1]:
            keys = {name: batch.column(name)[int(row)] for name in telling}
            return " and ".join(f"{name} {value.as_py()}" for name, value in keys.items())
    return " and ".join(f"{key} {value.as_py()!r}" for key, value in keys.items())


def _own_name(name: str, roles: Roles) -> str:
    """Return the column of the file that an indicator, or a mean by group, was made of."""
    if name in roles.instrument:
        name = next((group for group in roles.groups if name.endswith(f"_by_{group}")), name)
    return next((c.column for c in roles.categories if name in c.names), name)
