"""Cells of text that hold nothing but blanks are missing values, in any kind of table.

In a CSV file an empty cell is a missing one; Parquet files and data frames tell ``""`` from null,
and a thousand rows without an id would be a single episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.logs.columns.category_encoding import is_text
from ivvi.logs.tables.csv_files import CsvTable
from ivvi.logs.tables.parquet_files import ParquetTable
from ivvi.logs.tables.table import ArrowTable, BatchSource, TableView

BLANK = r"^\s*$"
BLOCK = 1 << 16
"""Rows that are looked at together."""


def without_blanks(table: BatchSource) -> BatchSource:
    """Return the table in which cells of text with nothing but blanks are missing."""
    names = table.schema.names
    texts = [n for n in names if names.count(n) == 1 and is_text(table.schema.field(n).type)]
    if isinstance(table, ArrowTable):
        return _in_memory(table, texts)
    blank = texts if isinstance(table, CsvTable) else _with_blanks(table, texts)
    return BlankTable(table, blank) if blank else table


class BlankTable(TableView):
    """A table in which blank cells of some columns are missing."""

    def __init__(self, table: Any, names: Sequence[str]) -> None:
        super().__init__(table, table.label)
        self.names = tuple(names)

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows without blank cells."""
        for block in self.table.batches(columns, numeric, size):
            arrays = [
                _filled(column) if name in self.names and is_text(column.type) else column
                for name, column in zip(block.schema.names, block.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, block.schema.names)

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [BlankTable(piece, self.names) for piece in self.table.pieces(rows)]


def _in_memory(table: ArrowTable, texts: Sequence[str]) -> ArrowTable:
    whole = table.table
    for name in texts:
        if (column := _filled(whole[name])) is not whole[name]:
            whole = whole.set_column(whole.schema.get_field_index(name), name, column)
    return ArrowTable(whole, table.label, table.files)


def _with_blanks(table: BatchSource, texts: Sequence[str]) -> list[str]:
    """Name the columns that hold blank cells; the statistics of Parquet files mostly show them."""
    lowest = table.lowest_texts(texts) if isinstance(table, ParquetTable) else {}
    blank = {name for name in texts if lowest.get(name) == ""}
    left = [n for n in texts if n not in blank and not lowest.get(n, " ")[0].strip()]
    for block in table.batches(left, (), BLOCK) if left else ():
        blank |= {name for name in left if _is_blank(block.column(name)) is not None}
    return [name for name in texts if name in blank]


def _is_blank(column: Any) -> Any:
    """Return which cells hold nothing but blanks; None if no cell does."""
    blank = pc.match_substring_regex(column, BLANK)
    return blank if pc.any(blank).as_py() else None


def _filled(column: Any) -> Any:
    """Return a column in which blank cells are missing."""
    blank = _is_blank(column)
    return column if blank is None else pc.if_else(blank, pa.nulls(1, column.type)[0], column)
