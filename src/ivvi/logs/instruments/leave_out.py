"""Leave-one-out instruments that remain leave-one-out after controls are partialled out.

The instrument z = G a of a row, ``loo:judge``, is a mean of the actions of other episodes. But
the rows of a court share their judges, so the mean of z in a court holds the action of every
row: with effects of courts absorbed, or indicators of courts among the states, M_w z = z - H_w z
brings the own action back. Its weight there is

    d_i = -(H_w G)_ii = -w_i' (W'W)^-1 (G'W)_i,

and z - d r takes it out, where r = M_w a / (1 - h) holds the own action once, h being the
leverage of a row in the controls. The weights of own actions in M_w (z - d r) then sum to zero,
and each of them is zero where judges sit in one court. There the instrument is, up to a factor,
the judge's leave-out mean less the court's (ujive: Kolesar, 2013).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.errors import InputError
from ivvi.logs.schema import Roles
from ivvi.logs.tables.arrow import as_arrow, as_numpy
from ivvi.logs.tables.table import BatchSource, TableView

FEWEST = 3
"""Indicators among the states from which on their share of the own action is taken out."""
MOST_CELLS = 1 << 27
"""Rows times controls that fit into memory."""
BLOCK = 1 << 16


class LeaveOutTable(TableView):
    """A table whose leave-one-out instruments are adjusted for controls.

    Parameters
    ----------
    table
        The table with the leave-one-out means.
    adjusted
        The adjusted instruments by name, (n,) each.
    ways
        The absorbed columns that they are adjusted for; with the states in any case.
    """

    def __init__(self, table: Any, adjusted: dict[str, Floats], ways: tuple[str, ...]) -> None:
        super().__init__(table, table.label)
        self.adjusted, self.ways = adjusted, ways

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the adjusted instruments."""
        start, made = 0, [name for name in columns if name in self.adjusted]
        for block in self.table.batches(columns, numeric, size):
            end = start + block.num_rows
            for name in made:
                values = self.adjusted[name][start:end]
                column = as_arrow(values, ~np.isnan(values))
                block = block.set_column(block.schema.get_field_index(name), name, column)
            yield block
            start = end

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        start, parts = 0, []
        for piece in self.table.pieces(rows):
            end = start + piece.num_rows
            own = {name: values[start:end] for name, values in self.adjusted.items()}
            parts.append(LeaveOutTable(piece, own, self.ways))
            start = end
        return list(parts)


def left_out(table: BatchSource, roles: Roles, ways: Sequence[str] = ()) -> BatchSource:
    """Return the table with its leave-one-out instruments adjusted for the controls.

    Parameters
    ----------
    table, roles
        The table and the roles of its columns; nothing is done without `roles.groups`.
    ways
        The columns whose effects are absorbed. The other controls are the states.
    """
    ways = tuple(ways)
    if isinstance(table, LeaveOutTable):
        if table.ways == ways:
            return table
        table = table.table
    if not roles.groups or not (ways or len(roles.state) >= FEWEST):
        return table
    few = _indicators(table, roles) < FEWEST
    if few and not ways:
        return table
    rows = _LeaveOutRows.of(table, roles, ways)
    if few and all(_is_nested(grouping, rows.unit) for grouping in rows.ways):
        return table
    adjusted: dict[str, Floats] = {}
    for group in roles.groups:
        names = [f"{action}_by_{group}" for action in roles.action]
        z = rows.adjusted(rows.groups[group], rows.columns(names))
        adjusted |= dict(zip(names, z.T, strict=True))
    return LeaveOutTable(table, adjusted, ways)


def original(table: BatchSource) -> BatchSource:
    """Return the table that `left_out` was given."""
    return table.table if isinstance(table, LeaveOutTable) else table


@dataclass(frozen=True, slots=True, repr=False)
class _LeaveOutRows(Compact):
    """All rows: the unit that is left out, the groups and the absorbed columns as numbers."""

    values: dict[str, Floats]
    weight: Floats
    unit: Ints
    groups: dict[str, Ints]
    ways: tuple[Ints, ...]
    actions: Floats
    states: Floats

    @classmethod
    def of(cls, table: BatchSource, roles: Roles, ways: tuple[str, ...]) -> _LeaveOutRows:
        made = [f"{a}_by_{group}" for group in roles.groups for a in roles.action]
        numeric = dict.fromkeys((*roles.action, *roles.state, *made))
        numeric |= {roles.weight: None} if roles.weight else {}
        keys = [*roles.groups, *ways, *([roles.episode] if roles.episode else [])]
        read = list(dict.fromkeys((*numeric, *keys)))
        blocks = list(table.batches(read, list(numeric), BLOCK))
        n = sum(block.num_rows for block in blocks)
        _check_size(n, len(roles.state), table.label)
        values = {name: _numbers(blocks, name) for name in numeric}
        codes = {name: _codes(blocks, name) for name in keys}
        actions = _stacked([values[name] for name in roles.action], n)
        states = _stacked([values[name] for name in roles.state], n)
        complete = np.isfinite(actions).all(axis=1) & np.isfinite(states).all(axis=1)
        weight = values[roles.weight] if roles.weight else np.ones(n)
        return cls(
            values,
            np.where(complete & np.isfinite(weight), weight, 0.0),
            codes[roles.episode] if roles.episode else np.arange(n),
            {name: codes[name] for name in roles.groups},
            tuple(codes[name] for name in ways),
            np.nan_to_num(actions),
            np.nan_to_num(states),
        )

    def columns(self, names: Sequence[str]) -> Floats:
        """Return columns by name, (n, m)."""
        return _stacked([self.values[name] for name in names], len(self.weight))

    def adjusted(self, group: Ints, z: Floats) -> Floats:
        """Return the leave-one-out means z (n, m) of a group less what brings back the row."""
        w, main, rest = self.weight, *self._controls()
        pair = _crossed(group, self.unit)
        mass = np.bincount(main, w)[main]
        gram_inverse = _inverse((rest.T * w) @ rest)
        acted = _within(self.actions, main, w)
        acted = np.asarray(acted - rest @ (gram_inverse @ ((rest.T * w) @ acted)))
        others = np.bincount(group)[group] - np.bincount(pair)[pair]
        g: Floats = w / np.maximum(others, 1)
        inside, own = _crossed(main, group), _crossed(main, pair)
        with np.errstate(divide="ignore", invalid="ignore"):
            d = (np.bincount(inside, g)[inside] - np.bincount(own, g)[own]) / mass
            s = np.bincount(own, w)[own] / mass
        returned: Floats = np.subtract(_sums(rest, group, g), _sums(rest, pair, g))
        d = -(d + np.einsum("nk,nk->n", rest @ gram_inverse, returned))
        s = s + np.einsum("nk,nk->n", rest @ gram_inverse, _sums(rest, pair, w))
        usable = (w > 0) & (s < 1 - 1e-9)
        factor = np.where(usable, d / np.where(usable, 1 - s, 1.0), 0.0)
        counted: Floats = (w > 0).astype(np.float64)
        adjusted: Floats = z - factor[:, None] * _sums(acted, pair, counted)
        return adjusted

    def _controls(self) -> tuple[Ints, Floats]:
        """Return the absorbed column with most values, (n,), and the controls within it, (n, k)."""
        if not self.ways:
            main = np.zeros(len(self.weight), dtype=np.int64)
            return main, _within(self.states, main, self.weight)
        ordered = sorted(self.ways, key=lambda grouping: -int(grouping.max(initial=0)))
        dummies = [self.states]
        for grouping in ordered[1:]:
            levels = int(grouping.max(initial=0))
            _check_size(len(grouping), levels, "the log", absorbed=True)
            dummies.append((grouping[:, None] == np.arange(levels)).astype(float))
        return ordered[0], _within(np.hstack(dummies), ordered[0], self.weight)


def _check_size(rows: int, controls: int, label: str, *, absorbed: bool = False) -> None:
    if rows * controls > MOST_CELLS:
        remedy = "make one column of the absorbed ones" if absorbed else "absorb their column"
        raise InputError(
            f"{label}: adjusting a leave-one-out instrument for {controls:,} controls in {rows:,} "
            f"rows does not fit into memory; {remedy} (absorb=, --absorb)"
        )


def _indicators(table: BatchSource, roles: Roles) -> int:
    """Count the states that hold only 0 and 1 in the first rows."""
    block = (
        next(iter(table.batches(roles.state, roles.state, BLOCK)), None) if roles.state else None
    )
    if block is None:
        return 0
    columns = (as_numpy(block.column(name)).astype(float) for name in roles.state)
    return sum(bool(np.isin(x[np.isfinite(x)], (0.0, 1.0)).all()) for x in columns)


def _is_nested(grouping: Ints, unit: Ints) -> bool:
    """Whether every group belongs to one unit."""
    return int(_crossed(grouping, unit).max(initial=0)) == int(grouping.max(initial=0))


def _numbers(blocks: Sequence[pa.RecordBatch], name: str) -> Floats:
    parts = [as_numpy(block.column(name)).astype(np.float64) for block in blocks]
    return np.concatenate(parts) if parts else np.empty(0)


def _codes(blocks: Sequence[pa.RecordBatch], name: str) -> Ints:
    """Number the values of a column, a missing one as a value of its own, (n,)."""
    column = pa.chunked_array([block.column(name) for block in blocks])
    coded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    indices: Ints = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return indices


def _crossed(one: Ints, two: Ints) -> Ints:
    """Number the pairs of two numberings, (n,)."""
    pairs = one * (int(two.max(initial=0)) + 1) + two
    numbers: Ints = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
    return numbers


def _stacked(columns: Sequence[Floats], rows: int) -> Floats:
    return np.column_stack(columns) if columns else np.empty((rows, 0))


def _sums(columns: Floats, group: Ints, weight: Floats) -> Floats:
    """Return the weighted sums of columns over the group of each row, (n, k)."""
    sums: list[Any] = [np.bincount(group, weight * column)[group] for column in columns.T]
    return _stacked(sums, len(columns))


def _within(columns: Floats, group: Ints, weight: Floats) -> Floats:
    """Return columns less their weighted means in groups, (n, k)."""
    mass = np.bincount(group, weight)
    means = _sums(columns, group, weight) / np.where(mass > 0, mass, 1.0)[group][:, None]
    return columns - means


def _inverse(gram: Floats) -> Floats:
    """Return the pseudo-inverse of a Gram matrix, in the scale of its columns."""
    scale = np.sqrt(np.where(np.diag(gram) > 0, np.diag(gram), 1.0))
    whole = np.outer(scale, scale)
    inverse: Floats = np.linalg.pinv(gram / whole, rcond=1e-9, hermitian=True) / whole
    return inverse
