"""Terminal columns with one value and empty cells: an empty cell means that the episode goes on.

A table that marks the day of death by 1 leaves all other days empty. If these counted as missing,
every row in which nobody died would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.categories import YES, is_missing, level_text
from ivvi.errors import DataError
from ivvi.logs.columns.category_encoding import is_text
from ivvi.logs.tables.arrow import plain_type
from ivvi.logs.tables.table import ArrowTable, BatchSource, TableView

BLOCK = 1 << 16
"""Rows that are looked at together."""


def with_empty_ends(
    table: BatchSource, terminal: Sequence[str], *, again: bool = False
) -> tuple[BatchSource, tuple[str, ...]]:
    """Fill empty cells of terminal columns with "the episode continues"; note each column.

    `again` says that the log continues an earlier one: there, a column may hold empty cells only.
    """
    fills: dict[str, Any] = {}
    notes: list[str] = []
    for name in terminal:
        _check_no_date(table, name)
        values, empty, rows = _values(table, name)
        text = is_text(table.schema.field(name).type)
        if empty == rows and again and not text:
            fills[name] = 0
        value = values[0] if len(values) == 1 and empty else ""
        if value.lower() in YES:
            fills[name] = "no" if text else 0
            notes.append(
                f"{name} is {value} in {rows - empty:,} rows and empty in {empty:,}: an empty cell "
                "is read as an episode that goes on"
            )
    if not fills:
        return table, ()
    if not isinstance(table, ArrowTable):
        return FilledTable(table, fills), tuple(notes)
    arrow_table = table.table
    for name, fill in fills.items():
        chunks = [_filled(chunk, fill) for chunk in arrow_table[name].chunks]
        arrow_table = arrow_table.set_column(
            arrow_table.schema.get_field_index(name), name, pa.chunked_array(chunks)
        )
    return ArrowTable(arrow_table, table.label, table.files), tuple(notes)


class FilledTable(TableView):
    """A table in which the empty cells of some columns hold a value."""

    def __init__(self, table: Any, fills: Mapping[str, Any]) -> None:
        super().__init__(table, table.label)
        self.fills = dict(fills)
        for name, fill in self.fills.items():
            field = self.schema.field(name)
            kind = _filled(pa.nulls(1, plain_type(field.type)), fill).type
            at = self.schema.get_field_index(name)
            self.schema = self.schema.set(at, pa.field(name, kind))

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows without empty cells in these columns."""
        for block in self.table.batches(columns, numeric, size):
            arrays = [
                _filled(column, self.fills[name]) if name in self.fills else column
                for name, column in zip(block.schema.names, block.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, block.schema.names)

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [FilledTable(piece, self.fills) for piece in self.table.pieces(rows)]


def _values(table: BatchSource, name: str) -> tuple[list[str], int, int]:
    """Return up to two values of a column, and how many of the rows looked at are empty."""
    values: dict[str, None] = {}
    empty = rows = 0
    for block in table.batches([name], (), BLOCK):
        counted = pc.value_counts(block.column(name)).to_pylist()
        for one in counted:
            if is_missing(one["values"]) or not str(one["values"]).strip():
                empty += one["counts"]
            else:
                values[level_text(one["values"])] = None
        rows += block.num_rows
        if len(values) > 1:
            break
    return list(values), empty, rows


def _filled(column: pa.Array, fill: Any) -> pa.Array:
    """Return a column with a value in its empty cells."""
    if pa.types.is_null(column.type):
        column = column.cast(pa.float64())
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    if is_text(column.type):
        blank = pc.equal(pc.utf8_trim_whitespace(column), "")
        column = pc.if_else(blank, pa.scalar(None, column.type), column)
    return pc.fill_null(
        column, pa.scalar(fill, pa.int64() if fill == 0 else None).cast(column.type)
    )


def _check_no_date(table: BatchSource, name: str) -> None:
    kind = plain_type(table.schema.field(name).type)
    if pa.types.is_temporal(kind):
        raise DataError(
            f"terminal column {name!r} of {table.label} holds {kind}; expected true in the row "
            "after which the episode ended, and false in the others: compare the date with the "
            "row's own"
        )
