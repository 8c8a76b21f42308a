"""Tables that a log can be read from: each gives its rows as record batches, again and again.

A table is in memory (`ArrowTable`), in files, or a view of another one: filtered, with new names of
columns, with several columns joined into one, or with one that says which rows pass a filter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.errors import ColumnError
from ivvi.logs.tables.arrow import check_numeric, plain, plain_type
from ivvi.logs.tables.parquet_files import ParquetTable
from ivvi.logs.tables.row_filter import RowFilter

PASSES = "__passes"
"""The column that says which rows pass a filter, where the others are still looked at."""


class BatchSource(Protocol):
    """Rows that can be read again and again, in batches."""

    label: str
    schema: pa.Schema
    num_rows: int | None
    in_memory: bool
    files: Sequence[Path]

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the `columns`, at most `size` rows at a time; `numeric` ones as numbers."""
        ...


class ArrowTable:
    """A table that is already in memory."""

    in_memory = True

    def __init__(
        self, table: pa.Table, label: str = "the table", files: Sequence[Path] = ()
    ) -> None:
        self.table = plain(table)
        self.label, self.files = label, files
        self.schema = self.table.schema
        self.num_rows: int | None = table.num_rows

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield zero-copy slices."""
        check_numeric(self.schema, numeric, self.label)
        yield from self.table.select(list(columns)).to_batches(max_chunksize=size)


def filtered(table: BatchSource, where: str) -> BatchSource:
    """Return the rows of a table that pass a filter."""
    rows, label = _filter_of(table, where)
    if not isinstance(table, ArrowTable):
        return TableView(table, label, rows=rows)
    blocks = [block.filter(rows.keeps(block)) for block in table.table.to_batches()]
    passing = pa.Table.from_batches(blocks, table.schema)
    return ArrowTable(passing, label, table.files)


def flagged(table: BatchSource, where: str) -> BatchSource:
    """Return a table with one column more, `PASSES`: which of its rows pass a filter."""
    rows, label = _filter_of(table, where)
    if not isinstance(table, ArrowTable):
        return FlaggedTable(table, label, rows)
    passes = [rows.keeps(block) for block in table.table.to_batches()]
    arrow_table = table.table.append_column(PASSES, pa.chunked_array(passes, pa.bool_()))
    return ArrowTable(arrow_table, label, table.files)


def _filter_of(table: BatchSource, where: str) -> tuple[RowFilter, str]:
    """Return a filter for the rows of a table, and what these are called."""
    rows = RowFilter.of(where, table.schema, table.label)
    return rows, f"{table.label} where {' '.join(where.split())}"


def with_joined(table: BatchSource, name: str, parts: Sequence[str]) -> BatchSource:
    """Return a table with one column more, `name`: the values of the `parts`, joined."""
    if name in table.schema.names:
        raise ColumnError(
            f"the episode column {name!r}, made of {' and '.join(parts)}, has the name of an "
            "existing column; rename that one"
        )
    for part in parts:
        kind = plain_type(table.schema.field(part).type)
        if pa.types.is_nested(kind) or "binary" in str(kind):
            raise ColumnError(
                f"column {part!r} of {table.label} holds {kind}; expected numbers, text or dates"
            )
    if not isinstance(table, ArrowTable):
        return TableView(table, table.label, name=name, parts=parts)
    blocks = [_with_joined(block, name, parts) for block in table.table.to_batches()]
    schema = table.schema.append(pa.field(name, pa.string()))
    return ArrowTable(pa.Table.from_batches(blocks, schema), table.label, table.files)


def with_names(table: BatchSource, names: Mapping[str, str]) -> BatchSource:
    """Return a table with columns under new names too; `names` has the column of each."""
    if not names:
        return table
    if not isinstance(table, ArrowTable):
        return RenamedTable(table, names)
    arrow_table = table.table
    for new, old in names.items():
        arrow_table = arrow_table.append_column(new, arrow_table[old])
    return ArrowTable(arrow_table, table.label, table.files)


class TableView:
    """Rows of another table that pass a filter, or its rows with a joined column.

    Parameters
    ----------
    table
        The other table; it is read in batches, and only the columns that are needed.
    rows
        The filter.
    name, parts
        The joined column, and of which columns it is made.
    """

    def __init__(
        self,
        table: Any,
        label: str,
        *,
        rows: RowFilter | None = None,
        name: str | None = None,
        parts: Sequence[str] = (),
    ) -> None:
        self.table, self.label, self.rows = table, label, rows
        self.name, self.parts = name, tuple(parts)
        self.in_memory: bool = table.in_memory
        self.files: Sequence[Path] = table.files
        self.num_rows: int | None = None if rows else table.num_rows
        self.schema = table.schema
        if name is not None:
            self.schema = self.schema.append(pa.field(name, pa.string()))

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are kept; a batch may be short, and is never empty."""
        looked_at = () if self.rows is None else self.rows.columns
        joined = self.parts if self.name in columns else ()
        others = [name for name in columns if name != self.name]
        read = list(dict.fromkeys((*others, *joined, *looked_at)))
        numbers = [] if self.rows is None else [n for n in self.rows.numeric if n not in others]
        for block in self.table.batches(read, [*numeric, *numbers], size):
            passing = block if self.rows is None else block.filter(self.rows.keeps(block))
            if joined and self.name is not None:
                passing = _with_joined(passing, self.name, self.parts)
            if passing.num_rows:
                yield passing.select(list(columns))

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into views of pieces of at least `rows` rows, in order."""
        return [
            TableView(piece, self.label, rows=self.rows, name=self.name, parts=self.parts)
            for piece in self.table.pieces(rows)
        ]


class RenamedTable(TableView):
    """A table with columns under new names too."""

    def __init__(self, table: Any, names: Mapping[str, str]) -> None:
        super().__init__(table, table.label)
        self.names = dict(names)
        for new, old in self.names.items():
            self.schema = self.schema.append(table.schema.field(old).with_name(new))

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the columns that are asked for, whatever their names."""
        own = [self.names.get(name, name) for name in columns]
        numbers = [self.names.get(name, name) for name in numeric]
        for block in self.table.batches(list(dict.fromkeys(own)), numbers, size):
            arrays = [block.column(name) for name in own]
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [RenamedTable(piece, self.names) for piece in self.table.pieces(rows)]


class FlaggedTable(TableView):
    """A table with the column that says which of its rows pass a filter."""

    def __init__(self, table: Any, label: str, passing: RowFilter) -> None:
        super().__init__(table, label)
        self.passing = passing
        self.schema = self.schema.append(pa.field(PASSES, pa.bool_()))

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows, and which of them pass if that is asked for."""
        others = [name for name in columns if name != PASSES]
        looked_at = self.passing.columns if PASSES in columns else ()
        numbers = [n for n in self.passing.numeric if n in looked_at and n not in others]
        read = list(dict.fromkeys((*others, *looked_at)))
        for block in self.table.batches(read, [*numeric, *numbers], size):
            arrays = [
                self.passing.keeps(block) if name == PASSES else block.column(name)
                for name in columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, list(columns))

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [FlaggedTable(piece, self.label, self.passing) for piece in self.table.pieces(rows)]


def in_parquet(table: Any) -> bool:
    """Return whether the rows of a table lie in Parquet files, which can be cut into pieces."""
    while isinstance(table, TableView):
        table = table.table
    return isinstance(table, ParquetTable)


def order_columns(table: Any, episode: str) -> tuple[str, ...]:
    """Return the columns in whose order the episodes of a table may come."""
    while isinstance(table, TableView):
        if table.name == episode:
            return table.parts
        table = table.table
    return (episode,)


def _with_joined(block: pa.RecordBatch, name: str, parts: Sequence[str]) -> pa.RecordBatch:
    texts = [_as_text(block.column(part)) for part in parts]
    joined = pc.binary_join_element_wise(*texts, "+")  # null where one of them is
    arrays, names = [*block.columns, joined], [*block.schema.names, name]
    return pa.RecordBatch.from_arrays(arrays, names, metadata=block.schema.metadata)


def _as_text(column: pa.Array) -> pa.Array:
    """Return values as text in which the sign that joins them is escaped."""
    if pa.types.is_floating(column.type):
        finite = pc.is_finite(column)
        return pc.if_else(finite, column, pa.scalar(None, column.type)).cast(pa.string())
    if pa.types.is_temporal(column.type) and not pa.types.is_date32(column.type):
        column = column.cast(pa.int64())
    text = column.cast(pa.string())
    for sign in ("\\", "+"):
        text = pc.replace_substring(text, sign, "\\" + sign)
    return text
