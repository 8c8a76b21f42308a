"""Bringing rows into the order (episode, step), in memory or on disk.

A log that is in order is streamed. Any other log is sorted. A log in memory is sorted there with
Arrow; otherwise DuckDB, which spills to disk, sorts it into a temporary Parquet file that lives as
long as the sorted table does.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ivvi._io.memory import check_memory
from ivvi._io.replacing import remove_left_by_the_dead, run_prefix
from ivvi._io.signals import temporary
from ivvi.errors import DataError, FileError
from ivvi.logs.queries import (
    KEY_BATCH,
    connected,
    in_real_names,
    made_table,
    present,
    quote,
    rows_of,
    text_of,
)
from ivvi.logs.tables.arrow import as_arrow
from ivvi.logs.tables.table import ArrowTable, BatchSource

SORTING = "ivvi-sort-"
"""Prefix of the temporary folders for sorting."""
SORT_ROOM = 3 << 29
"""Bytes that DuckDB needs to stay within its limit; with less it crashes."""
logger = logging.getLogger(__name__)


def is_ordered(table: BatchSource, keys: Sequence[str]) -> bool:
    """Whether the keys, (episode, step), increase from row to row, by one pass over them."""
    return ordered_ends(table, keys) is not None


def ordered_ends(table: BatchSource, keys: Sequence[str]) -> list[pa.RecordBatch] | None:
    """Return the keys of the first and the last row, or None if they are in no order.

    The keys are the columns of the episode and then the step. They are in order if they
    increase from row to row; rows that miss one of them are in no order. A table of one row
    has one end, one of no rows has none.
    """
    first: pa.RecordBatch | None = None
    last: pa.RecordBatch | None = None
    rows = 0
    for batch in table.batches(keys, keys[-1:], KEY_BATCH):
        if not batch.num_rows:
            continue
        if any(pc.any(pc.is_null(key, nan_is_null=True)).as_py() for key in batch.columns):
            return None
        if last is not None:
            pairs = zip(last.columns, batch.slice(0, 1).columns, strict=True)
            if not _ascends(*(pa.concat_arrays(pair) for pair in pairs)):
                return None
        if not _ascends(*batch.columns):
            return None
        first = batch.slice(0, 1) if first is None else first
        last = batch.slice(batch.num_rows - 1)
        rows += batch.num_rows
    ends = [] if first is None else [first, last][: min(rows, 2)]
    return [end.take(_first_row()) for end in ends]  # copies: a slice keeps its whole batch


def _first_row() -> pa.Array:
    """Return the indices [0]; made of a list, Arrow would import pandas."""
    return as_arrow(np.zeros(1, np.int64))


def sort_table(
    table: BatchSource, columns: Sequence[str], numeric: Sequence[str], keys: Sequence[str]
) -> BatchSource:
    """Return the `columns` of the table in the order of the `keys`."""
    in_memory = isinstance(table, ArrowTable)
    logger.info("%s is sorted by %s %s", table.label, keys, "in memory" if in_memory else "on disk")
    if isinstance(table, ArrowTable):
        ordered = table.table.select(list(columns)).sort_by([(key, "ascending") for key in keys])
        return ArrowTable(ordered, table.label)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        rows = rows_of(table, columns, numeric, Path(folder))
        target = Path(folder) / "sorted.parquet"
        order = ", ".join(quote(name) for name in keys)
        _query(
            f"COPY (SELECT * FROM ({rows}) ORDER BY {order}) "
            f"TO {text_of(target)} (FORMAT parquet, COMPRESSION snappy)",
            folder,
            table.label,
        )
        ordered_table = made_table(target, table.label)
        weakref.finalize(ordered_table, stack.pop_all().close)
        return ordered_table


def check_no_duplicates(table: BatchSource, keys: Sequence[str]) -> None:
    """Refuse a table, in any order, in which two rows share all the `keys`.

    Rows that miss a key are left to the search for missing values.
    """
    if isinstance(table, ArrowTable):
        counted = table.table.group_by(list(keys)).aggregate([([], "count_all")])
        repeated = counted.filter(pc.greater(counted["count_all"], 1))
        for key in keys:
            floating = pa.types.is_floating(repeated[key].type)
            repeated = repeated.filter((pc.is_finite if floating else pc.is_valid)(repeated[key]))
        if repeated.num_rows:
            raise duplicate_error(*(repeated[key][0].as_py() for key in keys))
        return
    with temporary_folder() as folder:
        source = rows_of(table, keys, (), Path(folder))
        known = " AND ".join(present(name, table.schema.field(name).type) for name in keys)
        rows = _query(
            f"SELECT * FROM ({source}) GROUP BY ALL HAVING count(*) > 1 AND {known} LIMIT 1",
            folder,
            table.label,
        )
    if rows:
        raise duplicate_error(*rows[0])


def duplicate_error(episode: Any, step: Any, remedy: str = "") -> DataError:
    """Return the error for an (episode, step) that occurs twice."""
    return DataError(
        f"episode {episode!r} has step {step!r} twice; each (episode, step) must be one row"
        + remedy
    )


def _ascends(*keys: pa.Array) -> bool:
    """Whether the keys increase from one row to the next, the first before the others."""
    n = len(keys[0])
    pairs = [(key.slice(1), key.slice(0, n - 1)) for key in keys]
    same = None
    for after, before in pairs[:-1]:
        falls, equal = pc.less(after, before), pc.equal(after, before)
        if pc.any(falls if same is None else pc.and_(same, falls)).as_py():
            return False
        same = equal if same is None else pc.and_(same, equal)
    return not pc.any(pc.and_(same, pc.less_equal(*pairs[-1]))).as_py()


def _query(sql: str, folder: str, label: str) -> list[tuple[Any, ...]]:
    check_memory(SORT_ROOM, f"sorting {label}")
    import duckdb  # heavy, and only unordered logs on disk need it

    try:
        with connected(folder) as db:
            rows: list[tuple[Any, ...]] = db.execute(sql).fetchall()
    except (duckdb.Error, RuntimeError) as error:
        if isinstance(error, duckdb.InterruptException) or "interrupt" in str(error).lower():
            raise KeyboardInterrupt from error
        raise FileError(f"{label} cannot be sorted: {in_real_names(str(error))}") from error
    return rows


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield a folder that is removed after use, also when the process is asked to end.

    Folders that killed runs have left behind are removed too.
    """
    remove_left_by_the_dead(Path(tempfile.gettempdir()), SORTING)
    with tempfile.TemporaryDirectory(prefix=run_prefix(SORTING)) as name, temporary(Path(name)):
        yield name
