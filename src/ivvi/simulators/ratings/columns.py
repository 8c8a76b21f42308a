"""Which columns are the user, the movie and the rating, and their values as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from ivvi.errors import ColumnError, DataError, nearest

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


def _plain(name: str) -> str:
    """Return the letters and digits of a name, without case."""
    return "".join(letter for letter in name.casefold() if letter.isalnum())


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
        known = {_plain(spelling) for spelling in spellings}
        hits = [position for position, name in enumerate(names) if _plain(name) in known]
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
    """Refuse ratings (n,) that are infinite or not a number, naming the first row."""
    finite = np.isfinite(rating)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(
            f"{source} row {row + 1} has the rating {rating[row]}; expected a finite number"
        )


def _may_hold_numbers(kind: Any) -> bool:
    """Say whether values of an Arrow type are numbers or may be texts of numbers."""
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
    """Say whether all of an Arrow column becomes another type without loss."""
    try:
        column.cast(kind)
    except pa.ArrowException:
        return False
    return True


def _first_refused(column: Any, kind: Any) -> int:
    """Return the row of the first value that does not become another type (by bisection)."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_castable(column[low:middle], kind):
            low = middle
        else:
            high = middle
    return low


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


def _to_arrow_column(values: Any) -> Any:
    """Return an array, a list or a series as a ``pyarrow.ChunkedArray``."""
    if hasattr(values, "__arrow_c_stream__"):
        return pa.chunked_array(values)
    array = values if hasattr(values, "__arrow_c_array__") else np.asarray(values)
    return pa.chunked_array([pa.array(array)])
