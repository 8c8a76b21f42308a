"""Arrow rows made plain, schemas compared, and what Arrow says made short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ivvi.errors import ColumnError, FileError


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
            raise ColumnError(f"column {name!r} of {label} holds {kind}; numbers are wanted")


def check_keys(schema: pa.Schema, names: Sequence[str], label: str) -> None:
    """Refuse columns whose values cannot tell rows apart: lists and the like."""
    for name in names:
        kind = plain_type(schema.field(name).type)
        if pa.types.is_nested(kind):
            raise ColumnError(f"column {name!r} of {label} holds {kind}; single values are wanted")


def check_same_schema(first: Any, wanted: pa.Schema, file: Any, found: pa.Schema) -> None:
    """Refuse a file whose columns or their types are not those of the first."""
    check_same_names(first, wanted, file, found)
    for name in wanted.names:
        one, other = (plain_type(schema.field(name).type) for schema in (wanted, found))
        if one != other:
            raise FileError(
                f"column {name!r} is {other} in {file} but {one} in {first}; one type is wanted"
            )


def check_same_names(first: Any, wanted: pa.Schema, file: Any, found: pa.Schema) -> None:
    """Refuse a file whose columns are not those of the first, in whatever order."""
    missing = [name for name in wanted.names if name not in found.names]
    extra = [name for name in found.names if name not in wanted.names]
    if missing or extra:
        what = f"lacks column {missing[0]!r}" if missing else f"has another column, {extra[0]!r}"
        raise FileError(f"{file} {what}: its columns differ from those of {first}")


def skip_rows(blocks: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the blocks without the first `rows` rows."""
    for block in blocks:
        if rows < block.num_rows:
            yield block.slice(rows)
        rows = max(0, rows - block.num_rows)


def first_line(error: BaseException) -> str:
    """Return the first line of what Arrow says."""
    return str(error).strip().splitlines()[0].rstrip(".")
