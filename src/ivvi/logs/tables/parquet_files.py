"""Parquet files as a table, on disk and on object stores, decoded in bounded memory.

Names of folders such as ``logs/year=2024/month=1/part.parquet`` are columns too.
"""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ivvi.errors import FileError, InputError
from ivvi.logs.tables.arrow import (
    cast_columns,
    casts,
    check_numeric,
    first_line,
    plain,
    skip_rows,
    widened,
)

SUFFIXES = (".parquet", ".pq")
WHOLE_ROW_GROUP = 16 << 20
"""Row groups of at most this many bytes are decoded at once."""
TINY_ROW_GROUP = 1 << 10
"""In files of many row groups, those with fewer rows are read together."""
FEW_ROW_GROUPS = 256
"""Up to this many row groups, each is read by itself; the time for one grows with their number."""
MOST_TOGETHER = 1 << 10
READ_BUFFER = 1 << 16
"""Bytes of a column that are read at a time: whole columns would be in memory twice."""
SOURCE_KEY = "ivvi.source"
"""Metadata key of a schema that records where a log comes from."""
LAST = "\U0010ffff"
"""A text after all others."""
NULL = "__HIVE_DEFAULT_PARTITION__"
"""Name of the partition folder for rows without a value."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file known by its URL."""

    url: str

    def open(self) -> Any:
        """Open it for reading; its bytes are fetched as they are asked for."""
        import fsspec  # comes with ivvi[dask]

        return fsspec.open(self.url, "rb")

    def absolute(self) -> RemoteFile:
        """Return the file: a URL is the same everywhere."""
        return self

    def __str__(self) -> str:
        return self.url


def find_remote(url: str) -> list[RemoteFile]:
    """Return the Parquet files that a URL, a URL with a glob, or that of a folder names."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError(f"{url} needs fsspec; run pip install 'ivvi[dask]'") from error
    try:
        system, path = url_to_fs(url)
        if glob.has_magic(path):
            paths = sorted(system.glob(path))
        else:
            paths = sorted(system.find(path)) if system.isdir(path) else [path]
    except (ImportError, OSError, ValueError) as error:  # a protocol without its package
        raise FileError(f"{url} cannot be opened: {error}") from error
    names = [name for name in paths if name.endswith(SUFFIXES)]
    if not names:
        raise FileError(f"{url} matches no Parquet file (*.parquet)")
    return [RemoteFile(system.unstrip_protocol(name)) for name in names]


def is_parquet(file: Path) -> bool:
    """Return whether a file of a folder is meant to be read; hidden ones are not whole yet."""
    return file.suffix in SUFFIXES and not file.name.startswith((".", "_")) and file.is_file()


class ParquetTable:
    """One Parquet file, or several with the same columns read one after the other.

    A column that has one type in some files and another in others has one that holds both, and
    `casts` says which columns of each file are changed to it.

    Where a `root` is given, the names of the folders below it (``year=2024``) are columns too:
    `partitions` has their schema, and `constants` their values for each file.

    Columns with other names in the files are `stored_as` these.
    """

    in_memory = False

    def __init__(
        self,
        sources: Sequence[Path | RemoteFile],
        label: str,
        root: str | None = None,
        *,
        stored_as: Mapping[str, str] | None = None,
    ) -> None:
        self.sources, self.stored_as = list(sources), dict(stored_as or {})
        self.files: Sequence[Path] = [file for file in sources if isinstance(file, Path)]
        self.num_rows: int | None = 0
        schemas: list[pa.Schema] = []
        for file in self.sources:
            with _opened_parquet(file) as parquet:
                schemas.append(parquet.schema_arrow)
                self.num_rows += parquet.metadata.num_rows
        self.schema = _with_shown_names(schemas[0], self.stored_as)
        source = (self.schema.metadata or {}).get(SOURCE_KEY.encode(), b"").decode()
        self.label = f"{label}, {source}" if source else label
        for file, schema in zip(self.sources[1:], schemas[1:], strict=True):
            self.schema = widened(self.sources[0], self.schema, file, schema)
        self.casts = [casts(schema, self.schema) for schema in schemas]
        self.partitions, self.constants = partition_columns(self.sources, root, self.schema.names)
        for field in self.partitions:
            self.schema = self.schema.append(field)

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int, start: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded rows; memory stays bounded whatever the size of the row groups.

        They begin at row `start`; row groups before it are not decoded.
        """
        check_numeric(self.schema, numeric, self.label)
        own = [self.stored_as.get(name, name) for name in columns]
        for file, constants, kinds in zip(self.sources, self.constants, self.casts, strict=True):
            with _opened_parquet(file) as parquet:
                groups = range(parquet.num_row_groups)
                for rows in _decoded(parquet, groups, own, size, constants, start):
                    known = cast_columns(rows, kinds)
                    yield _with_shown(known, self.stored_as) if self.stored_as else known
                start = max(0, start - parquet.metadata.num_rows)

    def lowest_texts(self, names: Sequence[str]) -> dict[str, str]:
        """Return the least text of columns, of those for which the files have statistics."""
        lowest = dict.fromkeys(names, LAST)
        for file in self.sources:
            with _opened_parquet(file) as parquet:
                about = parquet.metadata
                paths = [about.schema.column(i).path for i in range(about.num_columns)]
            for name in list(lowest):
                stored = self.stored_as.get(name, name)
                column = paths.index(stored) if paths.count(stored) == 1 else None
                least = None if column is None else _least_text(about, column)
                if least is None:
                    del lowest[name]
                else:
                    lowest[name] = min(lowest[name], least)
        return lowest

    def pieces(self, rows: int) -> list[ParquetPiece]:
        """Cut the table between row groups into pieces of at least `rows` rows, in order."""
        pieces: list[ParquetPiece] = []
        for file, constants, kinds in zip(self.sources, self.constants, self.casts, strict=True):
            with _opened_parquet(file) as parquet:
                about, count = parquet.metadata, parquet.num_row_groups
            first = have = 0
            for group in range(count):
                have += about.row_group(group).num_rows
                if have >= rows or group == count - 1:
                    piece = file.absolute(), range(first, group + 1), have, constants
                    pieces.append(ParquetPiece(*piece, kinds, self))
                    first, have = group + 1, 0
        return pieces


class ParquetPiece:
    """Some row groups of one Parquet file, as a table of their own."""

    in_memory = False

    def __init__(
        self,
        source: Path | RemoteFile,
        groups: range,
        rows: int,
        constants: dict[str, pa.Scalar],
        kinds: dict[str, pa.DataType],
        whole: ParquetTable,
    ) -> None:
        self.source = source
        self.files: Sequence[Path] = [source] if isinstance(source, Path) else []
        self.groups, self.constants, self.casts = groups, constants, kinds
        self.num_rows: int | None = rows
        self.label, self.schema, self.stored_as = whole.label, whole.schema, whole.stored_as

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield decoded rows."""
        check_numeric(self.schema, numeric, self.label)
        own = [self.stored_as.get(name, name) for name in columns]
        with _opened_parquet(self.source) as parquet:
            for rows in _decoded(parquet, self.groups, own, size, self.constants):
                known = cast_columns(rows, self.casts)
                yield _with_shown(known, self.stored_as) if self.stored_as else known


def _least_text(about: Any, column: int) -> str | None:
    """Return the least text of a column of a file, or None if the file does not say."""
    least = LAST
    for group in range(about.num_row_groups):
        facts = about.row_group(group).column(column).statistics
        rows = about.row_group(group).num_rows
        if facts is not None and facts.has_null_count and facts.null_count == rows:
            continue
        if facts is None or not facts.has_min_max or not isinstance(facts.min, str):
            return None
        least = min(least, facts.min)
    return least


def _with_shown_names(schema: pa.Schema, stored_as: Mapping[str, str]) -> pa.Schema:
    """Return a file's schema under the names of the table."""
    shown = {stored: name for name, stored in stored_as.items()}
    fields = [field.with_name(shown.get(field.name, field.name)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _with_shown(rows: pa.RecordBatch, stored_as: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows of a file under the names of the table."""
    shown = {stored: name for name, stored in stored_as.items()}
    return rows.rename_columns([shown.get(name, name) for name in rows.schema.names])


def partition_columns(
    sources: Sequence[Any], root: str | None, stored: Sequence[str]
) -> tuple[pa.Schema, list[dict[str, pa.Scalar]]]:
    """Return the columns in the names of the folders between a root and each file.

    They are those that the folders of every file name. Values that are whole numbers in all
    the names are integers, others are text. A column that the files hold too is theirs.

    Parameters
    ----------
    sources
        Files, whose ``str`` is their path or URL.
    root
        Where the names begin to count; None where they do not.
    stored
        Names of the columns in the files.
    """
    named = [{} if root is None else _in_path(str(file).removeprefix(root)) for file in sources]
    shared = [key for key in named[0] if key not in stored and all(key in one for one in named)]
    kinds = {key: _kind([one[key] for one in named]) for key in shared}
    constants = [{key: _scalar(one[key], kind) for key, kind in kinds.items()} for one in named]
    return pa.schema(list(kinds.items())), constants


def with_constants(
    rows: pa.RecordBatch, constants: dict[str, pa.Scalar], columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the `columns` of some rows, of which some are the same in all rows."""
    arrays = [
        pa.repeat(constants[name], rows.num_rows) if name in constants else rows.column(name)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns), metadata=rows.schema.metadata)


@contextlib.contextmanager
def _opened_parquet(file: Path | RemoteFile) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; Arrow's errors become an `InputError` with one sentence."""
    try:
        with contextlib.ExitStack() as stack:
            source = file if isinstance(file, Path) else stack.enter_context(file.open())
            settings = {"pre_buffer": False, "buffer_size": READ_BUFFER}
            yield stack.enter_context(pq.ParquetFile(source, **settings))
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"{file} cannot be read as Parquet: {first_line(error)}") from error


def _decoded(
    parquet: pq.ParquetFile,
    groups: range,
    columns: list[str],
    size: int,
    constants: dict[str, pa.Scalar],
    start: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Yield rows; row groups are decoded whole, tiny ones together, and large ones in pieces."""
    stored = [name for name in columns if name not in constants]
    stored = stored or parquet.schema_arrow.names[:1]  # which says how many rows there are
    for together, rows_in in _row_groups(parquet.metadata, groups, size):
        if rows_in > start:
            if len(together) > 1:
                group = parquet.read_row_groups(together, columns=stored, use_threads=False)
                blocks = group.combine_chunks().to_batches(max_chunksize=size)
            elif parquet.metadata.row_group(together[0]).total_byte_size <= WHOLE_ROW_GROUP:
                group = parquet.read_row_group(together[0], columns=stored, use_threads=False)
                blocks = group.to_batches(max_chunksize=size)
            else:
                blocks = parquet.iter_batches(
                    size, row_groups=together, columns=stored, use_threads=False
                )
            for block in skip_rows(blocks, start):
                rows = plain(block)
                yield with_constants(rows, constants, columns) if constants else rows
        start = max(0, start - rows_in)


def _row_groups(about: Any, groups: range, size: int) -> Iterator[tuple[list[int], int]]:
    """Yield row groups that are read at once, with their rows: tiny ones together."""
    together: list[int] = []
    rows = 0
    for index in groups:
        group = about.row_group(index)
        if group.num_rows >= TINY_ROW_GROUP or about.num_row_groups <= FEW_ROW_GROUPS:
            if together:
                yield together, rows
            yield [index], group.num_rows
            together, rows = [], 0
            continue
        together.append(index)
        rows += group.num_rows
        if rows >= min(size, TINY_ROW_GROUP) or len(together) == MOST_TOGETHER:
            yield together, rows
            together, rows = [], 0
    if together:
        yield together, rows


def _in_path(path: str) -> dict[str, str]:
    folders = re.split(r"[/\\]", path)[:-1]
    pairs = (folder.split("=", 1) for folder in folders if folder.find("=") > 0)
    return {unquote(key): unquote(value) for key, value in pairs}


def _kind(values: Sequence[str]) -> pa.DataType:
    whole = all(re.fullmatch(r"-?\d{1,18}", value) for value in values if value != NULL)
    return pa.int64() if whole else pa.string()


def _scalar(value: str, kind: pa.DataType) -> pa.Scalar:
    parsed = int(value) if kind == pa.int64() and value != NULL else value
    return pa.scalar(None if value == NULL else parsed, kind)
