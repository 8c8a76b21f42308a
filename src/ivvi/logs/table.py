"""Tables that a log can be read from: each gives its rows as record batches, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from ivvi.logs.arrow import check_numeric, plain


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
    """A table that is in memory already."""

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
