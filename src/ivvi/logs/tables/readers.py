"""From a path or anything table-like to a `BatchSource`.

Whatever can export the Arrow stream protocol (pandas, polars, DuckDB, Arrow itself) becomes an
`ArrowTable` without a copy where the library allows it.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi.errors import ColumnError, DataError, FileError, InputError
from ivvi.logs.tables import parquet_files
from ivvi.logs.tables.arrow import cast_columns, casts, first_line, is_unnamed_index, plain, widened
from ivvi.logs.tables.csv_files import CsvTable
from ivvi.logs.tables.file_kinds import check_folder, check_kinds, kind_of
from ivvi.logs.tables.parquet_files import ParquetTable, find_remote, is_parquet
from ivvi.logs.tables.table import ArrowTable, BatchSource

CONVERT = {
    (".rda", ".rdata", ".rds"): "an R file; export it from R with "
    "arrow::write_parquet(table, 'log.parquet') or write.csv(table, 'log.csv', row.names = FALSE)",
    (".xlsx", ".xls", ".ods"): "a spreadsheet; save the sheet as CSV",
    (".sav", ".zsav", ".por"): "an SPSS file; save it from SPSS as CSV or .dta",
    (".json",): "JSON; convert it with "
    "pandas.read_json('log.json', dtype={ID: str}).to_parquet('log.parquet'), where ID is the "
    "column of episodes",
    (".jsonl", ".ndjson"): "JSON; convert it with pandas.read_json('log.jsonl', lines=True, "
    "dtype={ID: str}).to_parquet('log.parquet'), where ID is the column of episodes",
    (".sqlite", ".sqlite3", ".db"): "a database; write the table as CSV with sqlite3 -header -csv "
    "log.sqlite 'SELECT * FROM visits' > log.csv",
    (".duckdb",): "a database; write the table as Parquet with duckdb.connect('log.duckdb')"
    ".sql('SELECT * FROM visits').write_parquet('log.parquet')",
    (".pkl", ".pickle"): "a pickle, which may run anything when it is read; write Parquet or CSV",
    (".zip", ".bz2", ".xz", ".7z", ".zst"): "compressed; unpack it, or compress it as .csv.gz",
}
"""Files that are not read, by their endings, and how to convert them."""


def open_table(source: Any) -> BatchSource:
    """Turn a path, a glob, or anything table-like into a `BatchSource`."""
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source))
    if isinstance(source, pa.RecordBatchReader):
        return ArrowTable(source.read_all())
    if isinstance(source, pa.RecordBatch):
        return ArrowTable(pa.Table.from_batches([source]))
    if isinstance(source, pa.Table):
        return ArrowTable(source)
    if hasattr(source, "collect") and not hasattr(source, "__arrow_c_stream__"):
        source = source.collect()  # a lazy frame
    try:
        if isinstance(source, Mapping):
            return ArrowTable(_table_of_arrays(source))
        if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
            return ArrowTable(_table_of_frame(source))
        if hasattr(source, "__arrow_c_stream__"):
            return ArrowTable(pa.table(source))
    except (pa.ArrowException, TypeError) as error:  # such as numbers and text in one column
        raise ColumnError(f"the table cannot be read: {'; '.join(error.args)}") from error
    raise InputError(
        f"cannot read a log from {type(source).__name__}; expected a path, a table (Arrow, "
        "pandas, polars), a dict of arrays or a Minari data set"
    )


def _table_of_frame(frame: Any) -> pa.Table:
    """Convert a pandas frame; columns that mix numbers and text become text.

    Levels of the index that have a name become columns; others number rows and are left out.
    """
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if len(twice := frame.columns[frame.columns.duplicated()]):
        times = int((frame.columns == twice[0]).sum())
        raise ColumnError(f"the log has {times} columns named {twice[0]!r}")
    try:
        table = pa.Table.from_pandas(frame)
    except (pa.ArrowException, OverflowError):
        frame = frame.copy(deep=False)
        for name in [n for n, kind in frame.dtypes.items() if str(kind) == "object"]:
            frame[name] = frame[name].map(str, na_action="ignore")
        table = pa.Table.from_pandas(frame)
    return table.drop_columns([name for name in table.column_names if is_unnamed_index(name)])


def _open_path(path: str) -> BatchSource:
    if "://" in path:
        one = path.endswith(parquet_files.SUFFIXES) and not glob.has_magic(path)
        return ParquetTable(find_remote(path), path, None if one else "")
    try:
        return _open_local(path)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{path} cannot be opened: {reason}") from error


def _open_local(path: str) -> BatchSource:
    if os.path.isdir(path):
        files = sorted(filter(is_parquet, Path(path).rglob("*")))
        if not files:
            few = " (CSV files are named by a pattern: 'folder/*.csv')"
            hint = few if any(Path(path).glob("*.csv*")) else ""
            raise FileError(f"the folder {path} holds no Parquet file (*.parquet){hint}")
        check_folder(Path(path), files)
        check_kinds(files, path)
        return ParquetTable(files, path, str(Path(path)))
    matched = glob.has_magic(path) and not os.path.exists(path)
    if matched:
        files = sorted(Path(match) for match in glob.glob(path, recursive=True))
        if not files:
            raise FileError(f"no file matches {path}")
    else:
        files = [Path(path)]
    if not files[0].exists():
        raise FileError(f"{path} does not exist")
    _check_regular(files)
    check_kinds(files, path)
    return _open_files(files, path, "" if matched else None)


def _open_files(files: Sequence[Path], path: str, root: str | None) -> BatchSource:
    """Open files of one kind, which the ending of the first says."""
    name, kind = files[0].name.lower(), kind_of(files[0])
    if kind == "CSV":
        return CsvTable(files, path)
    if kind == "Arrow":
        return ArrowTable(_read_arrow(files), path, files)
    if kind == "Parquet":
        return ParquetTable(files, path, root)
    if kind:
        return ArrowTable(_read_by_pandas(files), path, files)
    for endings, words in CONVERT.items():
        if name.endswith(endings):
            raise FileError(f"{path} is {words}")
    raise FileError(
        f"{path} has an unknown file ending; expected .parquet, .csv, .tsv, .arrow or .dta"
    )


def _check_regular(files: Sequence[Path]) -> None:
    """Refuse anything but a regular file: a pipe or a device may never end."""
    for file in files:
        if not file.is_file():
            kind = "a folder" if file.is_dir() else "a pipe or a device"
            raise FileError(f"{file} is {kind}; expected a file")


def _read_arrow(files: Sequence[Path]) -> pa.Table:
    tables = []
    for file in files:
        try:
            tables.append(plain(pa.ipc.open_file(pa.memory_map(str(file))).read_all()))
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{file} cannot be read as Arrow: {first_line(error)}") from error
    return _concatenated(files, tables)


def _concatenated(files: Sequence[Path], tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several files with the same columns."""
    schema = tables[0].schema
    for file, table in zip(files[1:], tables[1:], strict=True):
        schema = widened(files[0], schema, file, table.schema)
    same_types = [cast_columns(table, casts(table.schema, schema)) for table in tables]
    return pa.concat_tables([table.select(schema.names) for table in same_types])


def _read_by_pandas(files: Sequence[Path]) -> pa.Table:
    """Read files of Stata or SAS; labelled values become categories."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise FileError(
            f"reading {files[0]} needs pandas, which is not installed: pip install 'ivvi[stata]'"
        ) from error
    tables: list[pa.Table] = []
    for file in files:
        try:
            if file.name.lower().endswith(".dta"):
                frame = pandas.read_stata(file)
            else:
                frame = pandas.read_sas(file, encoding="infer")
        except Exception as error:  # a damaged file makes pandas raise whatever it likes
            reason = first_line(error) if str(error).strip() else type(error).__name__
            raise FileError(f"{file} cannot be read as a Stata or SAS file: {reason}") from error
        tables.append(plain(_table_of_frame(frame)))
    return _concatenated(files, tables).replace_schema_metadata(None)


def _table_of_arrays(arrays: Mapping[str, Any]) -> pa.Table:
    columns: dict[str, Any] = {}
    for name, values in arrays.items():
        array = values if np.ma.isMaskedArray(values) else np.asarray(values)
        if array.ndim == 2:  # a block of columns: x -> x0, x1, ...
            added = {f"{name}{i}": array[:, i] for i in range(array.shape[1])}
        elif array.ndim == 1:
            added = {name: array}
        else:
            raise DataError(
                f"array {name!r} has shape {array.shape}; expected (rows,) or (rows, columns)"
            )
        if both := sorted(columns.keys() & added):
            raise ColumnError(f"the arrays give column {both[0]!r} twice")
        columns |= added
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays differ in length: {lengths}")
    try:
        return pa.table(columns)
    except OverflowError:  # a whole number of more than 64 bits, such as an id
        return pa.table({name: _as_text(values) for name, values in columns.items()})


def _as_text(values: Any) -> Any:
    """Return objects as text, None where one is missing, and other arrays as they are."""
    if getattr(values, "dtype", np.dtype(float)).kind != "O":
        return values
    return [None if value is None or value != value else str(value) for value in values]
