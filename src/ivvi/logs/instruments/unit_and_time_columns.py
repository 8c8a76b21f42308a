"""Which absorbed columns are unit and time of a panel, by what the data show.

Rows of one firm or state are correlated over the years, so they are clustered by it, and not by the
year although that may have more values. A time column holds dates, years or months; or whole
numbers that follow each other without gaps, and the rows of each unit do so too. Of two such
columns of numbers the name tells, or that there are far more units than times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Ints
from ivvi.logs.columns.category_encoding import is_text
from ivvi.logs.columns.times import as_dates
from ivvi.logs.tables.arrow import as_numpy, plain_type
from ivvi.logs.tables.table import BatchSource

FEWEST_UNITS = 10
"""Units of a panel from which on rows are clustered by them."""
FEWEST_TIMES = 3
"""Whole numbers that are enough to be the times of a panel."""
UNBROKEN = 0.9
"""Share of the times between a unit's first and last that its rows must have."""
ROWS_PER_UNIT = 2
"""Times at which a unit is seen, on average, if whole numbers are times."""
MORE_UNITS = 3
"""How many times more units than times tell which is which of two columns of whole numbers."""
READ_AT_ONCE = 1 << 16
WRITTEN = re.compile(r"\s*(?:19|20)\d{2}([-/.]?[QqMmWwHhSs]?\d{1,2}){0,2}([ T].*)?$")
"""Text that is a date, a month, a quarter or a year."""
TIME_WORDS = {
    *("year", "yr", "quarter", "month", "week", "day", "date", "time", "t", "period", "wave"),
    *("round", "step", "term", "semester", "season", "visit", "session", "hour"),
}


@dataclass(frozen=True, slots=True)
class PanelColumns:
    """Unit and time among absorbed columns.

    Attributes
    ----------
    unit, time
        The column of the units, which is that with most values that is no time, and of the times.
    times
        All columns that are times.
    units
        How many units there are.
    is_panel
        Whether each unit has one row at a time, and every row has both.
    is_dated
        Whether the time column holds dates, and not numbers.
    """

    unit: str
    time: str
    times: tuple[str, ...]
    units: int
    is_panel: bool
    is_dated: bool


@dataclass(frozen=True, slots=True)
class _Column:
    """The distinct values of a column, and the number of each row's value, -1 for none."""

    name: str
    levels: pa.Array
    codes: Ints

    @property
    def numbers(self) -> np.ndarray | None:
        """The values as whole numbers, in their order; None if they are not."""
        kind = self.levels.type
        if not len(self.levels) or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            return None
        values = as_numpy(self.levels).astype(np.float64)
        whole = np.isfinite(values).all() and bool((values == np.round(values)).all())
        return values if whole else None

    @property
    def is_calendar(self) -> bool:
        """Whether the values are dates, years or months."""
        kind = self.levels.type
        if pa.types.is_temporal(kind):
            return True
        if is_text(kind):
            return all(WRITTEN.match(str(one)) for one in self.levels.to_pylist()[:READ_AT_ONCE])
        numbers = self.numbers
        return numbers is not None and len(numbers) > 1 and as_dates(numbers) is not None

    @property
    def is_named_so(self) -> bool:
        """Whether the name is that of a time."""
        return bool(TIME_WORDS & set(re.split(r"[^a-z]+", self.name.lower())))


def panel_columns(table: BatchSource, names: Sequence[str]) -> PanelColumns | None:
    """Return unit and time among absorbed columns; None where no column is a time, or all are."""
    columns = _read(table, names) if len(names) > 1 else []
    if len(columns) < 2 or any(not len(one.levels) for one in columns):
        return None
    times = [one for one in columns if one.is_calendar] or _consecutive(columns)
    rest = [one for one in columns if one not in times]
    if not times or not rest:
        return None
    unit = max(rest, key=lambda one: len(one.levels))
    time = max(times, key=lambda one: len(one.levels))
    complete = bool((unit.codes >= 0).all() and (time.codes >= 0).all())
    return PanelColumns(
        unit.name,
        time.name,
        tuple(one.name for one in times),
        len(unit.levels),
        complete and _are_different(_pairs(unit, time)),
        time.numbers is None,
    )


def _read(table: BatchSource, names: Sequence[str]) -> list[_Column]:
    """Read columns, with their values as numbers."""
    parts: dict[str, list[pa.Array]] = {name: [] for name in names}
    for block in table.batches(list(names), (), READ_AT_ONCE):
        for name in names:
            part = block.column(name)
            plain = plain_type(part.type)
            parts[name].append(part if part.type == plain else part.cast(plain))
    read = []
    for name, chunks in parts.items():
        if not chunks:
            return []
        coded = pa.chunked_array(chunks).dictionary_encode().combine_chunks()
        coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
        codes = coded.indices.fill_null(-1)
        read.append(_Column(name, coded.dictionary, as_numpy(codes).astype(np.int64)))
    return read


def _pairs(one: _Column, two: _Column) -> Ints:
    """Number the combinations of two columns' values, where both have one."""
    both = (one.codes >= 0) & (two.codes >= 0)
    pairs: Ints = one.codes[both] * len(two.levels) + two.codes[both]
    return pairs


def _are_different(pairs: Ints) -> bool:
    """Whether no number occurs twice; they mostly increase, since rows are mostly in order."""
    return bool((np.diff(pairs) > 0).all()) or len(np.unique(pairs)) == len(pairs)


def _consecutive(columns: list[_Column]) -> list[_Column]:
    """Return the column of whole numbers that are times, in a list, or an empty one."""
    times = [
        one
        for one in columns
        if _follow(one, max((c for c in columns if c is not one), key=lambda c: len(c.levels)))
    ]
    if len(times) < 2:
        return times
    if len(named := [one for one in times if one.is_named_so]) == 1:
        return named
    times = sorted(times, key=lambda one: len(one.levels))
    fewer = len(times[0].levels) * MORE_UNITS <= len(times[1].levels)
    return times[:1] if fewer and len(columns) == len(times) else []


def _follow(time: _Column, unit: _Column) -> bool:
    """Whether values are whole numbers without gaps, altogether and among the rows of a unit."""
    numbers = time.numbers
    if numbers is None or len(numbers) < FEWEST_TIMES:
        return False
    order = np.sort(numbers)
    gap = float(np.diff(order).min())
    if len(order) < UNBROKEN * ((order[-1] - order[0]) / gap + 1):
        return False
    pairs: Any = np.unique(_pairs(unit, time))
    units, place = pairs // len(numbers), numbers[pairs % len(numbers)] / gap
    starts = np.flatnonzero(np.append(True, units[1:] != units[:-1]))
    spans = np.maximum.reduceat(place, starts) - np.minimum.reduceat(place, starts) + 1
    return bool(len(pairs) >= UNBROKEN * spans.sum() and len(pairs) >= ROWS_PER_UNIT * len(starts))
