"""Categories as numbers: text, dictionary and boolean columns become columns of 0 and 1.

A category of L levels becomes L - 1 indicators, ``ward[ICU]``; the first level in order is the
reference, for which all of them are 0. A boolean column is one column of 0 and 1. The levels are
found once, in one pass that stops at `MOST_LEVELS`, and are part of the log's roles: fits, policies
and further logs use the same columns.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi.categories import CodedColumn, CodedColumns, is_missing, level_text
from ivvi.errors import ColumnError
from ivvi.logs.tables.arrow import as_arrow, as_numpy, is_number, plain_type
from ivvi.logs.tables.table import ArrowTable, BatchSource, TableView
from ivvi.logs.tables.thousands_separators import has_thousands, without_dots

MOST_LEVELS = 100
"""Most levels of a category that become columns; more are refused."""
FEWEST_NUMBERS = 3
"""From this many different texts on, numbers written as text are refused as categories."""


def indicators(category: CodedColumn, values: pa.Array, where: str) -> list[pa.Array]:
    """Return the indicators of a column (n,), null where it is and must not be."""
    encoded, absent_code = values.dictionary_encode(), 0 if category.optional else -1
    level_codes = [
        absent_code if is_missing(value) else category.code(value, where)
        for value in encoded.dictionary.to_pylist()
    ]
    at = pc.fill_null(encoded.indices, len(level_codes)) if encoded.null_count else encoded.indices
    codes = np.array([*level_codes, absent_code])[as_numpy(at)]
    absent = codes < 0
    return [_numbers(codes == j, absent) for j in range(1, len(category.levels))]


def is_text(kind: pa.DataType) -> bool:
    """Return whether columns of a type are categories by default."""
    kind = plain_type(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def find_categories(
    table: BatchSource, columns: Sequence[str], asked: Sequence[str], shared: Mapping[str, str]
) -> CodedColumns:
    """Return the categories among the columns, their levels found in one pass.

    Parameters
    ----------
    columns
        Columns with a role.
    asked
        Those that are categories whatever they hold.
    shared
        Columns that have the levels of another together with it: next states those of states.
    """
    kinds = {name: plain_type(table.schema.field(name).type) for name in columns}
    booleans = [n for n in columns if pa.types.is_boolean(kinds[n]) and n not in asked]
    coded = [n for n in columns if n in asked or is_text(kinds[n])]
    levels_met = _levels_met(table, coded, asked)
    for name, other in shared.items():
        if name in levels_met and other in levels_met:
            levels_met[other] |= levels_met[name]
    levels_of = {
        n: _sorted(levels_met[shared.get(n, n) if shared.get(n) in levels_met else n])
        for n in levels_met
    }
    made = [CodedColumn(name, levels_of[name]) for name in coded]
    made += [CodedColumn(name, ("false", "true"), boolean=True) for name in booleans]
    return tuple(sorted(made, key=lambda category: list(columns).index(category.column)))


def _levels_met(
    table: BatchSource, coded: Sequence[str], asked: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return the levels of each column and near which row they were first met; check them."""
    levels_met: dict[str, dict[str, int]] = {n: {} for n in coded}
    row, empty = 0, dict.fromkeys(coded, 0)
    for block in table.batches(coded, (), 1 << 16) if coded else ():
        for name in coded:
            levels = levels_met[name]
            if len(levels) <= MOST_LEVELS:
                empty[name] += block.column(name).null_count
                for value in block.column(name).dictionary_encode().dictionary.to_pylist():
                    if not is_missing(value):
                        levels.setdefault(level_text(value), row)
        row += block.num_rows
    for name, levels in levels_met.items():
        if name not in asked:
            words = f", or categories (categorical={name!r}, --categorical {name})"
            check_no_numbers(table, name, levels, words)
        if len(levels) == 1 and empty[name]:
            raise _half_empty(table, name, next(iter(levels)), empty[name], row)
        _check_levels(name, list(levels), row, table, asked=name in asked)
    return levels_met


def _check_levels(
    name: str, levels: list[str], rows: int, table: BatchSource, *, asked: bool
) -> None:
    """Refuse columns that are not categories: numbers with a typo, one level, too many levels."""
    numbers = [level for level in levels if is_number(level)]
    words = [level for level in levels if not is_number(level)]
    where = f"column {name!r} of {table.label}"
    if numbers and words and not asked:
        row = first_row(table, name, words[0])
        code = shlex.quote(words[0].strip())
        absent = f"numbers (--missing {code} if it means that one is missing)"
        raise ColumnError(
            f"{where} holds text: {words[0]!r} in data row {row} (from 0); expected "
            f"{absent if _is_one_code(words) else 'numbers'}, or categories "
            f"(categorical={name!r}, --categorical {name})"
        )
    if not levels:
        raise ColumnError(f"{where} holds no values; expected categories")
    if len(levels) > MOST_LEVELS or (len(levels) == rows and rows > 2):
        count = (
            f"more than {MOST_LEVELS} levels" if len(levels) > MOST_LEVELS else "a level per row"
        )
        remedy = (
            f". For an instrument with many levels use loo:{name} (instrument=, --instrument); the "
            "effects of a control with many levels can be absorbed (absorb=, --absorb)"
        )
        raise ColumnError(
            f"{where} has {count}, such as {levels[0]!r}; expected a category of at most "
            f"{MOST_LEVELS} levels that rows share, or numbers"
            f"{remedy if len(levels) < rows else ''}"
        )
    if len(levels) == 1:
        raise ColumnError(
            f"{where} has one level, {levels[0]!r}, in all rows; expected at least two (leave the "
            "column out or, where other sites have more levels, take theirs: ivvi moments --like)"
        )


def _is_one_code(words: Sequence[str]) -> bool:
    """Whether the only word in a column of numbers may stand for a missing value."""
    return len(words) == 1 and re.fullmatch(r"\s*[^\s\d,]+\s*", words[0]) is not None


def _half_empty(table: BatchSource, name: str, level: str, empty: int, rows: int) -> ColumnError:
    return ColumnError(
        f"column {name!r} of {table.label} is {level!r} in {rows - empty:,} rows and empty in "
        f"{empty:,}; an empty cell is a missing value, and is not read as the opposite of "
        f"{level!r}: write a second level into these cells, such as 'no'"
    )


UNITS = (
    *("mg", "mcg", "µg", "ug", "kg", "ml", "dl", "mmol", "mmHg", "IU", "IE", "bpm", "cm", "mm"),
    *("km", "hours?", "hrs?", "min", "minutes?", "sec", "seconds?", "days?", "weeks?", "months?"),
    *("years?", "yrs?", "units?", "tablets?", "°C", "°F"),
)
NUMBER_SIGNS = (
    r"(?:[$€£¥%]|\b(?:EUR|USD|GBP|CHF|JPY)\b"
    rf"|(?<=[\d\s])(?i:{'|'.join(UNITS)})(?:/\w+)?\.?\s*$)"
)
"""Signs that stand beside a number: of currencies and of percent, and units after it."""
MINUS, BLANKS = "\u2212", "\u00a0\u2007\u2009\u202f "
"""A minus of typographers, and blanks that may stand between thousands."""
COMMA, THOUSANDS = r"[-+]?(\d{1,3}(\.\d{3})+|\d*),\d+", r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"
"""Numbers with a decimal comma, and with commas between thousands."""


def check_no_numbers(
    table: BatchSource, name: str, texts: Iterable[str], otherwise: str = ""
) -> None:
    """Refuse text that is numbers with a decimal comma, a unit or commas between thousands.

    `otherwise` says what else is expected.
    """
    bare = {text: _bare(text) for text in texts}
    decimal = any(
        re.fullmatch(COMMA, one) and not re.fullmatch(THOUSANDS, one) for one in bare.values()
    )
    dots = any(one.count(".") > 1 for one in bare.values()) and has_thousands(bare.values())
    plain = {
        text: without_dots(one) if dots else _plain_number(one, decimal=decimal)
        for text, one in bare.items()
    }
    strange = next((text for text, number in plain.items() if text != number), None)
    if len(plain) < FEWEST_NUMBERS or None in plain.values() or strange is None:
        return
    sign = re.search(NUMBER_SIGNS, strange)
    problem = "a decimal comma" if decimal else "commas between thousands"
    problem = "dots between thousands" if dots else problem
    if strange.strip(f"{BLANKS}\t") == plain[strange]:
        problem = "a space before or after it"
    problem = "spaces between its digits" if set(strange.strip()) & set(BLANKS) else problem
    problem = "a typographic minus sign" if MINUS in strange else problem
    problem = f"the sign {sign[0].strip()!r}" if sign else problem
    raise ColumnError(
        f"column {name!r} of {table.label} holds text: {strange!r} in data row "
        f"{first_row(table, name, strange)} (from 0), a number with {problem}; expected numbers "
        f"such as {plain[strange]}{otherwise}"
    )


def _bare(text: str) -> str:
    """Return text without signs and blanks, and with a plain minus."""
    blanks = str.maketrans(MINUS, "-", BLANKS)
    return re.sub(NUMBER_SIGNS, "", text).translate(blanks)


def _plain_number(text: str, *, decimal: bool) -> str | None:
    """Return a number as a computer writes it, or None for text that is not a number."""
    if decimal and re.fullmatch(COMMA, text):
        text = text.replace(".", "").replace(",", ".")
    elif re.fullmatch(THOUSANDS, text):
        text = text.replace(",", "")
    return text if is_number(text) and re.search(r"\d", text) else None


def first_row(table: BatchSource, name: str, text: str) -> int:
    """Return the number of the first row with this text in a column, from 0."""
    row = 0
    for block in table.batches([name], (), 1 << 16):
        at = pc.index(block.column(name).cast(pa.string()), pa.scalar(text)).as_py()
        if at >= 0:
            return int(row + at)
        row += block.num_rows
    return row


class EncodedTable(TableView):
    """A table with the indicators of its categories as further columns, made as they are read."""

    def __init__(self, table: Any, categories: CodedColumns) -> None:
        super().__init__(table, table.label)
        self.categories = tuple(c for c in categories if not c.boolean)
        self._made = {name: c for c in self.categories for name in c.names}
        for name in self._made:
            self.schema = self.schema.append(pa.field(name, pa.uint8()))
        self.files: Sequence[Path] = table.files

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with the indicators that are asked for."""
        made = dict.fromkeys(self._made[name] for name in columns if name in self._made)
        own = [name for name in columns if name not in self._made]
        read = list(dict.fromkeys([*own, *(category.column for category in made)]))
        numbers = [name for name in numeric if name not in self._made]
        for block in self.table.batches(read, numbers, size):
            values = dict(zip(block.schema.names, block.columns, strict=True))
            for category in made:
                coded = indicators(category, values[category.column], self.label)
                values |= dict(zip(category.names, coded, strict=True))
            yield pa.RecordBatch.from_arrays([values[name] for name in columns], list(columns))

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [EncodedTable(piece, self.categories) for piece in self.table.pieces(rows)]


def with_indicators(table: BatchSource, categories: CodedColumns) -> BatchSource:
    """Return the table with the indicators of its categories as further columns."""
    if all(category.boolean for category in categories):
        return table
    if not isinstance(table, ArrowTable):
        return EncodedTable(table, categories)
    arrow_table = table.table
    for category in categories:
        if category.boolean:
            continue
        chunks = [
            indicators(category, part, table.label) for part in arrow_table[category.column].chunks
        ]
        for j, name in enumerate(category.names):
            parts = [chunk[j] for chunk in chunks]
            arrow_table = arrow_table.append_column(name, pa.chunked_array(parts, type=pa.uint8()))
    return ArrowTable(arrow_table, table.label, table.files)


def without_indicators(table: BatchSource, categories: CodedColumns) -> BatchSource:
    """Return the table that `with_indicators` was given."""
    made = [name for category in categories if not category.boolean for name in category.names]
    if not made:
        return table
    if isinstance(table, EncodedTable):
        inner: BatchSource = table.table
        return inner
    if isinstance(table, ArrowTable):
        return ArrowTable(table.table.drop_columns(made), table.label, table.files)
    return table


def _numbers(flags: NDArray[np.bool_], absent: NDArray[np.bool_]) -> pa.Array:
    """Return 0 and 1, null where they are absent."""
    return as_arrow(flags.view(np.uint8), ~absent if absent.any() else None)


def _sorted(levels: Mapping[str, int]) -> tuple[str, ...]:
    """Sort levels: as numbers if all are, else as text."""
    if all(map(is_number, levels)):
        return tuple(sorted(levels, key=lambda level: (float(level), level)))
    return tuple(sorted(levels))
