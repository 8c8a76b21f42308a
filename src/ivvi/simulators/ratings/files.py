"""Find the ratings inside a file, a folder or a zip, and read them as an Arrow table."""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from ivvi.errors import DataError, FileError, InputError
from ivvi.simulators.ratings.columns import locate

GROUPLENS_FILES = ("ratings.dat", "ratings.csv", "u.data")
FOLDER_FILES = (*GROUPLENS_FILES, "ratings.parquet")
_GROUPLENS_COLUMNS = ("user", "movie", "rating", "timestamp")


def read_file(path: Path) -> tuple[Any, str, str]:
    """Return the table of ratings behind a path, where it was found, and a name for it.

    Parameters
    ----------
    path
        A file, a folder that holds one of `FOLDER_FILES`, or a zip that holds one of
        `GROUPLENS_FILES`; where there are several, the first in that order is read.

    Returns
    -------
    table, source, label
        A ``pyarrow.Table`` of the user, the movie and the rating column; the path of the
        file, through any zip; and a human name.

    Raises
    ------
    FileError
        If there is no such file, or it is not what its name says.
    DataError
        If the text in it is not a table of ratings.
    """
    if path.is_dir():
        path = _inside_folder(path)
    with _reading(path):
        if path.suffix.lower() == ".zip":
            return _read_zip(path)
        label = _label(path.absolute().parent.name, path.name)
        if path.suffix.lower() in {".parquet", ".pq"}:
            return _read_parquet(path), str(path), label
        with path.open("rb") as stream:
            return _read_text(stream, str(path)), str(path), label


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the low-level failures of reading a file into a `FileError`."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist; give a ratings file, folder or zip") from error
    except zipfile.BadZipFile as error:
        raise FileError(f"{path} is not a whole zip file: {error}") from error
    except (pa.ArrowException, OSError, EOFError, RuntimeError, zlib.error) as error:
        reason = str(error).partition("\n")[0]
        raise FileError(f"{path} cannot be read as ratings: {reason}") from error


def _label(container: str, name: str) -> str:
    """Return the human name of a ratings file in a folder or zip named `container`."""
    if container.lower().startswith("ml-") and name in FOLDER_FILES:
        return f"MovieLens {container} {name}"
    return name


def _inside_folder(folder: Path) -> Path:
    """Return the ratings file in a folder."""
    for name in FOLDER_FILES:
        if (folder / name).is_file():
            return folder / name
    raise FileError(f"The folder {folder} holds none of {', '.join(FOLDER_FILES)}")


def _read_zip(path: Path) -> tuple[Any, str, str]:
    """Read the ratings from a zip as GroupLens packs it, such as ml-1m/ratings.dat."""
    with zipfile.ZipFile(path) as archive:
        members = archive.namelist()
        for name in GROUPLENS_FILES:
            hits = [member for member in members if PurePosixPath(member).name == name]
            if len(hits) > 1:
                raise FileError(f"{path} holds {' and '.join(hits)}; expected one {name}")
            if hits:
                label = _label(PurePosixPath(hits[0]).parent.name or path.stem, name)
                source = f"{path}/{hits[0]}"
                with archive.open(hits[0]) as stream:
                    return _read_text(stream, source), source, label
    raise FileError(f"{path} holds none of {', '.join(GROUPLENS_FILES)}")


def _read_parquet(path: Path) -> Any:
    """Read the columns of the user, the movie and the rating from a Parquet file."""
    with pa.parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        positions = locate(names, str(path))
        return file.read(columns=[names[position] for position in positions.values()])


def _read_text(stream: IO[bytes], source: str) -> Any:
    """Read a table of text: ``::``- or tab-separated as GroupLens', or CSV with a header."""
    separator, fields, has_header = _layout(stream, source)
    positions = locate(fields, source)
    step = len(separator)  # "::" is read as ":" with an empty column between every two
    columns = [str(column) for column in range(step * (len(fields) - 1) + 1)]
    gaps = [column for column in columns if int(column) % step]
    read_columns = [columns[step * position] for position in positions.values()]
    bad_rows: list[str] = []

    def refuse(row: Any) -> str:
        bad_rows.append(row.text)
        return "error"

    try:
        table = pa.csv.read_csv(
            stream,
            pa.csv.ReadOptions(column_names=columns, skip_rows=int(has_header)),
            pa.csv.ParseOptions(delimiter=separator[0], invalid_row_handler=refuse),
            pa.csv.ConvertOptions(
                include_columns=[*read_columns, *gaps], column_types=dict.fromkeys(gaps, pa.null())
            ),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).partition("\n")[0]
        rows_read = f"the row {bad_rows[0]!r}" if bad_rows else f"others ({reason})"
        raise DataError(
            f"{source} should hold rows of {len(fields)} fields separated by {separator!r}, "
            f"but has {rows_read}"
        ) from error
    return table.select(read_columns).rename_columns(list(positions))


def _layout(stream: IO[bytes], source: str) -> tuple[str, list[str], bool]:
    """Return the separator, the column names and whether the first line is a header."""
    line = stream.readline(1 << 16)
    stream.seek(0)
    try:
        text = line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FileError(f"{source} is not a table of text (CSV, or as GroupLens ships it)")
    if not text.strip():
        raise DataError(f"{source} is empty; expected rows of user, movie and rating")
    separator = next((mark for mark in ("::", "\t") if mark in text), ",")
    if separator == ",":
        return separator, next(csv.reader([text])), True
    fields = text.split(separator)
    if not fields[0].strip().isdigit():
        return separator, fields, True
    extra = [f"column {position + 1}" for position in range(4, len(fields))]
    return separator, [*_GROUPLENS_COLUMNS, *extra][: len(fields)], False
