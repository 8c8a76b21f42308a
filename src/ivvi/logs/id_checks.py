"""Checks of ids: one id spelled in two ways, words that mean no id, the same id in two files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ivvi.errors import DataError
from ivvi.logs.columns.category_encoding import MOST_LEVELS, is_text
from ivvi.logs.tables.arrow import plain_type
from ivvi.logs.tables.readers import open_table
from ivvi.logs.tables.table import BatchSource

LOOKED_AT = 1 << 16
"""Rows whose ids are compared."""
MOST_FILES = 8
"""Files whose first rows are compared."""
NEARLY_ALL, FEWEST_IDS = 0.9, 5
"""Share of the ids of a file, and how many, that are in another too, at times between."""
PIECE = "part-"
"""How names of files begin into which a cluster of machines has cut one table at random."""
OFTEN = 0.02
"""Share of ids that differ from another in case alone, from which on that is no chance."""
YEAR_FIRST = re.compile(r"\d{4}-")
"""How dates begin whose order is that of their text."""
UNKNOWN = {"unknown", "unbekannt", "n/a", "na", "nan", "none", "null", "missing", "-", "?", "."}
"""Words that stand for no id."""


def id_notes(table: BatchSource, columns: Sequence[str]) -> tuple[str, ...]:
    """Warn about ids in the first rows that seem to be the same, or no ids."""
    texts = [name for name in columns if is_text(table.schema.field(name).type)]
    block = next(iter(table.batches(texts, (), LOOKED_AT)), None) if texts else None
    if block is None:
        return ()
    notes: list[str] = []
    for name in texts:
        ids = sorted(pc.unique(block.column(name).drop_null()).to_pylist())
        notes += [note for note in (_alike(name, ids), _unknown(name, ids, block)) if note]
    return tuple(notes)


def level_notes(table: BatchSource, columns: Sequence[str]) -> tuple[str, ...]:
    """Warn about levels of clusters and absorbed effects in the first rows that seem the same.

    Of few levels, two that differ only in case are hardly two by chance.
    """
    texts = [n for n in dict.fromkeys(columns) if n in table.schema.names]
    texts = [name for name in texts if is_text(table.schema.field(name).type)]
    block = next(iter(table.batches(texts, (), LOOKED_AT)), None) if texts else None
    if block is None:
        return ()
    notes: list[str] = []
    for name in texts:
        levels = sorted(pc.unique(block.column(name).drop_null()).to_pylist())
        notes.append(_alike(name, levels, few=len(levels) <= MOST_LEVELS))
    return tuple(note for note in notes if note)


def _alike(name: str, ids: Sequence[str], *, few: bool = False) -> str:
    """Warn about ids that differ only in surrounding blanks or in case."""
    met: dict[str, str] = {}
    pairs = [(first, one) for one in ids if (first := met.setdefault(_key(one), one)) != one]
    blank = [pair for pair in pairs if len({one.strip() for one in pair}) == 1]
    if not pairs or not (few or blank or len(pairs) > max(1, OFTEN * len(ids))):
        return ""
    first, second = (blank or pairs)[0]
    pairs_word = "pairs" if len(pairs) > 1 else "pair"
    return (
        f"{name} holds {first!r} and {second!r} ({len(pairs):,} such {pairs_word}), which differ "
        "only in case or blanks and count as two: write them alike in the table"
    )


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _unknown(name: str, ids: Sequence[str], block: pa.RecordBatch) -> str:
    """Warn about rows with a word for an unknown id, which are treated as a single id."""
    for one in [text for text in ids if text.strip().lower() in UNKNOWN]:
        if (rows := pc.sum(pc.equal(block.column(name), one)).as_py()) > 1:
            return (
                f"{name} is {one!r} in {rows:,} rows, which are treated as a single {name}: if "
                f"that means unknown, leave these rows out (--where \"{name} != '{one}'\")"
            )
    return ""


def ids_in_files(
    files: Sequence[Path], episode: Sequence[str], step: str, *, whole: bool
) -> tuple[str, ...]:
    """Warn if ids of one file of a log seem to be used again for others in another file.

    By their first rows. Ids that go on from file to file are those of the same episodes; where
    their times interleave they hardly are, and where steps are the same they are not: that is
    refused if the log reads the `whole` files, which then have rows that stand twice.
    """
    tables = {}
    for file in files[:MOST_FILES] if len(files) > 1 else ():
        keys = _keys_of(file, episode, step)
        if keys is None:
            return ()
        tables[file] = keys
    for one, two in combinations(tables, 2):
        names = f"{one.name} and {two.name}"
        remedy = (
            f"give each file its own ids, or put a column of the file's place before "
            f"{'+'.join(episode)} in --episode"
        )
        pair = tables[one], tables[two]
        if whole and (row := _first_shared_row(*pair)) is not None:
            raise DataError(
                f"{names} both have step {row['step']!r} of episode {row['id']!r}: if they use the "
                f"same ids for different episodes, {remedy}; otherwise remove the duplicate rows"
            )
        if not one.name.startswith(PIECE) and (count := _interleaved(*pair)):
            return (
                f"{names} share {count:,} ids of {'+'.join(episode)}, and their values of {step} "
                "interleave; rows with the same id are treated as one episode: if the files use "
                f"the same ids for different episodes, {remedy}",
            )
    return ()


def _keys_of(file: Path, episode: Sequence[str], step: str) -> pa.Table | None:
    """Return ids, as text, and steps of the first rows of a file, if it has such columns."""
    table = open_table(file)
    if not all(table.schema.names.count(name) == 1 for name in (*episode, step)):
        return None
    block = next(iter(table.batches([*dict.fromkeys((*episode, step))], (), LOOKED_AT)), None)
    if block is None or any(pa.types.is_nested(field.type) for field in block.schema):
        return None
    ids = [block.column(name).cast(pa.string()) for name in episode]
    joined = pc.binary_join_element_wise(*ids, "+") if len(ids) > 1 else ids[0]
    return pa.table({"id": joined, "step": block.column(step)}).drop_null()


def _first_shared_row(one: pa.Table, two: pa.Table) -> dict[str, str] | None:
    """Return id and step of a row that both files have."""
    rows = [
        pc.binary_join_element_wise(keys["id"], keys["step"].cast(pa.string()), "\x00")
        for keys in (one, two)
    ]
    shared = one.filter(pc.is_in(rows[0], rows[1]))
    return {key: shared[key][0].as_py() for key in ("id", "step")} if shared.num_rows else None


def _interleaved(one: pa.Table, two: pa.Table) -> int:
    """Return how many ids have times in one file between those in the other, if nearly all have.

    Numbered steps that interleave would be the same ones, unless a log was cut at random.
    """
    kinds = {plain_type(keys.schema.field("step").type) for keys in (one, two)}
    if len(kinds) > 1 or not (one.num_rows and two.num_rows):
        return 0
    kind, first = kinds.pop(), one["step"][0].as_py()
    if not (pa.types.is_temporal(kind) or (is_text(kind) and YEAR_FIRST.match(first))):
        return 0
    ends = [
        keys.group_by("id").aggregate([("step", "min"), ("step", "max")]) for keys in (one, two)
    ]
    both = ends[0].join(ends[1], "id", right_suffix="_2", join_type="inner")
    between = pc.and_(
        pc.less(both["step_min"], both["step_max_2"]), pc.less(both["step_min_2"], both["step_max"])
    )
    count = pc.sum(between).as_py() or 0
    fewest = min(len(part) for part in ends)
    return count if count >= max(FEWEST_IDS, NEARLY_ALL * fewest) else 0
