"""Rows as DuckDB reads them, under names of columns in which case counts.

DuckDB ignores case in names, and renames the second of ``Dose`` and ``dose``. In queries a column
is therefore called by the bytes of its name, ``c_646f7365``; results get the real names back.
"""

from __future__ import annotations

import contextlib
import glob
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ivvi.errors import DataError, FileError
from ivvi.logs.tables.arrow import first_line
from ivvi.logs.tables.parquet_files import ParquetTable
from ivvi.logs.tables.table import PASSES, ArrowTable, BatchSource

KEY_BATCH = 1 << 18
SORT_MEMORY = "1GB"
PREFIX = "c_"


def alias(name: str) -> str:
    """Return what a column is called in queries."""
    return name if name == PASSES else PREFIX + name.encode("utf-8", "surrogatepass").hex()


def real_name(name: str) -> str:
    """Return the column of which a name in a query is the alias; other names stay."""
    if not re.fullmatch(rf"{PREFIX}([0-9a-f]{{2}})*", name):
        return name
    return bytes.fromhex(name.removeprefix(PREFIX)).decode("utf-8", "surrogatepass")


def quote(name: str) -> str:
    """Return a column for SQL."""
    return f'"{alias(name)}"'


def text_of(value: Any) -> str:
    """Quote a text for SQL."""
    return "'" + str(value).replace("'", "''") + "'"


def present(name: str, kind: pa.DataType) -> str:
    """Return the condition that a column has a value, for SQL."""
    finite = f" AND isfinite({quote(name)})" if pa.types.is_floating(kind) else ""
    return f"{quote(name)} IS NOT NULL{finite}"


def rows_of(
    table: BatchSource, columns: Sequence[str], numeric: Sequence[str], folder: Path
) -> str:
    """Return the `columns` of a table as a query over Parquet files, of which one may be written.

    Names that stand twice in the table, which nobody can have asked for, are left out.
    """
    names = [name for name in dict.fromkeys(columns) if table.schema.names.count(name) == 1]
    stored = _stored_names(table)
    if stored is not None and isinstance(table, ParquetTable):
        selected = (f"{_as_written(stored[name])} AS {quote(name)}" for name in names)
        return f"SELECT {', '.join(selected)} FROM {_read(table.sources)}"
    spool = folder / "spool.parquet"
    writer: pq.ParquetWriter | None = None
    for batch in table.batches(names, numeric, KEY_BATCH):
        rows = batch.rename_columns([alias(name) for name in names])
        writer = writer or pq.ParquetWriter(spool, rows.schema)
        writer.write_batch(rows)
    if writer is None:
        raise DataError(f"{table.label} has no rows")
    writer.close()
    return f"SELECT * FROM {_read([spool])}"


def with_aliases(table: ArrowTable) -> pa.Table:
    """Return a table in memory as queries see it."""
    names = [name for name in table.schema.names if table.schema.names.count(name) == 1]
    return table.table.select(names).rename_columns([alias(name) for name in names])


def with_real_names(rows: pa.Table) -> pa.Table:
    """Return the result of a query with the real names of its columns."""
    return rows.rename_columns([real_name(name) for name in rows.column_names])


def made_table(file: Path, label: str) -> ParquetTable:
    """Open a file that a query has written."""
    stored = {real_name(name): name for name in pq.read_schema(file).names}
    return ParquetTable([file], label, stored_as=stored)


def connected(folder: str) -> Any:
    """Connect to DuckDB with bounded memory; what does not fit spills to the folder."""
    import duckdb  # heavy

    return duckdb.connect(config={"memory_limit": SORT_MEMORY, "temp_directory": folder})


@contextlib.contextmanager
def explained(label: str) -> Iterator[None]:
    """Turn an error of DuckDB about a table into one sentence."""
    try:
        yield
    except Exception as error:
        duckdb = sys.modules.get("duckdb")  # heavy, and only few logs need it
        if duckdb is None or not isinstance(error, duckdb.Error):
            raise
        reason = in_real_names(first_line(error))
        raise FileError(f"{label} cannot be prepared: {reason}") from error


def in_real_names(text: str) -> str:
    """Return a message of DuckDB with the real names of columns."""
    return re.sub(rf"{PREFIX}(?:[0-9a-f]{{2}})+", lambda found: real_name(found[0]), text)


def _stored_names(table: BatchSource) -> Mapping[str, str] | None:
    """Return the columns of files that DuckDB can read itself, with the names that it knows.

    It cannot where columns are made or changed as they are read, or names differ in case alone.
    """
    if not isinstance(table, ParquetTable) or not table.files:
        return None
    if len(table.partitions) or any(table.casts):
        return None
    stored = {name: table.stored_as.get(name, name) for name in table.schema.names}
    same = {name.casefold() for name in stored.values()}
    return stored if len(same) == len(table.schema.names) else None


def _as_written(name: str) -> str:
    """Quote a name that stands in a file."""
    return '"' + name.replace('"', '""') + '"'


def _read(files: Sequence[Any]) -> str:
    """Return the source of the files' columns, ignoring the names of folders."""
    listed = ", ".join(text_of(glob.escape(str(file))) for file in files)
    return f"read_parquet([{listed}], hive_partitioning = false)"
