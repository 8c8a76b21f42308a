"""What is said of ids that are text: two ways to write one name, and words for no name at all."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.logs.encoding import is_text
from ivvi.logs.table import BatchSource

LOOKED_AT = 1 << 16
"""Rows whose ids are compared."""
OFTEN = 0.02
"""Share of ids that differ from another in case alone, from which on that is no chance."""
UNKNOWN = {"unknown", "unbekannt", "n/a", "na", "nan", "none", "null", "missing", "-", "?", "."}
"""Words that stand for no id."""


def id_notes(table: BatchSource, columns: Sequence[str]) -> tuple[str, ...]:
    """Say of columns of ids which of them seem to be one, or none, by the first rows."""
    texts = [name for name in columns if is_text(table.schema.field(name).type)]
    block = next(iter(table.batches(texts, (), LOOKED_AT)), None) if texts else None
    if block is None:
        return ()
    notes: list[str] = []
    for name in texts:
        ids = sorted(pc.unique(block.column(name).drop_null()).to_pylist())
        notes += [note for note in (_alike(name, ids), _unknown(name, ids, block)) if note]
    return tuple(notes)


def _alike(name: str, ids: Sequence[str]) -> str:
    """Say that ids differ in blanks around them, or many in case, and count as two."""
    met: dict[str, str] = {}
    pairs = [(first, one) for one in ids if (first := met.setdefault(_key(one), one)) != one]
    blank = [pair for pair in pairs if len({one.strip() for one in pair}) == 1]
    if not blank and len(pairs) <= max(1, OFTEN * len(ids)):
        return ""
    first, second = (blank or pairs)[0]
    return (
        f"{name} holds {first!r} and {second!r} ({len(pairs):,} such pairs), which differ only in "
        "case or blanks and count as two: write them alike in the table"
    )


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _unknown(name: str, ids: Sequence[str], block: pa.RecordBatch) -> str:
    """Say that rows without an id are taken for rows of one."""
    for one in [text for text in ids if text.strip().lower() in UNKNOWN]:
        if (rows := pc.sum(pc.equal(block.column(name), one)).as_py()) > 1:
            return (
                f"{name} is {one!r} in {rows:,} rows, which are taken for rows of one {name}: if "
                f"it is not known there, leave them out (--where \"{name} != '{one}'\")"
            )
    return ""
