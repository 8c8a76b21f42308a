"""Rows spread evenly over a log: runs of consecutive ones, made of whole episodes.

Tables are sorted: by site, by state, by outcome. What their first rows show holds for the first
sites, so what is said of a log is said of runs from its beginning to its end. A run is `RUN` rows;
where rows have steps it is whole episodes, at least one, so that the row before and the row after
are found. Where the rows of an episode stand apart, some episodes are chosen in the place of runs,
by a hash of their numbers, so that no order of the episodes goes with the choice.

A pass knows the end only when it is there. It keeps every k-th run, with k such that the rows of
the table would just fit, and twice k whenever more than `most` rows are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi.logs.batch import FIELDS, PARTS, Batch
from ivvi.logs.tables.arrow import flags

RUN = 64
"""Rows of a run."""
KEPT = 1 << 14
"""Rows that a pass keeps, at least half of them; half where it is known how many rows there are."""
FEWEST = 8
"""Runs that must be left of a pass."""
STRETCHES = 16
"""Of many long episodes, stretches are chosen; each is at most this share of the chosen rows."""
SCRAMBLE = np.uint64(0x9E3779B97F4A7C15)


def spread(rows: Batch, most: int) -> Batch:
    """Return at most so many of the rows, in runs from the first to the last row."""
    if len(rows) <= most:
        return rows
    if rows.episode is not None and rows.step is not None:
        if (np.diff(rows.episode) < 0).any():
            return _some_episodes(rows, most)
        new = np.diff(rows.episode, prepend=rows.episode[0] - 1) != 0
        starts = _starts(new, max(RUN, most // STRETCHES))
    else:
        starts = np.arange(0, len(rows), RUN)
    return runs(rows, *_chosen(starts, len(rows), most)).first(most)


def spread_table(table: pa.Table, most: int, episode: str | None) -> pa.Table | None:
    """Return about so many rows of a table, in runs from the first to the last.

    None where it is as short as that, or where episodes are so long that too few would be left.
    The rows of an `episode` stand together and stay so.
    """
    if len(table) <= most:
        return None
    starts = np.arange(0, len(table), RUN)
    if episode is not None:
        column = table[episode].combine_chunks()
        changed = flags(pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)))
        starts = _starts(np.append(True, changed), len(table))
    spans = [(a, b - a) for a, b in zip(*_chosen(starts, len(table), most), strict=True)]
    if sum(rows for _, rows in spans) > 2 * most:
        return None  # of few long episodes
    return pa.concat_tables([table.slice(*span) for span in spans]).combine_chunks()


def _chosen(starts: Ints, rows: int, most: int) -> tuple[Ints, Ints]:
    """Return where some runs of about `most` of the rows start and stop, evenly spread."""
    wanted = min(len(starts), -(-most * len(starts) // rows))
    chosen = np.linspace(0, len(starts) - 1, wanted).astype(np.int64)
    return starts[chosen], np.append(starts, rows)[chosen + 1]


def runs(rows: Batch, starts: Ints, stops: Ints) -> Batch:
    """Return a copy of the rows from each start to its stop."""
    return _joined([_Part(rows, starts, stops, starts)])


@dataclass(frozen=True, slots=True)
class _Part:
    """Some runs of the rows of a batch, and the number of each run."""

    rows: Batch
    starts: Ints
    stops: Ints
    numbers: Ints

    @property
    def count(self) -> int:
        """How many rows they are."""
        return int(np.sum(self.stops - self.starts))

    def every(self, step: int) -> _Part:
        """Return the runs whose number is a multiple of a step."""
        chosen = self.numbers % step == 0
        return _Part(self.rows, self.starts[chosen], self.stops[chosen], self.numbers[chosen])

    def copied(self, space: Floats) -> _Part:
        """Return the runs with a batch of only these rows, whose table is written into `space`."""
        ends = np.cumsum(self.stops - self.starts)
        return _Part(_joined([self], space), np.append(0, ends[:-1]), ends, self.numbers)


def _joined(parts: Sequence[_Part], space: Floats | None = None) -> Batch:
    """Return a copy of several parts of rows, joined; the table is written into `space`."""
    spans = [
        (part.rows, [slice(*span) for span in zip(part.starts, part.stops, strict=True)])
        for part in parts
    ]

    def join(name: str) -> Any:
        values = [(getattr(rows, name), slices) for rows, slices in spans]
        if any(one is None for one, _ in values):
            return None
        pieces = [one[span] for one, slices in values for span in slices]
        return np.concatenate(pieces, out=space if name == "table" else None)

    rows = parts[0].rows
    others: dict[str, Any] = {name: join(name) for name in FIELDS if name not in PARTS}
    clusters = tuple(
        np.concatenate([one.clusters[i][span] for one, slices in spans for span in slices])
        for i in range(len(rows.clusters))
    )
    table = join("table")
    if table is None:
        split: list[Any] = [join(name) for name in PARTS]
    else:
        ends = np.cumsum([getattr(rows, name).shape[1] for name in PARTS])
        split = np.split(table, ends[:-1], axis=1)
    made: Any = (*split, *others.values(), clusters, table)
    return Batch(*made)


def _starts(new: NDArray[np.bool_], longest: int) -> Ints:
    """Return where runs of whole episodes, or stretches of longer ones, start.

    An episode starts in each `new` row.
    """
    place = np.arange(len(new))
    first = np.flatnonzero(new)
    begin = np.repeat(first, np.diff(np.append(first, len(new))))
    begin += (place - begin) // longest * longest
    starts: Ints = np.flatnonzero(np.diff(begin // RUN, prepend=-1))
    return starts


def _some_episodes(rows: Batch, most: int) -> Batch:
    """Return at most so many rows, of episodes chosen independently of their order."""
    episode = np.asarray(rows.episode)
    values, codes, counts = np.unique(episode, return_inverse=True, return_counts=True)
    order = np.argsort(_scrambled(values))
    taken = np.cumsum(counts[order]) <= most
    taken[0] = True
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order[taken]] = True
    return rows.chosen(np.flatnonzero(chosen[codes])).first(most)


def _scrambled(numbers: Ints) -> NDArray[np.uint64]:
    """Return numbers that look random; equal numbers give equal ones."""
    product = (numbers.astype(np.uint64) + np.uint64(1)) * SCRAMBLE
    mixed: NDArray[np.uint64] = (product ^ (product >> np.uint64(29))) >> np.uint64(16)
    return mixed


class SpreadRows:
    """Rows that a pass keeps, spread over it; bounded by `most`.

    Parameters
    ----------
    most
        The most rows to keep.
    expected
        How many rows the table has, where that is known.
    has_steps, ordered
        Whether the rows of an episode must stay together, and whether they come together.
    """

    def __init__(self, most: int, expected: int | None, *, has_steps: bool, ordered: bool) -> None:
        self.most, self._has_steps, self._ordered = most, has_steps, ordered
        self._every = max(1, -(-(expected or 0) // most))
        self._first: list[_Part] = []
        self._later: list[_Part] = []
        self._space: Floats = np.empty((0, 0))
        self._place, self._run, self._begin, self._episode = 0, -1, -1, -1
        self._given_up = False

    def start(self, batches: Sequence[Batch]) -> None:
        """Choose runs of the first batches, which stay in memory anyway, so they are not copied."""
        for batch in batches:
            self._first.append(self._runs_of(batch).every(self._every))
        self._thin()

    def add(self, batch: Batch) -> None:
        """Keep some runs of the next batch of a pass."""
        if self._given_up or not len(batch):
            return
        part = self._runs_of(batch).every(self._every)
        if not part.count:
            return
        self._later.append(part)
        in_place = 0 if self._thin() or not self._space.size else len(self._later) - 1
        if not in_place:  # one space for all: many small ones would split the memory of a pass
            self._space = np.empty(
                (sum(getattr(batch, name).shape[1] for name in PARTS), self.most)
            ).T
        self._later[in_place:] = [self._copied(at) for at in range(in_place, len(self._later))]

    def _copied(self, at: int) -> _Part:
        """Return one of the later parts with a copy of its rows."""
        before = sum(part.count for part in self._later[:at])
        part = self._later[at]
        return part.copied(self._space[before : before + part.count])

    def _thin(self) -> bool:
        """Drop every second run until the others are few enough; return whether any was dropped."""
        before = self._every
        while sum(part.count for part in (*self._first, *self._later)) > self.most:
            self._every *= 2
            self._first = [part.every(self._every) for part in self._first]
            later = [part.every(self._every) for part in self._later]
            self._later = [part for part in later if part.count]
            numbers = [part.numbers for part in (*self._first, *self._later)]
            if len(np.unique(np.concatenate(numbers))) < FEWEST:
                self._first, self._later, self._given_up = [], [], True
        return self._every > before

    @property
    def is_empty(self) -> bool:
        """Whether there was no batch."""
        return not self._place

    def rows(self) -> Batch | None:
        """Return the rows that are kept; None if runs are so long that too few would remain."""
        parts = [part for part in (*self._first, *self._later) if part.count]
        return _joined(parts) if parts else None

    def _runs_of(self, batch: Batch) -> _Part:
        """Return the runs of the next batch."""
        before, n = self._place, len(batch)
        self._place += n
        if not self._has_steps or batch.episode is None:
            starts = np.arange(-(before % RUN), n, RUN)
            numbers = before // RUN + np.arange(len(starts))
        elif not self._ordered:
            starts, numbers = np.arange(n), _scrambled(batch.episode).astype(np.int64)
        else:
            new = np.flatnonzero(np.diff(batch.episode, prepend=self._episode))
            block = np.append(self._begin, new + before) // RUN
            numbers = self._run + np.cumsum(np.diff(block, prepend=block[0]) != 0)
            starts = np.append(0, new)
            self._run, self._episode = int(numbers[-1]), int(batch.episode[-1])
            self._begin = int(new[-1]) + before if len(new) else self._begin
        return _Part(batch, np.maximum(starts, 0), np.append(starts[1:], n), numbers)
