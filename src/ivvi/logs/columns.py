"""Arrow columns as NumPy arrays: numbers, what is missing in them, and labels numbered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
NUMPY_TYPES = {"double": np.float64, "float": np.float32} | {
    f"{sign}int{bits}": np.dtype(f"{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


class Numbers:
    """Numbers the values of a column in the order in which they are met."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self._known: dict[Any, int] = {value: i for i, value in enumerate(values)}

    def __len__(self) -> int:
        return len(self._known)

    @property
    def values(self) -> tuple[Any, ...]:
        """The values in the order of their numbers."""
        return tuple(self._known)

    def of(self, column: pa.Array) -> Ints:
        """Return the number of each value, (n,)."""
        encoded = column.dictionary_encode()
        known = self.of_values(encoded.dictionary.to_pylist())
        numbers: Ints = known[as_numpy(encoded.indices)]
        return numbers

    def of_values(self, values: Iterable[Any]) -> Ints:
        """Return the number of each value, (n,), of a few."""
        found = [self._known.setdefault(value, len(self._known)) for value in values]
        return np.array(found, np.int64)


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


def as_times(column: pa.Array) -> NDArray[np.float64]:
    """Return numbers, dates (days or ms) or timestamps (in their unit) as floats."""
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return as_numpy(column).astype(np.float64)


def is_finite(values: NDArray[Any]) -> bool:
    """Tell whether no value is NaN or infinite."""
    if values.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):  # the dot product is a cheap first look
        return bool(np.isfinite(values @ values) or np.isfinite(values).all())


def is_present(column: pa.Array) -> bool:
    """Tell whether a column has a value in every row, and finite ones if they are numbers."""
    floating = pa.types.is_floating(column.type)
    return not column.null_count and (not floating or is_finite(as_numpy(column)))


def missing(column: pa.Array) -> Bools:
    """Tell which rows of a column have no finite value, (n,)."""
    absent = flags(column.is_null())
    if pa.types.is_floating(column.type):
        absent |= ~np.isfinite(as_numpy(column))
    return absent


def flags(column: pa.Array) -> Bools:
    """Return a column of booleans as an array, (n,)."""
    return as_numpy(column.cast(pa.uint8())).astype(bool)


class RowRuns:
    """The valid rows of a block, copied run by run or, when the runs are short, by index."""

    def __init__(self, valid: Bools) -> None:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], valid.view(np.int8), [0]])))
        self.count = int(valid.sum())
        self._runs: list[list[int]] = edges.reshape(-1, 2).tolist()
        self._index = np.flatnonzero(valid) if len(self._runs) * 32 > len(valid) else None

    def copy(self, column: NDArray[Any], shift: int, out: NDArray[np.float64]) -> None:
        """Write the valid rows, or the rows `shift` after them, to `out` (count,)."""
        if self._index is not None:
            out[:] = column[self._index + shift]
            return
        at = 0
        for start, stop in self._runs:
            out[at : at + stop - start] = column[start + shift : stop + shift]
            at += stop - start
