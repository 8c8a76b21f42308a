"""Find a table of ratings in a file, a folder or a zip, and read its columns as numbers.

GroupLens' own layouts, CSV and Parquet are read as Arrow tables; the columns of user, movie and
rating are recognised by their names.
"""

from __future__ import annotations

import csv
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import pyarrow.types as pat
from numpy.typing import NDArray

from ivvi.errors import ColumnError, DataError, FileError, InputError, nearest

GROUPLENS_FILES = ("ratings.dat", "ratings.csv", "u.data")
FOLDER_FILES = (*GROUPLENS_FILES, "ratings.parquet")
_GROUPLENS_COLUMNS = ("user", "movie", "rating", "timestamp")
# The spellings of each column; case, blanks, hyphens and underscores do not matter.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "user": ("user", "user_id", "userId"),
    "movie": ("movie", "movie_id", "movieId", "item", "item_id", "itemId"),
    "rating": ("rating",),
}
_TYPES: Mapping[str, Any] = {"user": pa.int64(), "movie": pa.int64(), "rating": pa.float64()}
_WANTED: Mapping[str, str] = {
    "user": "a whole number",
    "movie": "a whole number",
    "rating": "a number",
}


def read_file(path: Path) -> tuple[Any, str, str]:
    """Return the table of ratings at a path, the path of its file, and a name for it.

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


def locate(names: Sequence[str], source: str) -> dict[str, int]:
    """Return the position of the user, the movie and the rating column.

    Parameters
    ----------
    names
        The column names in order.
    source
        What error messages call the table.

    Raises
    ------
    ColumnError
        If a column is missing, or two columns could be the same one.
    """
    columns: dict[str, int] = {}
    for role, spellings in SPELLINGS.items():
        plain_spellings = {_plain(spelling) for spelling in spellings}
        hits = [position for position, name in enumerate(names) if _plain(name) in plain_spellings]
        if len(hits) > 1:
            clash = " and ".join(repr(names[hit]) for hit in hits)
            raise ColumnError(
                f"{source} has {len(hits)} columns for the {role}, {clash}; expected one"
            )
        if not hits:
            listed = ", ".join(repr(name) for name in names[:12])
            more = ", ..." if len(names) > 12 else ""
            raise ColumnError(
                f"{source} has no column for the {role} (named {' or '.join(spellings)}), "
                f"only {listed or 'none'}{more}{nearest(role, names)}"
            )
        columns[role] = hits[0]
    return columns


def numbers(column: Any, role: str, source: str) -> NDArray[Any]:
    """Return an Arrow column as numbers: int64 for user and movie, float64 for rating.

    Parameters
    ----------
    column
        A ``pyarrow.ChunkedArray`` of n integers, floats, decimals, or texts of these.
    role
        ``"user"``, ``"movie"`` or ``"rating"``.
    source
        What error messages call the table.

    Raises
    ------
    ColumnError
        If the column's type cannot hold numbers, such as a date.
    DataError
        If a value is missing or is not the expected number; names the first row.
    """
    if pat.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not _may_hold_numbers(column.type):
        raise ColumnError(
            f"{source} holds {column.type} in its {role} column; expected {_WANTED[role]}"
        )
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py() + 1
        raise DataError(f"{source} row {row} has no {role}; expected {_WANTED[role]}")
    if not _is_castable(column, _TYPES[role]):
        row = _first_refused(column, _TYPES[role])
        raise DataError(
            f"{source} row {row + 1} has {column[row].as_py()!r} as its {role}; "
            f"expected {_WANTED[role]}"
        )
    values: NDArray[Any] = column.cast(_TYPES[role]).to_numpy()
    return values


def check_finite(rating: NDArray[np.float64], source: str) -> None:
    """Raise an error, with the first row, for ratings (n,) that are infinite or not a number."""
    finite = np.isfinite(rating)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(
            f"{source} row {row + 1} has the rating {rating[row]}; expected a finite number"
        )


def to_arrow(table: object, source: str) -> Any:
    """Return a ``pyarrow.Table`` of a data frame, an Arrow object or a dict of arrays.

    Raises
    ------
    DataError
        If the object is no table, or its columns have no common type or length.
    """
    try:
        if isinstance(table, Mapping):
            columns = [_to_arrow_column(values) for values in table.values()]
            return pa.table(columns, names=[str(name) for name in table])
        if hasattr(table, "__arrow_c_stream__"):
            return pa.table(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{source} is not a table of equally long columns: {error}") from error
    raise DataError(
        f"{source} is a {type(table).__name__}; expected a data frame of pandas, polars or "
        "Arrow, or a dict of arrays"
    )


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


def _plain(name: str) -> str:
    """Return the letters and digits of a name, without case."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _may_hold_numbers(kind: Any) -> bool:
    """Return whether values of an Arrow type are numbers or may be texts of numbers."""
    tests = (
        pat.is_integer,
        pat.is_floating,
        pat.is_decimal,
        pat.is_string,
        pat.is_large_string,
        pat.is_string_view,
        pat.is_null,
    )
    return any(test(kind) for test in tests)


def _is_castable(column: Any, kind: Any) -> bool:
    """Return whether an Arrow column can be cast to another type without loss."""
    try:
        column.cast(kind)
    except pa.ArrowException:
        return False
    return True


def _first_refused(column: Any, kind: Any) -> int:
    """Return the row of the first value that cannot be cast (by bisection)."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_castable(column[low:middle], kind):
            low = middle
        else:
            high = middle
    return low


def _to_arrow_column(values: Any) -> Any:
    """Return an array, a list or a series as a ``pyarrow.ChunkedArray``."""
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values)
    array = values if hasattr(values, "__arrow_c_array__") else np.asarray(values)
    return pa.chunked_array([pa.array(array)])
