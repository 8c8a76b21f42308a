"""Calendar time: a numeric, date or timestamp column, and times that cut a log into quarters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ivvi.errors import ColumnError, DataError
from ivvi.logs.arrow import as_times
from ivvi.logs.table import BatchSource

Floats = NDArray[np.float64]
MOST_TIMES = 1 << 16
"""Most times in memory when looking for the cuts; longer logs are thinned by 2, 4, 8 and so on."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Times that cut the rows of a log into quarters, as numbers and in words.

    Attributes
    ----------
    column
        The time column.
    cuts, words
        The quartiles, repeated ones left out; a row is after a cut from it on.
    """

    column: str
    cuts: tuple[float, ...]
    words: tuple[str, ...]

    @classmethod
    def of_table(cls, table: BatchSource, column: str) -> Calendar:
        """Find the quartiles in one pass over the column, in bounded memory."""
        every, rows_seen, sample = 1, 0, np.empty(0)
        for block in table.batches([column], (), MOST_TIMES):
            times = as_times(block.column(column))
            times = times[np.isfinite(times)]
            sample, rows_seen = (
                np.append(sample, times[-rows_seen % every :: every]),
                rows_seen + len(times),
            )
            while len(sample) > MOST_TIMES:
                sample, every = sample[::2], 2 * every
        if not len(sample) or sample.min() == sample.max():
            raise DataError(
                f"time column {column!r} of {table.label} is the same in every row; "
                "expected times that differ"
            )
        cuts = np.unique(np.quantile(sample, (0.25, 0.5, 0.75), method="higher"))
        cuts = (
            cuts[cuts > sample.min()] if (cuts > sample.min()).any() else sample.max(keepdims=True)
        )
        kind = table.schema.field(column).type
        return cls(column, tuple(cuts.tolist()), tuple(_in_words(cut, kind) for cut in cuts))


def check_time(schema: pa.Schema, name: str, label: str) -> None:
    """Refuse a column that holds no times."""
    kind = schema.field(name).type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numeric or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise ColumnError(
            f"time column {name!r} of {label} holds {kind}; expected numbers, dates or timestamps"
        )


def _in_words(time: float, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return str(np.datetime64(int(time), kind.unit))
    if pa.types.is_date(kind):
        return str(np.datetime64(int(time), "D" if pa.types.is_date32(kind) else "ms"))[:10]
    return f"{time:g}"
