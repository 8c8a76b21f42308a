"""Tables that a log can be read from: Parquet, CSV and Arrow, all as record batches.

A `Table` knows its columns and gives its rows again and again in batches of bounded
size. Whatever can export the Arrow stream protocol (pandas, polars, DuckDB, Arrow
itself) becomes an `ArrowTable` without a copy where the library allows it.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from ivvi.errors import ColumnError, DataError, FileError, InputError
from ivvi.logs.remote import RemoteFile, find_remote

TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")
WHOLE_ROW_GROUP = 16 << 20
"""Bytes up to which a row group is decoded at once."""
READ_BUFFER = 1 << 16
"""Bytes that are read of a column at a time: whole columns would be in memory twice."""
ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")


SOURCE_KEY = "ivvi.source"
"""Key in a schema's metadata under which a log says where it comes from."""


class Table(Protocol):
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
        self.table = _plain(table)
        self.label, self.files = label, files
        self.schema = self.table.schema
        self.num_rows: int | None = table.num_rows

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield zero-copy slices."""
        check_numeric(self.schema, numeric, self.label)
        yield from self.table.select(list(columns)).to_batches(max_chunksize=size)


class ParquetTable:
    """One Parquet file, or several of one schema read one after the other."""

    in_memory = False

    def __init__(self, sources: Sequence[Path | RemoteFile], label: str) -> None:
        self.sources = list(sources)
        self.files: Sequence[Path] = [file for file in sources if isinstance(file, Path)]
        self.num_rows: int | None = 0
        schemas: list[pa.Schema] = []
        for file in self.sources:
            with _opened_parquet(file) as parquet:
                schemas.append(parquet.schema_arrow)
                self.num_rows += parquet.metadata.num_rows
        self.schema = schemas[0]
        source = (self.schema.metadata or {}).get(SOURCE_KEY.encode(), b"").decode()
        self.label = f"{label}, {source}" if source else label
        for file, schema in zip(self.sources[1:], schemas[1:], strict=True):
            _check_same_schema(self.sources[0], self.schema, file, schema)

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int, start: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded rows; memory stays bounded whatever the size of the row groups.

        They begin at row `start`; row groups before it are not decoded.
        """
        check_numeric(self.schema, numeric, self.label)
        for file in self.sources:
            with _opened_parquet(file) as parquet:
                groups = range(parquet.num_row_groups)
                yield from map(_plain, _decoded(parquet, groups, list(columns), size, start))
                start = max(0, start - parquet.metadata.num_rows)

    def pieces(self, rows: int) -> list[ParquetPiece]:
        """Cut the table between row groups into pieces of at least `rows` rows, in order."""
        pieces: list[ParquetPiece] = []
        for file in self.sources:
            with _opened_parquet(file) as parquet:
                about, count = parquet.metadata, parquet.num_row_groups
            first = have = 0
            for group in range(count):
                have += about.row_group(group).num_rows
                if have >= rows or group == count - 1:
                    groups = range(first, group + 1)
                    pieces.append(ParquetPiece(file.absolute(), groups, have, self))
                    first, have = group + 1, 0
        return pieces


class ParquetPiece:
    """Some row groups of one Parquet file, as a table of their own."""

    in_memory = False

    def __init__(
        self, source: Path | RemoteFile, groups: range, rows: int, whole: ParquetTable
    ) -> None:
        self.source = source
        self.files: Sequence[Path] = [source] if isinstance(source, Path) else []
        self.groups = groups
        self.num_rows: int | None = rows
        self.label, self.schema = whole.label, whole.schema

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded rows."""
        check_numeric(self.schema, numeric, self.label)
        with _opened_parquet(self.source) as parquet:
            yield from map(_plain, _decoded(parquet, self.groups, list(columns), size))


class CsvTable:
    """One or several CSV (or TSV) files with a header, gzipped or not."""

    in_memory = False
    num_rows: int | None = None

    def __init__(self, files: Sequence[Path], label: str) -> None:
        self.files: Sequence[Path] = list(files)
        self.label = label
        schemas = [self._guessed_schema(file) for file in self.files]
        self.schema = schemas[0]
        for file, schema in zip(self.files[1:], schemas[1:], strict=True):
            _check_same_names(self.files[0], self.schema, file, schema)

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield parsed rows; what is not a number in a numeric column is named."""
        types = {name: self.schema.field(name).type for name in columns}
        types |= {name: pa.float64() for name in numeric if types[name] != pa.bool_()}
        types = {name: kind for name, kind in types.items() if kind != pa.null()}
        for file in self.files:
            with self._explained(file, [name for name in numeric if name in types]):
                for block in _open_csv(file, include_columns=list(columns), column_types=types):
                    for start in range(0, block.num_rows, size):
                        yield block.slice(start, size)

    def _guessed_schema(self, file: Path) -> pa.Schema:
        """Return the columns with the types that the first rows suggest."""
        with self._explained(file):
            return _open_csv(file).schema

    @contextlib.contextmanager
    def _explained(self, file: Path, numeric: Sequence[str] = ()) -> Iterator[None]:
        """Turn what Arrow says about a file into a sentence of ours."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if "conversion error to double" in str(error):
                self._check_no_text(file, numeric)
            raise FileError(f"{file} cannot be read as CSV: {_first_line(error)}") from error

    def _check_no_text(self, file: Path, numeric: Sequence[str]) -> None:
        """If a numeric column holds text, raise naming the column, the row and the text."""
        types = dict.fromkeys(numeric, pa.string())
        row = 0
        for block in _open_csv(file, column_types=types):
            for name in numeric:
                for offset, text in enumerate(block.column(name).to_pylist()):
                    if text and not _is_number(text):
                        raise ColumnError(
                            f"column {name!r} of {file} holds text: {text!r} in data row "
                            f"{row + offset} (from 0); numbers are wanted"
                        )
            row += block.num_rows


def open_table(source: Any) -> Table:
    """Turn a path, a glob, or anything table-like into a `Table`."""
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
        if hasattr(source, "__arrow_c_stream__"):
            return ArrowTable(pa.table(source))
        if type(source).__module__.split(".")[0] == "pandas":
            return ArrowTable(pa.Table.from_pandas(source, preserve_index=False))
    except pa.ArrowException as error:  # such as numbers and text in one column
        raise ColumnError(f"the table cannot be read: {'; '.join(error.args)}") from error
    raise InputError(
        f"cannot read a log from {type(source).__name__}: a path, a table (Arrow, pandas, "
        "polars), a dict of arrays or a Minari data set is wanted"
    )


def skip_rows(blocks: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the blocks without the first `rows` rows."""
    for block in blocks:
        if rows < block.num_rows:
            yield block.slice(rows)
        rows = max(0, rows - block.num_rows)


def check_numeric(schema: pa.Schema, names: Sequence[str], label: str) -> None:
    """Refuse columns that cannot be numbers."""
    for name in names:
        kind = _plain_type(schema.field(name).type)
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_null(kind)
        ):
            raise ColumnError(f"column {name!r} of {label} holds {kind}; numbers are wanted")


def _open_path(path: str) -> Table:
    if "://" in path:
        return ParquetTable(find_remote(path), path)
    if os.path.isdir(path):
        files = sorted(
            file
            for file in Path(path).rglob("*")
            if file.suffix in PARQUET_SUFFIXES and not file.name.startswith((".", "_"))
        )
        if not files:
            raise FileError(f"the folder {path} holds no Parquet file (*.parquet)")
        return ParquetTable(files, path)
    if glob.has_magic(path) and not os.path.exists(path):
        files = sorted(Path(match) for match in glob.glob(path, recursive=True))
        if not files:
            raise FileError(f"no file matches {path}")
    else:
        files = [Path(path)]
    if not files[0].exists():
        raise FileError(f"{path} does not exist")
    name = files[0].name.lower()
    if name.endswith(TEXT_SUFFIXES):
        return CsvTable(files, path)
    if name.endswith(ARROW_SUFFIXES):
        return ArrowTable(_read_arrow(files), path, files)
    if name.endswith(PARQUET_SUFFIXES):
        return ParquetTable(files, path)
    raise FileError(f"{path} has no known ending; .parquet, .csv, .tsv or .arrow is wanted")


@contextlib.contextmanager
def _opened_parquet(file: Path | RemoteFile) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; what Arrow says about it becomes a sentence of ours."""
    try:
        with contextlib.ExitStack() as stack:
            source = file if isinstance(file, Path) else stack.enter_context(file.open())
            settings = {"pre_buffer": False, "buffer_size": READ_BUFFER}
            yield stack.enter_context(pq.ParquetFile(source, **settings))
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{file} cannot be read as Parquet: {_first_line(error)}") from error


def _decoded(
    parquet: pq.ParquetFile, groups: range, columns: list[str], size: int, start: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield rows; a row group is decoded whole when it is small (faster), else in pieces."""
    for index in groups:
        about = parquet.metadata.row_group(index)
        if about.num_rows > start:
            if about.total_byte_size <= WHOLE_ROW_GROUP:
                group = parquet.read_row_group(index, columns=columns, use_threads=False)
                blocks = group.to_batches(max_chunksize=size)
            else:
                blocks = parquet.iter_batches(
                    size, row_groups=[index], columns=columns, use_threads=False
                )
            yield from skip_rows(blocks, start)
        start = max(0, start - about.num_rows)


def _open_csv(file: Path, **options: Any) -> pa.csv.CSVStreamingReader:
    delimiter = "\t" if ".tsv" in file.name.lower() else ","
    return pa.csv.open_csv(
        file,
        parse_options=pa.csv.ParseOptions(delimiter=delimiter),
        convert_options=pa.csv.ConvertOptions(strings_can_be_null=True, **options),
    )


def _read_arrow(files: Sequence[Path]) -> pa.Table:
    tables = []
    for file in files:
        try:
            tables.append(_plain(pa.ipc.open_file(pa.memory_map(str(file))).read_all()))
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{file} cannot be read as Arrow: {_first_line(error)}") from error
    for file, table in zip(files[1:], tables[1:], strict=True):
        _check_same_schema(files[0], tables[0].schema, file, table.schema)
    return pa.concat_tables([table.select(tables[0].schema.names) for table in tables])


def _plain(rows: Any) -> Any:
    """Return a table or batch without what Arrow cannot sort or compare across batches.

    Dictionaries and views are written out; marks that a column has no nulls are dropped.
    """
    columns = [_plain_column(column) for column in rows.columns]
    return type(rows).from_arrays(columns, rows.schema.names, metadata=rows.schema.metadata)


def _plain_column(column: Any) -> Any:
    kind = _plain_type(column.type)
    if kind == column.type:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_plain_column(chunk) for chunk in column.chunks], type=kind)
    if pa.types.is_dictionary(column.type):
        return column.dictionary.cast(kind).take(column.indices)
    return column.cast(kind)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _check_same_schema(first: Any, wanted: pa.Schema, file: Any, found: pa.Schema) -> None:
    _check_same_names(first, wanted, file, found)
    for name in wanted.names:
        one, other = (_plain_type(schema.field(name).type) for schema in (wanted, found))
        if one != other:
            raise FileError(
                f"column {name!r} is {other} in {file} but {one} in {first}; one type is wanted"
            )


def _check_same_names(first: Any, wanted: pa.Schema, file: Any, found: pa.Schema) -> None:
    missing = [name for name in wanted.names if name not in found.names]
    extra = [name for name in found.names if name not in wanted.names]
    if missing or extra:
        what = f"lacks column {missing[0]!r}" if missing else f"has another column, {extra[0]!r}"
        raise FileError(f"{file} {what}: its columns differ from those of {first}")


def _table_of_arrays(arrays: Mapping[str, Any]) -> pa.Table:
    columns: dict[str, Any] = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        if array.ndim == 2:  # a block of columns: x -> x0, x1, ...
            added = {f"{name}{i}": array[:, i] for i in range(array.shape[1])}
        elif array.ndim == 1:
            added = {name: array}
        else:
            raise DataError(
                f"array {name!r} has shape {array.shape}; (rows,) or (rows, columns) is wanted"
            )
        if both := sorted(columns.keys() & added):
            raise ColumnError(f"the arrays give column {both[0]!r} twice")
        columns |= added
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the arrays differ in length: {lengths}")
    return pa.table(columns)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
