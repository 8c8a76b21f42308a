"""CSV files as a table: types by the first rows, ids as they are written, errors with their cause.

A later row may have a different type than the first rows suggest. This raises a `LateTypeError`
with the column's actual type, and `ivvi.logs.opening` starts again with that type.

A number of twenty digits, or ``007`` beside ``7``, is an id: read as a number, it would be confused
with a different id. Such columns are kept as text, and a role that needs numbers converts them back
(`ivvi.logs.tables.numeric_text`).
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ivvi.errors import ColumnError, FileError
from ivvi.logs.tables.arrow import as_numpy, check_same_names, first_line, is_number
from ivvi.logs.tables.thousands_separators import has_thousands, may_be_thousands

EXACT = 2.0**53
"""Whole numbers from here on are not told apart as floating numbers."""
WHOLE_AS_WRITTEN = r"^\s*(0|-?[1-9][0-9]*)\s*$"
AS_WRITTEN = r"^\s*-?(0|[1-9][0-9]{0,14})(\.0*|\.[0-9]{0,14}[1-9])?\s*$"
"""Cells that a floating number stands for and no other."""
CSV_BLOCK, ID_BYTES = 1 << 20, 1 << 25
"""Bytes that are read at once, and those in which ids are looked at as they are written."""
DIGITS = r"^\s*-?[0-9]+\s*$"
SEPARATORS = {",": "commas", ";": "semicolons", "|": "bars", "\t": "tabs"}
LOOKED_AT = 1 << 16
"""Bytes in which the cause of an error is looked for."""
Opened = TypeVar("Opened")
HEADER_WITHIN = 20
"""Lines among which the names of columns are looked for."""


LATE = re.compile(
    r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to ([^:]+): invalid value '(.*)'",
    re.DOTALL,
)
"""What Arrow says of a cell that is not of the type of its column."""
RAGGED = re.compile(r"Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
"""What Arrow says of a row with too many or too few cells."""
MOST_BEGINNINGS = 100
"""How often a log is opened with the types of later rows, at most."""


class LateTypeError(ColumnError):
    """A cell is not of the type that the first rows of its column suggest."""

    def __init__(self, message: str, column: str, kind: pa.DataType) -> None:
        super().__init__(message)
        self.column, self.kind = column, kind


def with_late_types(opened: Callable[[Mapping[str, pa.DataType]], Opened]) -> Opened:
    """Open a log, and begin again with another column type if a later row needs one.

    Only a file whose first rows mislead is read again.
    """
    types: dict[str, pa.DataType] = {}
    for _ in range(MOST_BEGINNINGS):
        try:
            return opened(types)
        except LateTypeError as error:
            if types.get(error.column) == error.kind:
                raise
            types[error.column] = error.kind
    return opened(types)


class CsvTable:
    """One or several CSV (or TSV) files with a header, gzipped or not."""

    in_memory = False
    num_rows: int | None = None

    def __init__(self, files: Sequence[Path], label: str) -> None:
        self.files: Sequence[Path] = list(files)
        self.label = label
        self._empty_lines = False
        schemas = [self._guessed_schema(file) for file in self.files]
        self.schema = schemas[0]
        for file, schema in zip(self.files[1:], schemas[1:], strict=True):
            check_same_names(self.files[0], self.schema, file, schema)
            self.schema = _widened(self.schema, schema)

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield parsed rows; what is not a number in a numeric column is named."""
        types = {name: self.schema.field(name).type for name in columns}
        types |= {name: pa.float64() for name in numeric if types[name] != pa.bool_()}
        types = {name: kind for name, kind in types.items() if kind != pa.null()}
        for file in self.files:
            with self._explained(file, [name for name in numeric if name in types]):
                settings: dict[str, Any] = {"include_columns": list(columns)}
                settings |= {"column_types": types, "empty_lines": self._empty_lines}
                for block in _open_csv(file, **settings):
                    for start in range(0, block.num_rows, size):
                        yield block.slice(start, size)

    def with_empty_lines(self) -> CsvTable:
        """Return the table in which an empty line of a single column is a row without a value.

        Otherwise Arrow leaves it out, and the rows after it are no longer the lines of the file.
        """
        made = copy.copy(self)
        made._empty_lines = len(self.schema) == 1 and any(map(_has_gap, self.files))
        return made

    def with_ids(self, names: Sequence[str]) -> CsvTable:
        """Return the table in which these columns are text where numbers would not tell them apart.

        The cells are looked at in the first `ID_BYTES` of the files.
        """
        kinds = {name: self.schema.field(name).type for name in names}
        whole = {n: pa.types.is_integer(kind) for n, kind in kinds.items()}
        left = [n for n, kind in kinds.items() if whole[n] or pa.types.is_floating(kind)]
        texts: list[str] = []
        for block in self._written(left) if left else ():
            texts += [n for n in left if not _is_exact(block.column(n), whole=whole[n])]
            left = [name for name in left if name not in texts]
            if not left:
                break
        made = copy.copy(self)
        made.schema = _as_text(self.schema, texts)
        return made

    def with_types(self, types: Mapping[str, pa.DataType]) -> CsvTable:
        """Return the table with other types of some columns."""
        made = copy.copy(self)
        for name, kind in types.items():
            at = made.schema.get_field_index(name)
            made.schema = made.schema.set(at, pa.field(name, kind))
        return made

    def _written(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns as text, of the first rows of all files."""
        rest = ID_BYTES
        for file in self.files:
            with self._explained(file):
                types = dict.fromkeys(names, pa.string())
                for block in _open_csv(file, include_columns=list(names), column_types=types):
                    yield block
                    rest -= CSV_BLOCK
                    if rest <= 0:
                        return

    def _guessed_schema(self, file: Path) -> pa.Schema:
        """Return the columns with the types that the first rows suggest.

        A column without a name, such as the index that a data frame was written with, is none.
        """
        with self._explained(file):
            reader = _open_csv(file)
            schema = reader.schema
            try:
                names = schema.names
            except UnicodeDecodeError as error:
                raise FileError(_not_utf8(f"the header of {file}")) from error
            if len(names) == 1 and (cause := _cause(file)):
                raise FileError(f"{file} {cause}")
            block = next(iter(reader), None)
        named = pa.schema([field for field in schema if field.name])
        texts = [] if block is None else _not_as_numbers(file, block)
        return _as_text(named, texts)

    @contextlib.contextmanager
    def _explained(self, file: Path, numeric: Sequence[str] = ()) -> Iterator[None]:
        """Turn Arrow's error about a file into an `InputError` with one sentence."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if "conversion error to double" in str(error):
                self._check_no_text(file, numeric)
            if (late := LATE.search(str(error))) is not None:
                raise self._late(file, int(late[1]), late[2], late[3]) from error
            raise FileError(f"{file} {_cause(file) or _unreadable(error)}") from error

    def _late(self, file: Path, at: int, kind: str, text: str) -> LateTypeError:
        """Return the error for a cell that is not of the type of its column."""
        name = _open_csv(file).schema.names[at]
        types, row = {name: pa.string()}, 0
        for block in _open_csv(file, include_columns=[name], column_types=types):
            if text in (cells := block.column(name).to_pylist()):
                row += cells.index(text)
                break
            row += block.num_rows
        return LateTypeError(
            f"column {name!r} of {file} holds {text!r} in data row {row} (from 0), and "
            f"{'no values' if kind == 'null' else kind} before it; expected one type",
            name,
            _wider(kind, text),
        )

    def _check_no_text(self, file: Path, numeric: Sequence[str]) -> None:
        """If a numeric column holds text, raise naming the column, the row and the text."""
        types = dict.fromkeys(numeric, pa.binary())  # what is not UTF-8 is text, too
        row = 0
        for block in _open_csv(file, include_columns=list(numeric), column_types=types):
            for name in numeric:
                for offset, cell in enumerate(block.column(name).to_pylist()):
                    text = (cell or b"").decode(errors="backslashreplace")
                    if text and not is_number(text):
                        raise ColumnError(
                            f"column {name!r} of {file} holds text: {text!r} in data row "
                            f"{row + offset} (from 0); expected numbers"
                        )
            row += block.num_rows


def _not_as_numbers(file: Path, block: pa.RecordBatch) -> list[str]:
    """Name the columns whose numbers mean something else, as the first rows show.

    These are whole numbers with more digits than a number keeps, and thousands with dots.
    """
    names, kinds = block.schema.names, block.schema.types
    numbers = {
        n: as_numpy(block.column(n))
        for n, kind in zip(names, kinds, strict=True)
        if n and pa.types.is_floating(kind) and names.count(n) == 1
    }
    long = [n for n, values in numbers.items() if _has_long(values)]
    dotted = [n for n, values in numbers.items() if may_be_thousands(values)]
    looked_at = long + dotted
    if not looked_at:
        return []
    types = dict.fromkeys(looked_at, pa.string())
    written = next(iter(_open_csv(file, include_columns=looked_at, column_types=types)))
    cells = {n: written.column(n).drop_null() for n in looked_at}
    return [n for n in long if _all_match(cells[n], DIGITS)] + [
        n for n in dotted if has_thousands(cells[n].to_pylist())
    ]


def _has_long(values: np.ndarray) -> bool:
    values = values[np.isfinite(values)]
    return bool(len(values) and np.abs(values).max() >= EXACT)


def _all_match(cells: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(cells, pattern)).as_py() is not False


def _is_exact(cells: pa.Array, *, whole: bool) -> bool:
    """Whether each cell is the only way to write its number."""
    cells = cells.drop_null()
    if not whole:
        return _all_match(cells, AS_WRITTEN)
    try:
        cells.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return _all_match(cells, WHOLE_AS_WRITTEN)  # comparing with a number would import pandas


def _as_text(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    for name in names:
        schema = schema.set(schema.get_field_index(name), pa.field(name, pa.string()))
    return schema


def _unreadable(error: BaseException) -> str:
    if (ragged := RAGGED.search(str(error))) is not None:
        expected, cells, row = ragged.groups()
        return (
            f"has {cells} cells in the row {row.strip()[:80]!r}; expected {expected}, as in the "
            "header: a cell that contains the separator needs quotes"
        )
    return f"cannot be read as CSV: {first_line(error)}"


def _opened(file: Path) -> Any:
    """Open a file, compressed or not, for reading bytes."""
    return (gzip.open if file.name.lower().endswith(".gz") else open)(file, "rb")


def _has_gap(file: Path) -> bool:
    """Return whether an empty line stands between others, and not only after the last."""
    with _opened(file) as lines:
        filled = [bool(line.strip()) for line in lines]
    return not all(filled[: max((i + 1 for i, full in enumerate(filled) if full), default=0)])


def _not_utf8(what: str) -> str:
    return f"{what} is not UTF-8 (Latin-1, perhaps); save the file as UTF-8"


def _cause(file: Path) -> str:
    """Return what is not CSV in the first lines of a file, if they show it."""
    try:
        with _opened(file) as opened:
            start = opened.read(LOOKED_AT)
    except (OSError, EOFError):
        return ""
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "is UTF-16; save it as UTF-8"
    lines = start.decode(errors="replace").splitlines()[: HEADER_WITHIN + 1]
    if not any(line.strip() for line in lines):
        return "is empty; expected a line of names and rows"
    own = _delimiter(file)
    if re.match(r"\ufeff?\"?sep=", lines[0], re.IGNORECASE):
        return f"begins with {lines[0][:40]!r}, a line for spreadsheets; remove it"
    lines = [
        re.sub(r'"[^"]*"', '""', line) for line in lines
    ]  # signs within quotes separate nothing
    for sign, words in SEPARATORS.items():
        counts = [line.count(sign) for line in lines[:2]]
        if sign != own and counts[0] and min(counts) == counts[0] and own not in lines[0]:
            comma = ", decimal=','" if own == "," and own in lines[1] else ""
            return (
                f"has {words} between its columns; expected {SEPARATORS[own]}: write it again, "
                f"such as with pandas.read_csv({file.name!r}, sep={sign!r}{comma}, dtype={{ID: "
                "str}).to_csv(..., index=False), where ID is the column of episodes, whose zeros "
                "this keeps"
            )
    most = max((line.count(own) for line in lines), default=0)
    if most and not lines[0].count(own):
        at = next(i for i, line in enumerate(lines) if line.count(own) == most)
        return (
            f"begins with {lines[0][:40]!r}, which is not a header; the header seems to be line "
            f"{at + 1}; remove the lines before it"
        )
    return _ragged_cause(file, [line.split(own) for line in lines])


def _ragged_cause(file: Path, lines: Sequence[Sequence[str]]) -> str:
    """Return why the first lines have more cells than the line of names."""
    width, most = len(lines[0]), max(map(len, lines))
    at = next(i for i, cells in enumerate(lines) if len(cells) == most)
    rows = [cells for cells in lines[at:] if any(cells)]
    if not at or any(len(cells) < most for cells in rows):
        return ""
    if at == 1 and most == width + 1 and not any(cells[-1] for cells in rows):
        sep = "" if _delimiter(file) == "," else "sep='\\t', "
        return (
            "has a separator at the end of each row, but none at the end of the header; rewrite "
            f"it as CSV, such as with pandas.read_csv({file.name!r}, {sep}"
            "index_col=False, dtype={ID: str}).to_csv(..., index=False), where ID is the column of "
            "episodes, whose zeros this keeps"
        )
    if any(not cell or is_number(cell) for cell in rows[0]):
        return ""
    return (
        f"begins with {_delimiter(file).join(lines[0])[:40]!r}, which has fewer cells than the "
        f"rows, and the header seems to be line {at + 1}; remove the lines before it"
    )


def _delimiter(file: Path) -> str:
    return "\t" if re.search(r"\.(tsv|tab|txt)(\.gz)?$", file.name.lower()) else ","


def _open_csv(
    file: Path, *, empty_lines: bool = False, **options: Any
) -> pa.csv.CSVStreamingReader:
    delimiter = _delimiter(file)
    return pa.csv.open_csv(
        file,
        read_options=pa.csv.ReadOptions(block_size=CSV_BLOCK),
        parse_options=pa.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=not empty_lines
        ),
        convert_options=pa.csv.ConvertOptions(strings_can_be_null=True, **options),
    )


def _wider(kind: str, text: str) -> pa.DataType:
    """Return a type for a column that also holds a cell which is not of its type."""
    if kind == "null" and re.match(WHOLE_AS_WRITTEN, text) and abs(int(text)) < EXACT:
        return pa.int64()
    number = kind in ("null", "int64") and is_number(text) and not re.match(DIGITS, text)
    return pa.float64() if number else pa.string()


def _widened(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Merge two schemas: integers with floats become floats, empty columns the other's type."""
    for i, field in enumerate(schema):
        kinds = {str(one.type) for one in (field, *other) if one.name == field.name}
        if pa.types.is_null(field.type) or kinds == {"int64", "double"}:
            wider = pa.float64() if "double" in kinds else other.field(field.name).type
            schema = schema.set(i, pa.field(field.name, wider))
    return schema
