"""Columns that stand in the names of folders: ``logs/year=2024/month=1/part.parquet``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
"""What a folder is called whose rows have no value."""


def partition_columns(
    sources: Sequence[Any], root: str | None, stored: Sequence[str]
) -> tuple[pa.Schema, list[dict[str, pa.Scalar]]]:
    """Return the columns in the names of the folders between a root and each file.

    They are those that the folders of every file name. Values that are whole numbers in all
    the names are integers, others are text. A column that the files hold too is theirs.

    Parameters
    ----------
    sources
        Files, whose ``str`` is their path or URL.
    root
        Where the names begin to count; None where they do not.
    stored
        Names of the columns in the files.
    """
    named = [{} if root is None else _in_path(str(file).removeprefix(root)) for file in sources]
    shared = [key for key in named[0] if key not in stored and all(key in one for one in named)]
    kinds = {key: _kind([one[key] for one in named]) for key in shared}
    constants = [{key: _scalar(one[key], kind) for key, kind in kinds.items()} for one in named]
    return pa.schema(list(kinds.items())), constants


def with_constants(
    rows: pa.RecordBatch, constants: dict[str, pa.Scalar], columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the `columns` of some rows, of which some are the same in all rows."""
    arrays = [
        pa.repeat(constants[name], rows.num_rows) if name in constants else rows.column(name)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns), metadata=rows.schema.metadata)


def _in_path(path: str) -> dict[str, str]:
    folders = re.split(r"[/\\]", path)[:-1]
    pairs = (folder.split("=", 1) for folder in folders if folder.find("=") > 0)
    return {unquote(key): unquote(value) for key, value in pairs}


def _kind(values: Sequence[str]) -> pa.DataType:
    whole = all(re.fullmatch(r"-?\d{1,18}", value) for value in values if value != NULL)
    return pa.int64() if whole else pa.string()


def _scalar(value: str, kind: pa.DataType) -> pa.Scalar:
    known = int(value) if kind == pa.int64() and value != NULL else value
    return pa.scalar(None if value == NULL else known, kind)
