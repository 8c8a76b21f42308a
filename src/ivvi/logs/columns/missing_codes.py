"""Numbers that stand for a missing value: how they are read as missing, and how they are noticed.

Surveys and hospitals write -9, 99 or 999 where a value is unknown. As numbers these are far from
all others, and a few of them distort every estimate. The telltale sign is one value that occurs
again and again outside the range of the rest. An outlier occurs once, a heavy tail fills the gap,
and a clipped column has other values close to its limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.logs.batch import Batch
from ivvi.logs.columns.category_encoding import is_text
from ivvi.logs.schema import Roles
from ivvi.logs.tables.arrow import as_arrow, is_number
from ivvi.logs.tables.table import ArrowTable, BatchSource, TableView

CODES = np.array([-1, -7, -8, -9, -77, -88, -99, -999, -9999, -99999, 9, 77, 88, 98, 99, 999, 9999])
"""Usual codes of missing values."""
FEWEST = 3
"""Fewest rows with a code."""
FAR, FAR_WHOLE, FAR_ANY = 0.2, 2.0, 5.0
"""Ranges of the rest that a usual code lies beyond it, in columns of fractions and of whole
numbers, and any other value but zero."""
LOSS = -1.0
"""A return of -100%, which is the end of its range and no code among returns."""
FEW_ROWS = 256
"""Rows that mostly show that an end is not far."""
FEW_VALUES = 20
"""From this many distinct other values on, any value may be a code."""


def missing_values(asked: Any) -> tuple[str, ...]:
    """Return the values that stand for missing ones as words, from ``-9,999``, -9 or [-9, 999]."""
    listed = asked.split(",") if isinstance(asked, str) else np.atleast_1d(asked).tolist()
    return tuple(word for word in (str(value).strip() for value in listed) if word)


def with_missing(table: BatchSource, values: Sequence[str], but: Sequence[str] = ()) -> BatchSource:
    """Return the table in which some values of all columns but a few are missing."""
    if not values:
        return table
    if not isinstance(table, ArrowTable):
        return MissingTable(table, values, but)
    arrow_table = table.table
    columns = [
        column if name in but else _without(column, values)
        for name, column in zip(arrow_table.schema.names, arrow_table.columns, strict=True)
    ]
    return ArrowTable(pa.table(columns, arrow_table.schema.names), table.label, table.files)


def has_codes(table: BatchSource, name: str, values: Sequence[str]) -> bool:
    """Whether a column holds one of the values that stand for missing ones."""
    for block in table.batches([name], (), 1 << 16) if values else ():
        column = block.column(name)
        if _without(column, values).null_count > column.null_count:
            return True
    return False


class MissingTable(TableView):
    """A table in which some values count as missing, in any column."""

    def __init__(self, table: Any, values: Sequence[str], but: Sequence[str]) -> None:
        super().__init__(table, table.label)
        self.values, self.but = tuple(values), tuple(but)

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows without these values."""
        for block in self.table.batches(columns, numeric, size):
            arrays = [
                column if name in self.but else _without(column, self.values)
                for name, column in zip(block.schema.names, block.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, block.schema.names)

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [MissingTable(piece, self.values, self.but) for piece in self.table.pieces(rows)]


def _without(column: Any, values: Sequence[str]) -> Any:
    """Return a column in which these values are null."""
    kind = column.type
    numbers = [float(value) for value in values if is_number(value)]
    if is_text(kind):
        known: list[Any] = list(values)
    elif pa.types.is_floating(kind):
        known = numbers
    elif pa.types.is_integer(kind):
        known = [int(value) for value in numbers if value.is_integer()]
        known = [value for value in known if pa.types.is_signed_integer(kind) or value >= 0]
    else:
        known = []
    if not known:
        return column
    values_known = pa.array(known) if is_text(kind) else as_arrow(np.array(known))
    stands = pc.is_in(column, value_set=values_known.cast(kind))
    return pc.if_else(stands, pa.nulls(1, kind)[0], column)


@dataclass(frozen=True, slots=True)
class MissingCode:
    """A value of a column that seems to mean missing.

    Attributes
    ----------
    column, value, count, rows
        Where it stands, what it is, and how often it comes in how many of the first rows.
    low, high
        The range of all other values.
    """

    column: str
    value: float
    count: int
    rows: int
    low: float
    high: float

    @property
    def warning(self) -> str:
        """What to know, and what to do."""
        return (
            f"{self.column} is {self.value:g} in {self.count:,} of {self.rows:,} rows, and between "
            f"{self.low:.4g} and {self.high:.4g} in all others: if {self.value:g} means that "
            f"the value is missing, use --missing {self.value:g} --drop-missing (read_logs(missing="
            f"{self.value:g}, drop_missing=True))"
        )


def missing_codes(head: Batch, roles: Roles) -> list[MissingCode]:
    """Return the values among the first rows that seem to stand for missing ones."""
    codes: list[MissingCode] = []
    for name, values in _columns(head, roles).items():
        distinct, counts = np.unique(values, return_counts=True)
        usual = _are_codes(distinct) & (counts >= FEWEST)
        codes += _far(name, distinct, counts, usual)
        if not codes or codes[-1].column != name:
            outer = np.zeros(len(distinct), dtype=bool)
            outer[[0, -1]] = True
            codes += _far(name, distinct, counts, outer & (counts >= FEWEST), FAR_ANY)
    return codes


def _far(
    name: str, distinct: Floats, counts: np.ndarray, codes: np.ndarray, far: float | None = None
) -> list[MissingCode]:
    """Return the codes that lie far outside the range of the other values."""
    rest = distinct[~codes]
    if not codes.any() or len(rest) < (2 if far is None else FEW_VALUES):
        return []
    low, high = float(rest[0]), float(rest[-1])
    whole = bool((rest == np.round(rest)).all())
    if far is None and not whole and LOSS < low < 0:  # nobody loses more than all
        codes = codes & (distinct != LOSS)
    needed = ((FAR_WHOLE if whole else FAR) if far is None else far) * (high - low)
    made = []
    for value, count in zip(distinct[codes], counts[codes], strict=True):
        beyond = max(low - value, value - high)
        if beyond >= needed and beyond > 0 and (value or far is None):
            made.append(MissingCode(name, float(value), int(count), int(counts.sum()), low, high))
    return made


def _columns(head: Batch, roles: Roles) -> Mapping[str, Floats]:
    """Return the columns of numbers that may hold a code, as the user has them, each once."""
    coded = {name for c in roles.categories for name in c.names} | set(roles.terminal)
    derived = {f"next_{name}" for name in roles.predicted} if roles.derived else set()
    parts = [
        (roles.state, head.x),
        (roles.action, head.a),
        (roles.instrument, head.z),
        (roles.outputs, head.y),
    ]
    columns: dict[str, Floats] = {}
    for names, part in parts:
        if not derived.issuperset(names):
            for name, values, odd in zip(names, part.T, _odd_ends(part), strict=True):
                if odd and name not in coded | derived:
                    columns[name] = values
    return columns


def _odd_ends(columns: Floats) -> NDArray[np.bool_]:
    """Return which columns have an extreme value that may code for missing.

    A code is the lowest or the highest value. It comes again, and lies far from those in between:
    from a part of these in any case.
    """
    if len(columns) < FEWEST:
        return np.zeros(columns.shape[1], dtype=bool)
    low, high = columns.min(axis=0), columns.max(axis=0)
    often = np.maximum(
        np.count_nonzero(low == columns, axis=0), np.count_nonzero(high == columns, axis=0)
    )
    usual = np.isin(low, CODES) | np.isin(high, CODES)
    part = columns[:: max(1, len(columns) // FEW_ROWS)]
    codes = np.isin(part, CODES) & usual
    above = np.where((part == low) | codes, np.inf, part).min(axis=0)
    below = np.where((part == high) | codes, -np.inf, part).max(axis=0)
    far = np.where(usual, FAR, FAR_ANY) * (below - above)
    return np.asarray((often >= FEWEST) & (np.maximum(above - low, high - below) >= far))


def _are_codes(distinct: Floats) -> NDArray[np.bool_]:
    """Return which of some values in increasing order are usual codes."""
    places = np.minimum(np.searchsorted(distinct, CODES), len(distinct) - 1)
    codes = np.zeros(len(distinct), dtype=bool)
    codes[places[distinct[places] == CODES]] = True
    return codes
