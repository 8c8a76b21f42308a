"""Rows that pass a filter more often where the instrument is high: the filter selects.

Wages of those who are employed, where the action moved employment: the rows that pass are a
selected sample, as are rows with a missing wage (`lost_rows`, whose test it is). A filter on what
was settled before the action does not go with an instrument that is as good as random.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Floats, Ints
from ivvi.diagnostics.misspecification.lost_rows import FEWEST_CLUSTERS, by_half, tested
from ivvi.errors import InputError
from ivvi.logs import Log, Roles
from ivvi.logs.columns.times import as_dates
from ivvi.logs.evenly_spaced_rows import spread_table
from ivvi.logs.instruments.assignment_level import ROWS_PER_GROUP
from ivvi.logs.tables.arrow import as_numpy, plain_type
from ivvi.logs.tables.row_filter import RowFilter
from ivvi.logs.tables.table import ArrowTable, BatchSource


def filtered_rows(log: Log) -> str:
    """Return a warning if rows pass the filter more often where an instrument is high, else ''.

    Silent where the filter looks at the instrument, at keys, states or dates, and where its
    columns are outcomes by name, which is told when a log is opened.
    """
    roles, table = log.roles, log.unfiltered
    if roles.where is None or table is None or roles.weight:
        return ""
    keep = RowFilter.of(roles.where, table.schema, table.label)
    instruments = _numeric(table, roles.instrument)
    asked = [name for name in keep.columns if name not in _settled(roles)]
    outcomes = {*roles.action, *roles.next_state, *roles.terminal, roles.reward}
    if not (instruments and asked) or {*roles.instrument, *outcomes} & set(keep.columns):
        return ""
    groups = [n for n in (*roles.set_by, *_keys(roles)) if n in table.schema.names][:1]
    states = _numeric(table, roles.state)
    numeric = (*instruments, *states)
    block = _rows(table, (*numeric, *keep.columns, *groups), (*numeric, *keep.numeric), log)
    if block is None or any(_are_dates(block, name) for name in asked):
        return ""
    x, z = _matrix(block, states), _matrix(block, instruments)
    usable = np.asarray(np.isfinite(x).all(axis=1) & np.isfinite(z).all(axis=1))
    passes = as_numpy(keep.keeps(block)).astype(bool)[usable]
    cluster = _clusters(block, groups, usable, z[usable])
    place = np.zeros((len(passes), 2), dtype=np.int64)
    result = tested(passes, x[usable], z[usable], place, cluster)
    if result is None:
        return ""
    worst, t = result
    return (
        f"rows pass the filter (where=, --where) {'more' if t > 0 else 'less'} often where "
        f"{instruments[worst]} is high ({by_half(z[usable, worst], passes)}): if the action moves "
        f"{' or '.join(asked)}, the rows that pass are a selected sample and effects in them are "
        "biased; keep all rows, or filter on what was settled before the action"
    )


def _settled(roles: Roles) -> set[str]:
    """Name the columns that the action of a row does not move."""
    return {*roles.state, *roles.keys, *_keys(roles), *roles.groups, *roles.set_by, *roles.cluster}


def _keys(roles: Roles) -> tuple[str, ...]:
    return roles.episode_parts or ((roles.episode,) if roles.episode else ())


def _numeric(table: BatchSource, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns, of those named, that the table holds as numbers."""
    kinds = {field.name: plain_type(field.type) for field in table.schema if field.name in names}
    return tuple(
        n for n in names if n in kinds and (pa.types.is_integer(kinds[n]) or _is_float(kinds[n]))
    )


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _rows(
    table: BatchSource, names: tuple[str, ...], numeric: tuple[str, ...], log: Log
) -> pa.RecordBatch | None:
    """Return rows of a table, spread over it where it is in memory."""
    columns, size = list(dict.fromkeys(names)), log.head_rows
    if isinstance(table, ArrowTable):
        short = spread_table(table.table.select(columns), size, None)
        table = table if short is None else ArrowTable(short, table.label, table.files)
    try:
        return next(iter(table.batches(columns, list(dict.fromkeys(numeric)), 2 * size)), None)
    except InputError:  # a value that was removed need not be readable
        return None


def _matrix(block: pa.RecordBatch, names: tuple[str, ...]) -> Floats:
    columns = [as_numpy(block.column(name)).astype(float) for name in names]
    return np.column_stack(columns) if columns else np.empty((block.num_rows, 0))


def _are_dates(block: pa.RecordBatch, name: str) -> bool:
    """Return whether a column holds dates, years or months, with which instruments may change."""
    column, kind = block.column(name), plain_type(block.column(name).type)
    if pa.types.is_temporal(kind):
        return True
    if not pa.types.is_integer(kind):
        return False
    values = np.unique(as_numpy(column.drop_null()).astype(float))
    return bool(len(values)) and as_dates(values) is not None


def _clusters(block: pa.RecordBatch, groups: list[str], usable: np.ndarray, z: Floats) -> Ints:
    """Number the independent draws: the groups of an instrument, its own values, or rows."""
    if groups:
        coded = block.column(groups[0]).dictionary_encode(null_encoding="encode")
        return np.asarray(as_numpy(coded.indices)[usable], dtype=np.int64)
    for column in z.T:
        values, at = np.unique(column, return_inverse=True)
        if FEWEST_CLUSTERS < len(values) <= len(z) / ROWS_PER_GROUP:
            return at.astype(np.int64)
    return np.arange(len(z))
