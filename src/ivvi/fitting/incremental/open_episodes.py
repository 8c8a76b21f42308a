"""Episodes that continue from one delivery of rows to the next.

A delivery may hold one day of every patient, so that each of them has a last row that waits for
its next state. An episode continues if its name reappears with a later step; with the same or an
earlier step it is a new episode of that name, as when every delivery counts its episodes from zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ivvi._io.arrays import Bools, Ints
from ivvi.errors import IvviWarning
from ivvi.logs import Batch, Counts, Log, Roles
from ivvi.logs.log import batch_rows
from ivvi.logs.scan_position import pack_rows, unpack_rows
from ivvi.logs.tables.arrow import Numbers, as_arrow, as_numpy, flags, missing
from ivvi.logs.tables.table import ArrowTable, BatchSource
from ivvi.logs.transitions import Transitions

MOST_BYTES = 64 << 20
"""Size up to which a stream keeps the last rows of its episodes."""


@dataclass(frozen=True, slots=True)
class OpenEpisodes:
    """Number and last step of each episode so far, by its name, and its last row.

    Attributes
    ----------
    roles
        The columns.
    known
        (number, last step) of each name.
    rows
        The last row of each, in the same order, where next states are those of the next row.
    """

    roles: Roles
    known: dict[Any, tuple[int, Any]] = field(default_factory=dict)
    rows: pa.Table | None = None

    def followed_by(
        self, numbers: Mapping[Any, int], steps: Mapping[Any, Any], rows: pa.Table | None
    ) -> OpenEpisodes:
        """Return the episodes that are open after a delivery; the oldest may be dropped."""
        if not numbers:
            return self
        old = [name for name in self.known if name not in numbers]
        known = {name: self.known[name] for name in old}
        known |= {name: (number, steps[name]) for name, number in numbers.items()}
        if rows is None or self.rows is None:
            return replace(self, known=known, rows=rows)
        old_rows = _take(self.rows, self._places(old))
        rows = pa.concat_tables([old_rows, rows], promote_options="permissive").combine_chunks()
        if rows.nbytes > MOST_BYTES:
            names = list(known)
            gone = len(names) // 4
            text = (
                f"the last rows of {len(names):,} episodes take too much memory: those of the "
                f"{gone:,} oldest are dropped, and these count as new episodes if they continue"
            )
            warnings.warn(text, IvviWarning, stacklevel=4)
            known, rows = {name: known[name] for name in names[gone:]}, rows.slice(gone)
        return replace(self, known=known, rows=rows)

    def waiting(self, names: Sequence[Any]) -> pa.Table:
        """Return the last rows of these episodes, in order."""
        assert self.rows is not None  # noqa: S101 - names are known, and known ones have rows
        return _take(self.rows, self._places(names))

    def _places(self, names: Sequence[Any]) -> list[int]:
        place = {name: i for i, name in enumerate(self.known)}
        return [place[name] for name in names]

    def saved(self) -> dict[str, np.ndarray]:
        """Return all but the roles as arrays."""
        if not self.known:
            return {}
        numbers, steps = zip(*self.known.values(), strict=True)
        columns = {"name": list(self.known), "number": numbers, "step": steps}
        arrays = {"known": pack_rows(pa.record_batch({k: pa.array(v) for k, v in columns.items()}))}
        if self.rows is not None:
            arrays["rows"] = pack_rows(self.rows.combine_chunks().to_batches()[0])
        return arrays

    @classmethod
    def restore(cls, roles: Roles, arrays: Mapping[str, np.ndarray]) -> OpenEpisodes:
        """Rebuild from what `saved` returned."""
        if "known" not in arrays:
            return cls(roles)
        name, number, step = (c.to_pylist() for c in unpack_rows(arrays["known"]).columns)
        rows = pa.Table.from_batches([unpack_rows(arrays["rows"])]) if "rows" in arrays else None
        return cls(roles, dict(zip(name, zip(number, step, strict=True), strict=True)), rows)


class OpenBatch:
    """The transitions of a delivery; those that began in an earlier delivery come first.

    Iterate it once; then `counts` are those of the delivery, with the episodes that are new, and
    `open` is what waits for the next one.
    """

    def __init__(self, before: OpenEpisodes, log: Log, episodes: int) -> None:
        self._before, self._log, self._roles = before, log, before.roles
        self._table, self._next_number = log.ordered_table, episodes
        self._first, self._last = _first_and_last_steps(self._table, self._roles)
        self._going_on = [
            name
            for name, step in self._first.items()
            if name in before.known and step > before.known[name][1]
        ]
        self._numbers = {name: before.known[name][0] for name in self._going_on}
        self._number_of: dict[Any, int] = {}
        self.counts, self.open = Counts(), before

    def __iter__(self) -> Iterator[Batch]:
        roles, source = self._roles, self._log.table
        settings: dict[str, Any] = {"source": source, "size": batch_rows(roles), "ordered": False}
        first_new = self._next_number
        joints = 0
        if roles.derived and self._going_on:
            pairs = ArrowTable(self._pairs(), self._log.label)
            walk = Transitions(pairs, roles, **settings, drop_missing=True, episodes=True)
            yield from self._numbered(walk)
            joints = walk.counts.transitions
        last = _LastRows(self._table, roles)
        drop = self._log.drop_missing
        walk = Transitions(last, roles, **settings, drop_missing=drop, episodes=True)
        yield from self._numbered(walk)
        episodes = self._next_number - first_new
        total = walk.counts.transitions + joints
        self.counts = replace(walk.counts, transitions=total, episodes=episodes)
        rows = last.of(list(self._number_of)) if roles.derived and self._number_of else None
        self.open = self._before.followed_by(self._number_of, self._last, rows)

    def _numbered(self, walk: Transitions) -> Iterator[Batch]:
        """Yield the batches of a walk with the numbers that the stream has given its episodes."""
        numbers = np.zeros(0, dtype=np.int64)
        for batch in walk:
            numbers = np.append(numbers, self._number(walk.episodes[len(numbers) :]))
            yield replace(batch, episode=numbers[batch.episode])
        self._number(walk.episodes[len(numbers) :])

    def _number(self, names: Sequence[Any]) -> Ints:
        for name in names:
            if name not in self._number_of:
                is_new = name not in self._numbers
                self._number_of[name] = self._next_number if is_new else self._numbers[name]
                self._next_number += is_new
        return np.array([self._number_of[name] for name in names], dtype=np.int64)

    def _pairs(self) -> pa.Table:
        """Return, in turn, the last row of each continuing episode and its first new row."""
        awaited, rows = set(self._going_on), []
        for block in self._table.batches(self._roles.columns, self._roles.numeric, 1 << 16):
            if not awaited:
                break
            starts = block.filter(as_arrow(_changes(block.column(self._roles.episode))))
            names = starts.column(self._roles.episode).to_pylist()
            chosen = [i for i, name in enumerate(names) if name in awaited]
            rows.append(_take(pa.Table.from_batches([starts]), chosen))
            awaited -= set(names)
        first_rows, count = pa.concat_tables(rows), len(self._going_on)
        names = first_rows.column(self._roles.episode).to_pylist()
        both = [self._before.waiting(names), first_rows]
        in_turn = np.arange(2 * count).reshape(2, count).T.ravel().tolist()
        return _take(pa.concat_tables(both, promote_options="permissive"), in_turn)


class _LastRows:
    """A table that remembers the last row of each episode, while its rows pass by in order."""

    def __init__(self, table: BatchSource, roles: Roles) -> None:
        self._table, self._roles, self._ends = table, roles, list[pa.Table]()
        self.label, self.schema, self.files = table.label, table.schema, table.files
        self.num_rows, self.in_memory = table.num_rows, table.in_memory

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the table."""
        for block in self._table.batches(columns, numeric, size):
            if self._roles.derived and block.num_rows:
                ends = np.roll(_changes(block.column(self._roles.episode)), -1)
                self._ends.append(pa.Table.from_batches([block.filter(as_arrow(ends))]))
            yield block

    def of(self, names: Sequence[Any]) -> pa.Table:
        """Return the last rows of these episodes, in order."""
        rows = pa.concat_tables(self._ends)
        place = {name: i for i, name in enumerate(rows.column(self._roles.episode).to_pylist())}
        return _take(rows, [place[name] for name in names])


def _first_and_last_steps(
    table: BatchSource, roles: Roles
) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the lowest and the highest step of each episode of a table."""
    numbers, first, last = Numbers(), np.zeros(0), np.zeros(0)
    for block in table.batches(roles.keys, roles.keys[-1:], 1 << 18):
        present = ~np.logical_or.reduce([missing(column) for column in block.columns])
        block = block.filter(as_arrow(present))
        codes, step = numbers.of(block.column(0)), as_numpy(block.column(1)).astype(float)
        more = len(numbers) - len(first)
        first, last = np.append(first, [np.inf] * more), np.append(last, [-np.inf] * more)
        np.minimum.at(first, codes, step)
        np.maximum.at(last, codes, step)
    names = numbers.values
    both = (dict(zip(names, steps.tolist(), strict=True)) for steps in (first, last))
    return next(both), next(both)


def _changes(column: pa.Array) -> Bools:
    """Return which values are the first, or differ from the one before; (n,)."""
    n = len(column)
    differs = flags(pc.fill_null(pc.not_equal(column.slice(1), column.slice(0, n - 1)), True))
    return np.append(True, differs)


def _take(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    return rows.take(as_arrow(np.array(places, np.int64)))
