"""Text columns that hold numbers after all, once the codes of missing values are removed.

In a CSV file, one ``.`` turns a column of numbers into text. Ids become text too, if reading them
as numbers would lose digits (`ivvi.logs.tables.csv_files`). A role that needs numbers gets them
back here. In a table that knows types, such as a data frame, text of numbers with fractions is
numbers too; text of whole numbers may be codes, and stays a category.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.categories import CodedColumn
from ivvi.errors import ColumnError
from ivvi.logs.columns.category_encoding import first_row, is_text
from ivvi.logs.columns.missing_codes import has_codes
from ivvi.logs.tables.csv_files import CsvTable
from ivvi.logs.tables.table import ArrowTable, BatchSource, TableView
from ivvi.logs.tables.thousands_separators import has_thousands, without_dots

WHOLE = r"^\s*-?[0-9]{1,15}\s*$"
NUMBER = r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$"
MAYBE_CODE = r"^\s*[-+]?[0-9]+\.?0*\s*$"
"""Whole numbers, which may be codes where they are text."""
MANY_LEVELS = 20
"""From so many whole numbers on, a category of them deserves a note."""
BLOCK = 1 << 16
"""Rows that are looked at together."""


def with_numbers(
    table: BatchSource,
    raw: BatchSource,
    columns: Sequence[str],
    codes: Sequence[str],
    always: Collection[str] = (),
) -> BatchSource:
    """Return the table with numbers in those columns of text that hold nothing else.

    Parameters
    ----------
    raw
        The table before the `codes` of missing values were taken out.
    columns
        Columns with a role that needs numbers.
    always
        Those that are numbers in a table that knows types though they are whole numbers only.
    """
    names = table.schema.names  # one that stands twice is refused later
    texts = [n for n in columns if names.count(n) == 1 and is_text(table.schema.field(n).type)]
    rest: list[str] = []
    if not _is_csv(table):
        plain = [n for n in texts if n in always and not _is_dated(table, n)]
        sure = [name for name in texts if name in plain or has_codes(raw, name, codes)]
        rest = [name for name in texts if name not in (*sure, *always)]
        texts = sure
    kinds = _kinds(table, texts) | _kinds(table, rest, MAYBE_CODE)
    kinds = {name: kind for name, kind in kinds.items() if name in texts or kind == pa.float64()}
    for name in kinds:
        _check_no_thousands(table, name)
    if not kinds:
        return table
    if not isinstance(table, ArrowTable):
        return NumberTable(table, kinds)
    arrow_table = table.table
    for name, kind in kinds.items():
        at = arrow_table.schema.get_field_index(name)
        arrow_table = arrow_table.set_column(at, name, _numbers(arrow_table[name], kind))
    return ArrowTable(arrow_table, table.label, table.files)


def many_codes(
    table: BatchSource, categories: Sequence[CodedColumn], asked: Collection[str]
) -> tuple[str, ...]:
    """Note which columns of text become categories though their whole numbers may be amounts.

    These have more than `MANY_LEVELS` levels, and fewer rows than these squared.
    """
    notes: list[str] = []
    for one in categories:
        count = len(one.levels)
        numbers = all(re.fullmatch(NUMBER, level) for level in one.levels)
        if not numbers or count <= MANY_LEVELS or one.column in asked:
            continue
        rows = 0
        for block in table.batches([one.column], (), BLOCK):
            rows += block.num_rows
            if rows >= count**2:
                break
        if rows < count**2:
            notes.append(
                f"{one.column} holds whole numbers stored as text, and is taken for a category of "
                f"{count} levels: if they are amounts, make the column numeric in the table "
                f"(df[{one.column!r}].astype(float) in pandas); if they are codes, say "
                f"categorical={one.column!r} (--categorical {shlex.quote(one.column)})"
            )
    return tuple(notes)


def check_no_text(table: BatchSource, columns: Sequence[str], otherwise: str = "") -> None:
    """Refuse columns of text where numbers are needed, and name the first cell that is no number.

    `otherwise` says what else is expected.
    """
    for name in [n for n in columns if is_text(table.schema.field(n).type)]:
        row, example = 0, None
        for block in table.batches([name], (), BLOCK):
            cells = block.column(name)
            known = pc.fill_null(pc.match_substring_regex(cells, NUMBER), True)
            at = pc.index(known, pa.scalar(False)).as_py()
            if at >= 0:
                raise ColumnError(
                    f"column {name!r} of {table.label} holds text: {cells[at].as_py()!r} in data "
                    f"row {row + at} (from 0); expected numbers{otherwise}"
                )
            example = next(iter(cells.drop_null().to_pylist()), example)
            row += block.num_rows
        if example is not None:
            raise ColumnError(
                f"column {name!r} of {table.label} holds numbers as text, such as {example!r}; "
                f"expected numbers: make the column numeric in the table{otherwise}"
            )


class NumberTable(TableView):
    """A table in which some columns of text are read as numbers."""

    def __init__(self, table: Any, kinds: Mapping[str, pa.DataType]) -> None:
        super().__init__(table, table.label)
        self.kinds = dict(kinds)
        for name, kind in self.kinds.items():
            self.schema = self.schema.set(self.schema.get_field_index(name), pa.field(name, kind))

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with these columns as numbers."""
        others = [name for name in numeric if name not in self.kinds]
        for block in self.table.batches(columns, others, size):
            arrays = [
                _numbers(column, self.kinds[name]) if name in self.kinds else column
                for name, column in zip(block.schema.names, block.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, block.schema.names)

    def pieces(self, rows: int) -> list[TableView]:
        """Cut the table into pieces of at least `rows` rows, in order."""
        return [NumberTable(piece, self.kinds) for piece in self.table.pieces(rows)]


def _is_dated(table: BatchSource, name: str) -> bool:
    """Whether a column of digits begins with a date such as 20240131 or 202401."""
    block = next(iter(table.batches([name], (), BLOCK)), None)
    first = None if block is None else next(iter(block.column(name).drop_null().to_pylist()), None)
    return first is not None and re.fullmatch(r"(19|20)\d\d(\d\d){1,2}", first) is not None


def _is_csv(table: Any) -> bool:
    while isinstance(table, TableView):
        table = table.table
    return isinstance(table, CsvTable)


def _kinds(
    table: BatchSource, columns: Sequence[str], whole: str = WHOLE
) -> dict[str, pa.DataType]:
    """Return the type of numbers that columns of text hold, of those that hold nothing else."""
    kinds: dict[str, pa.DataType] = {}
    left = list(columns)
    for block in table.batches(left, (), BLOCK) if left else ():
        for name in left.copy():
            cells = _written(block.column(name)).drop_null()
            if not len(cells):
                continue
            if not _all_match(cells, NUMBER):
                left.remove(name)
                kinds.pop(name, None)
            elif kinds.get(name) != pa.float64():
                kinds[name] = pa.int64() if _all_match(cells, whole) else pa.float64()
        if not left:
            break
    return kinds


def _check_no_thousands(table: BatchSource, name: str) -> None:
    """Refuse numbers with dots between thousands, which would be read as decimals."""
    for block in table.batches([name], (), BLOCK):
        cells = block.column(name).drop_null().to_pylist()
        if has_thousands(cells):
            dotted = next(text for text in cells if "." in text)
            below = next((text for text in cells if "." not in text), dotted)
            raise ColumnError(
                f"column {name!r} of {table.label} holds {dotted!r} in data row "
                f"{first_row(table, name, dotted)} and {below!r} in data row "
                f"{first_row(table, name, below)} (from 0), so dots seem to stand between "
                f"thousands; expected numbers such as {without_dots(dotted)}, or a decimal point "
                "in all of them"
            )


def _all_match(cells: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(cells, pattern)).as_py())


def _numbers(column: Any, kind: pa.DataType) -> Any:
    """Return text as numbers."""
    return pc.utf8_ltrim(_written(column), characters="+").cast(kind)


def _written(column: Any) -> Any:
    """Return text without surrounding blanks; null if nothing is left."""
    text = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.match_substring_regex(text, "^$"), pa.nulls(1, text.type)[0], text)
