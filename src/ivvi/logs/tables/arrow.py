"""Arrow columns as NumPy arrays, comparison of schemas, short forms of Arrow's messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi._io.arrays import Bools, Ints
from ivvi.errors import LARGEST, ColumnError, FileError

NUMPY_TYPES = {"double": np.float64, "float": np.float32} | {
    f"{sign}int{bits}": np.dtype(f"{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


MOST_PLACES, PLACES_PER_VALUE = 1 << 25, 16
"""Largest lookup array of whole numbers: entries in all, and entries per distinct value."""


class Numbers:
    """Numbers the values of a column in the order in which they first appear.

    Whole numbers that lie close together are looked up in an array, others in a dictionary.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._values: list[Any] = list(values)
        self._number_of: dict[Any, int] = {}  # the first so many of them
        self._places, self._lowest = np.zeros(0, np.int32), 0  # those of a whole number, or -1
        self._placed = 0  # how many of the values met have a place

    def __len__(self) -> int:
        return len(self._values)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values in the order of their numbers."""
        return tuple(self._values)

    def of(self, column: pa.Array) -> Ints:
        """Return the number of each value, (n,)."""
        if pa.types.is_signed_integer(column.type) and not column.null_count and len(column):
            values = as_numpy(column).astype(np.int64, copy=False)
            if self._reaches(int(values.min()), int(values.max()), len(values)):
                return self._of_places(values - self._lowest)
        encoded = column.dictionary_encode()
        level_numbers = self.of_values(encoded.dictionary.to_pylist())
        numbers: Ints = level_numbers[as_numpy(encoded.indices)]
        return numbers

    def of_values(self, values: Iterable[Any]) -> Ints:
        """Return the number of each value, (n,), of a few."""
        number_of = self._number_of
        for value in self._values[len(number_of) :]:
            number_of[value] = len(number_of)
        numbers = [number_of.setdefault(value, len(number_of)) for value in values]
        self._values += list(itertools.islice(number_of, len(self._values), None))
        return np.array(numbers, np.int64)

    def _reaches(self, low: int, high: int, rows: int) -> bool:
        """Make places for whole numbers from low to high, if these are not too many."""
        if self._placed < len(self._values):  # met by value, not by place
            return False
        if len(self._places):
            low, high = min(low, self._lowest), max(high, self._lowest + len(self._places) - 1)
        if high - low >= min(MOST_PLACES, PLACES_PER_VALUE * (len(self._values) + rows)):
            return False
        if high - low >= len(self._places):
            wider = np.full(high - low + 1, -1, np.int32)
            if len(self._places):
                wider[self._lowest - low :][: len(self._places)] = self._places
            self._places, self._lowest = wider, low
        return True

    def _of_places(self, at: Ints) -> Ints:
        numbers = self._places[at].astype(np.int64)
        if (new := numbers < 0).any():
            unknown = at[new]
            rows = np.arange(len(unknown), dtype=np.int32)
            self._places[unknown[::-1]] = rows[::-1]  # the first row of each value stays
            values = unknown[self._places[unknown] == rows]
            self._places[values] = np.arange(len(self), len(self) + len(values))
            self._values += (values + self._lowest).tolist()
            self._placed = len(self._values)
            numbers[new] = self._places[unknown]
        return numbers


def as_numpy(column: pa.Array) -> NDArray[Any]:
    """Return numbers as a NumPy array, without a copy where Arrow allows; null becomes NaN.

    The buffer is read directly, because Arrow's own conversion imports pandas.
    """
    if column.null_count or str(column.type) not in NUMPY_TYPES:
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        column = pc.fill_null(column.cast(pa.float64(), safe=False), np.nan)
    if not len(column):
        return np.empty(0)
    values = np.frombuffer(column.buffers()[1], dtype=NUMPY_TYPES[str(column.type)])
    return values[column.offset : column.offset + len(column)]


def as_arrow(values: NDArray[Any], valid: Bools | None = None) -> pa.Array:
    """Return numbers or booleans (n,) as an Arrow array, null where they are not `valid`.

    The inverse of `as_numpy`: Arrow's own conversion imports pandas.
    """
    present = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    kind = pa.bool_() if values.dtype.kind == "b" else pa.from_numpy_dtype(values.dtype)
    flat = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else values
    buffers = [present, pa.py_buffer(np.ascontiguousarray(flat))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def as_times(column: pa.Array) -> NDArray[np.float64]:
    """Return numbers, dates (days or ms) or timestamps (in their unit) as floats."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return as_numpy(column).astype(np.float64)


def is_finite(values: NDArray[Any]) -> bool:
    """Return whether no value is NaN or infinite."""
    if values.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):  # the dot product is a cheap first look
        return bool(np.isfinite(values @ values) or np.isfinite(values).all())


def is_moderate(values: NDArray[Any]) -> bool:
    """Return whether no value is NaN, infinite or beyond `LARGEST`."""
    if values.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(values @ values <= LARGEST**2 or (np.abs(values) <= LARGEST).all())


def too_large(values: NDArray[Any]) -> Bools:
    """Return which values are finite and beyond `LARGEST`, (n,)."""
    large: Bools = (np.abs(values) > LARGEST) & np.isfinite(values)
    return large


def is_present(column: pa.Array) -> bool:
    """Return whether a column has a value in every row, and finite ones if they are numbers."""
    floating = pa.types.is_floating(column.type)
    return not column.null_count and (not floating or is_finite(as_numpy(column)))


def missing(column: pa.Array) -> Bools:
    """Return which rows of a column have no finite value, (n,)."""
    absent = flags(column.is_null())
    if pa.types.is_floating(column.type):
        absent |= ~np.isfinite(as_numpy(column))
    return absent


def flags(column: pa.Array) -> Bools:
    """Return a column of booleans as an array, (n,)."""
    return as_numpy(column.cast(pa.uint8())).astype(bool)


SHORT_RUN = 512
"""Runs of at most this many rows are copied row by row, longer ones as a whole."""


class RowRuns:
    """The valid rows of a block, copied run by run or, when the runs are short, by index."""

    def __init__(self, valid: Bools) -> None:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], valid.view(np.int8), [0]])))
        self.count = int(valid.sum())
        self._runs: list[list[int]] = edges.reshape(-1, 2).tolist()
        short = len(self._runs) * SHORT_RUN > len(valid)
        self._indices = {0: np.flatnonzero(valid)} if short else {}  # by shift

    def copy(self, column: NDArray[Any], shift: int, out: NDArray[np.float64]) -> None:
        """Write the valid rows, or the rows `shift` after them, to `out` (count,)."""
        if self._indices:
            if shift not in self._indices:
                self._indices[shift] = self._indices[0] + shift
            index = self._indices[shift]
            if column.dtype == out.dtype:
                np.take(column, index, out=out, mode="clip")  # without a check of each row
            else:
                out[:] = column[index]
            return
        at = 0
        for start, stop in self._runs:
            out[at : at + stop - start] = column[start + shift : stop + shift]
            at += stop - start


def plain(rows: Any) -> Any:
    """Return a table or batch without what Arrow cannot sort or compare across batches.

    Dictionaries, views and half floats are written out, and of types built upon others (UUID)
    these are taken; marks that a column has no nulls are dropped.
    """
    columns = [_plain_column(column) for column in rows.columns]
    return type(rows).from_arrays(columns, rows.schema.names, metadata=rows.schema.metadata)


def _plain_column(column: Any) -> Any:
    kind = plain_type(column.type)
    if kind == column.type:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_plain_column(chunk) for chunk in column.chunks], type=kind)
    if isinstance(column, pa.ExtensionArray):
        return _plain_column(column.storage)
    if pa.types.is_dictionary(column.type):
        return column.dictionary.cast(kind).take(column.indices)
    return column.cast(kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that `plain` gives a column of this one."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def is_number(text: str) -> bool:
    """Whether a cell of text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_numeric(schema: pa.Schema, names: Sequence[str], label: str) -> None:
    """Refuse columns that cannot be numbers."""
    for name in names:
        kind = plain_type(schema.field(name).type)
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_null(kind)
        ):
            raise ColumnError(f"column {name!r} of {label} holds {_instead(kind)}")


def _instead(kind: pa.DataType) -> str:
    """Return what a column that cannot be numbers holds, and what to do."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "text that is not UTF-8 (Latin-1, perhaps); save the file as UTF-8"
    if pa.types.is_duration(kind):
        return f"{kind}; expected numbers: divide it by a unit, such as pandas.Timedelta('1h')"
    if pa.types.is_temporal(kind):
        return (
            f"{kind}; expected numbers: a date is read as the step alone (--step), elsewhere write "
            "the number that it stands for, such as an age, a year or days since the first row"
        )
    return f"{kind}; expected numbers"


def check_keys(schema: pa.Schema, names: Sequence[str], label: str) -> None:
    """Refuse columns whose values cannot identify rows, such as lists."""
    for name in names:
        kind = plain_type(schema.field(name).type)
        if pa.types.is_nested(kind):
            raise ColumnError(f"column {name!r} of {label} holds {kind}; expected single values")


def widened(first: Any, schema: pa.Schema, file: Any, other: pa.Schema) -> pa.Schema:
    """Return a schema of the first file that holds the rows of another, too.

    Refuse a file with other columns, or one whose column has no type in common.
    """
    check_same_names(first, schema, file, other)
    for i, name in enumerate(schema.names):
        one, two = (plain_type(columns.field(name).type) for columns in (schema, other))
        if one == two:
            continue
        if (both := _common(one, two)) is None:
            raise FileError(
                f"column {name!r} is {two} in {file} but {one} in {first}; expected one type"
            )
        schema = schema.set(i, pa.field(name, both))
    return schema


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of two others as they are, if there is one."""
    kinds, types = (one, two), pa.types
    if types.is_null(one) or types.is_null(two):
        return two if types.is_null(one) else one
    if all(types.is_integer(kind) for kind in kinds):
        return None if pa.uint64() in kinds else pa.int64()
    if all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
        return pa.float64()  # a whole number that it does not hold is refused by the cast
    if all(types.is_string(kind) or types.is_large_string(kind) for kind in kinds):
        return pa.large_string()
    if all(types.is_timestamp(kind) for kind in kinds) and one.tz == two.tz:
        return max(kinds, key=lambda kind: ("s", "ms", "us", "ns").index(kind.unit))
    return None


def cast_columns(rows: Any, kinds: Mapping[str, pa.DataType]) -> Any:
    """Return a table or batch with some columns as another type."""
    if not kinds:
        return rows
    columns = [
        column.cast(kinds[name]) if name in kinds else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return type(rows).from_arrays(columns, rows.schema.names, metadata=rows.schema.metadata)


def casts(schema: pa.Schema, wide: pa.Schema) -> dict[str, pa.DataType]:
    """Return the columns of a file whose type is another in the log, with that type."""
    kinds = {name: plain_type(wide.field(name).type) for name in wide.names if name in schema.names}
    return {n: kind for n, kind in kinds.items() if plain_type(schema.field(n).type) != kind}


def check_same_names(first: Any, expected: pa.Schema, file: Any, other: pa.Schema) -> None:
    """Refuse a file whose columns are not those of the first, in whatever order."""
    missing = [name for name in expected.names if name not in other.names]
    extra = [name for name in other.names if name not in expected.names]
    if missing or extra:
        lacks = f"lacks column {missing[0]!r}" if missing else ""
        problem = lacks or f"has another column, {extra[0]!r}"
        raise FileError(f"{file} {problem}: its columns differ from those of {first}")


def skip_rows(blocks: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the blocks without the first `rows` rows."""
    for block in blocks:
        if rows < block.num_rows:
            yield block.slice(rows)
        rows = max(0, rows - block.num_rows)


def is_unnamed_index(name: str) -> bool:
    """Return whether pandas gave a column this name because it was an index without one."""
    return name.startswith("__index_level_")


def first_line(error: BaseException) -> str:
    """Return the first line of what Arrow says."""
    return str(error).strip().splitlines()[0].rstrip(".")
