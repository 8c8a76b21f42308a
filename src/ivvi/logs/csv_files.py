"""CSV and TSV files as a table; what is not a number is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from ivvi.errors import ColumnError, FileError
from ivvi.logs.arrow import check_same_names, first_line, is_number

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


class CsvTable:
    """One or several CSV (or TSV) files with a header, gzipped or not."""

    in_memory = False
    num_rows: int | None = None

    def __init__(self, files: Sequence[Path], label: str) -> None:
        self.files: Sequence[Path] = list(files)
        self.label = label
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
                for block in _open_csv(file, include_columns=list(columns), column_types=types):
                    for start in range(0, block.num_rows, size):
                        yield block.slice(start, size)

    def _guessed_schema(self, file: Path) -> pa.Schema:
        """Return the columns with the types that the first rows suggest."""
        with self._explained(file):
            schema = _open_csv(file).schema
        try:
            _ = schema.names
        except UnicodeDecodeError as error:
            raise FileError(f"the header of {file} is not UTF-8") from error
        return schema

    @contextlib.contextmanager
    def _explained(self, file: Path, numeric: Sequence[str] = ()) -> Iterator[None]:
        """Turn Arrow's error about a file into an `InputError` with one sentence."""
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            if "conversion error to double" in str(error):
                self._check_no_text(file, numeric)
            raise FileError(f"{file} cannot be read as CSV: {first_line(error)}") from error

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


def _open_csv(file: Path, **options: Any) -> pa.csv.CSVStreamingReader:
    delimiter = "\t" if ".tsv" in file.name.lower() else ","
    return pa.csv.open_csv(
        file,
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(strings_can_be_null=True, **options),
    )


def _widened(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema for two files: numbers of whole ones and others, any type of empty cells."""
    for i, field in enumerate(schema):
        kinds = {str(one.type) for one in (field, *other) if one.name == field.name}
        if pa.types.is_null(field.type) or kinds == {"int64", "double"}:
            wider = pa.float64() if "double" in kinds else other.field(field.name).type
            schema = schema.set(i, pa.field(field.name, wider))
    return schema
