"""From rows to transitions: each row is joined with the next row of its episode.

`Transitions` walks once over the record batches of a table and yields `Batch`es. A row
whose episode ends, or whose next step is missing, has no next state: it is dropped and
counted. Each Arrow column is copied once, in runs of consecutive valid rows, into one
column-major buffer; memory is bounded by the size of a record batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ivvi._io.arrays import Bools, Floats, Ints
from ivvi.logs.batch import Batch
from ivvi.logs.data_checks import (
    ColumnArrays,
    absent_values,
    after_end_error,
    check_terminal,
    checked_weight,
    ended_rows,
    fact_error,
    large_error,
    missing_error,
)
from ivvi.logs.scan_position import Counts, Position, batches_from
from ivvi.logs.schema import Roles
from ivvi.logs.sorting import duplicate_error
from ivvi.logs.tables.arrow import (
    Numbers,
    RowRuns,
    as_arrow,
    as_numpy,
    as_times,
    flags,
    is_moderate,
    is_present,
    missing,
    too_large,
)
from ivvi.logs.tables.table import BatchSource


class Transitions:
    """One pass over a table in order (or with next-state columns); iterate it once.

    Parameters
    ----------
    table, roles
        The rows and what their columns are.
    source
        The rows as the user has them, in which missing values are pointed out.
    size
        Rows of a record batch; the memory that is needed grows with it.
    ordered
        Whether the rows of an episode are known to be consecutive.
    drop_missing
        Drop rows with missing or infinite values instead of refusing them; one that has its
        state is still the next state of the row before it.
    episodes
        Fill `Batch.episode` and, where there is a step column, `Batch.step`.
    progress
        Called with the number of rows read, after each record batch.

    Attributes
    ----------
    paths
        For each cluster column that is not in the table, the cluster of each episode, (E,).
    """

    def __init__(
        self,
        table: BatchSource,
        roles: Roles,
        *,
        source: BatchSource,
        size: int,
        ordered: bool,
        drop_missing: bool = False,
        episodes: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.counts = Counts()
        self.paths: Mapping[str, Ints] = {}
        self._table, self._roles, self._source, self._size = table, roles, source, size
        self._ordered, self._drop_missing, self._episodes = ordered, drop_missing, episodes
        self._progress = progress
        self._offsets = np.cumsum([0, *(len(part) for part in self._parts())]).tolist()
        self._names = [name for part in self._parts() for name in part]
        self.first: pa.RecordBatch | None = None  # the first row that is used
        self._carry: pa.RecordBatch | None = None  # the last row, for its episode and step
        self._last: dict[str, float] = {}  # the last row's numbers
        self._last_complete = True  # whether it has all of them, not its state alone
        self._last_step: Any = 0
        self._step_before: Any = 0  # the same, whether or not next states are derived
        self._numbers = Numbers()
        self._clusters = [(name, Numbers()) for name in roles.cluster]
        self._last_clusters = np.zeros(len(roles.cluster), dtype=np.int64)
        self._last_time = 0.0

    def go_on(self, start: Position) -> None:
        """Begin where an earlier pass stood."""
        self.counts = replace(start.counts)
        self._numbers = Numbers(start.numbers)
        self._carry = start.carry
        if start.carry is not None:
            row = start.carry
            self._last = {name: as_numpy(row.column(name))[0] for name in self._roles.numeric}
            self._last_complete = not any(missing(column)[0] for column in row.columns)
            if self._roles.derived:
                self._last_step = _steps(row.column(self._roles.step))[0]
            if self._roles.step is not None:
                self._step_before = as_numpy(row.column(self._roles.step))[0]
            if start.clusters:
                self._know_clusters(start.clusters, row)

    def _know_clusters(self, values: Sequence[Sequence[Any]], row: pa.RecordBatch) -> None:
        """Resume the numbering of an earlier pass, whose last row this is."""
        named = zip(self._roles.cluster, values, strict=True)
        self._clusters = [(name, Numbers(of)) for name, of in named]
        last = [
            0 if name in self.paths else _codes(numbers, row.column(name))[0]
            for name, numbers in self._clusters
        ]
        self._last_clusters = np.array(last, dtype=np.int64)

    def position(self, alike: tuple[tuple[int, int], ...], weight: float) -> Position:
        """Return where the pass stands, after the batch that it has just yielded."""
        where = (replace(self.counts), self._carry, self._numbers.values)
        return Position(*where, alike, weight, self.clusters)

    @property
    def episodes(self) -> tuple[Any, ...]:
        """The episodes so far, in the order of their numbers, where they had to be looked up."""
        return self._numbers.values

    @property
    def clusters(self) -> tuple[tuple[Any, ...], ...]:
        """The values of each cluster column so far, in the order of their numbers."""
        return tuple(
            tuple(range(self.paths[name].max() + 1)) if name in self.paths else numbers.values
            for name, numbers in self._clusters
        )

    def _parts(self) -> tuple[tuple[str, ...], ...]:
        """Columns of x, a, z and y in the buffer; a derived x' is the state, one row on."""
        roles = self._roles
        following = roles.next_state or roles.predicted
        others = roles.terminal + ((roles.reward,) if roles.reward else ())
        weight = (roles.weight,) if roles.weight else ()
        return roles.state, roles.action, roles.instrument, following, others, weight

    def __iter__(self) -> Iterator[Batch]:
        names, done = self._roles.columns, self.counts.rows
        if done and self._progress:
            self._progress(done)
        for block in batches_from(self._table, names, self._roles.numeric, self._size, done):
            self.counts.rows += block.num_rows
            usable, values, complete = self._without_missing(block)
            if usable.num_rows:
                batch = self._batch(usable, values, complete)
                self.counts.transitions += len(batch)
                if len(batch) and self._roles.frequency:
                    self._count_repeated(batch)
                    yield from batch.repeated(self._size)
                elif len(batch):
                    yield batch
            if self._progress:
                self._progress(block.num_rows)
        if self._roles.derived:
            self.counts.without_next = (
                self.counts.rows - self.counts.missing - self.counts.transitions
            )

    def _count_repeated(self, batch: Batch) -> None:
        """Count each row as often as its weight says."""
        if batch.weight is None:
            return
        more = int(batch.weight.sum()) - len(batch)
        self.counts.transitions += more
        if self._roles.episode is None:
            self.counts.episodes += more

    def _without_missing(
        self, block: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, ColumnArrays, Bools | None]:
        """Return the usable rows of `block`, their numeric columns, and which are complete.

        None where all are complete; rows that are not serve as next states alone.
        """
        values = _values(block, self._roles)
        immoderate = [v for v in values.values() if not is_moderate(v)]
        if not immoderate and all(
            is_present(block.column(name)) for name in self._roles.columns if name not in values
        ):
            return block, values, None
        if any(too_large(v).any() for v in immoderate):
            raise large_error(self._source, self._roles)
        if not self._drop_missing:
            raise missing_error(self._source, self._roles)
        absent = absent_values(block, self._roles)
        complete = ~np.logical_or.reduce(list(absent.values()))
        self.counts.missing += int(len(complete) - complete.sum())
        following = [absent[name] for name in absent if name not in self._roles.of_the_act]
        keep = ~np.logical_or.reduce(following) if self._roles.derived else complete
        columns_left = {name: v[keep] for name, v in values.items()}
        return block.filter(as_arrow(keep)), columns_left, complete[keep]

    def _batch(self, block: pa.RecordBatch, values: ColumnArrays, complete: Bools | None) -> Batch:
        """Copy the valid rows of `block`, and the row carried over, into one buffer."""
        if self.first is None:
            self.first = block.slice(0, 1)
        starts = self._starts(block)
        first, linked = self._links(block, starts)
        self._check_facts(block, values, first, linked)
        ended = ended_rows(values, self._roles) if self._roles.terminal else None
        if ended is not None:
            self._check_ended(block, ended, starts)
            linked |= ended
            self.counts.ended += int(ended.sum())
        first = first and self._last_complete
        self._last_complete = complete is None or bool(complete[-1])
        if complete is not None:
            linked &= complete
        episode = self._number_episodes(block, starts)
        rows = RowRuns(linked)
        shifted = range(self._offsets[3], self._offsets[4]) if self._roles.derived else range(0)
        buffer = np.empty((len(self._names), int(first) + rows.count))
        for i, name in enumerate(self._names):
            if first:
                buffer[i, 0] = values[name][0] if i in shifted else self._last[name]
            if ended is not None and i in shifted:  # who has ended stands still
                following = np.where(ended, values[name], np.roll(values[name], -1))
                rows.copy(following, 0, buffer[i, int(first) :])
            else:
                rows.copy(values[name], int(i in shifted), buffer[i, int(first) :])
        order = np.append(first, linked)
        numbers = None if episode is None else episode[order]
        clusters = tuple(codes[order] for codes in self._number_clusters(block, episode))
        step, time = self._steps(block), self._times(block)
        self._carry = block.slice(block.num_rows - 1)
        self._last = {name: column[-1] for name, column in values.items()}
        step, time = (None if one is None else one[order] for one in (step, time))
        return self._split(buffer, numbers, step, time, clusters)

    def _split(
        self,
        buffer: Floats,
        episode: Ints | None,
        step: NDArray[Any] | None,
        time: Floats | None,
        clusters: tuple[Ints, ...],
    ) -> Batch:
        x, a, z, y, _, w, end = self._offsets
        return Batch(
            x=buffer[x:a].T,
            a=buffer[a:z].T,
            z=buffer[z:y].T,
            y=buffer[y:w].T,
            weight=checked_weight(buffer[w], self._roles) if end > w else None,
            episode=episode,
            step=step,
            time=time,
            clusters=clusters,
            table=buffer[x:w].T,
        )

    def _check_ended(self, block: pa.RecordBatch, ended: Bools, starts: Bools) -> None:
        """Refuse a row that follows the end of its own episode."""
        roles = self._roles
        if roles.episode is None or not self._ordered:
            return
        before = self._carry is not None and any(self._last[n] > 0 for n in roles.terminal)
        after = np.append(before, ended[:-1]) & ~starts
        if after.any():
            raise after_end_error(self._source, roles, block, int(np.flatnonzero(after)[0]))

    def _check_facts(
        self, block: pa.RecordBatch, values: ColumnArrays, first: bool, linked: Bools
    ) -> None:
        """Refuse a change of a state that is carried along because it never changes."""
        roles = self._roles
        for name in roles.facts:
            v = values[name]
            before = np.append(self._last[name] if first else v[0], v[:-1])
            both = ~(np.isnan(v) | np.isnan(before))
            changed = (v != before) & both & np.append(first, linked[:-1])
            if changed.any():
                at = int(np.flatnonzero(changed)[0])
                raise fact_error(self._source, roles, block, at, name)

    def _starts(self, block: pa.RecordBatch) -> Bools:
        """Return which rows of `block` start another episode than the row before them."""
        name, n = self._roles.episode, block.num_rows
        starts = np.ones(n, dtype=bool)
        if name is not None:
            column = block.column(name)
            starts[0] = self._carry is None or self._carry.column(name)[0] != column[0]
            starts[1:] = flags(pc.not_equal(column.slice(1), column.slice(0, n - 1)))
        return starts

    def _links(self, block: pa.RecordBatch, starts: Bools) -> tuple[bool, Bools]:
        """Return whether the carried row meets row 0, and row i meets row i + 1, of `block`.

        The last row of the block is held back (False here): its next state, if it has
        one, comes with the next block. Rows with next-state columns need no other row.
        """
        if not self._roles.derived:
            return False, np.ones(block.num_rows, dtype=bool)
        step = _steps(block.column(self._roles.step))
        gap = np.diff(step, prepend=step[0] if self._carry is None else self._last_step)
        repeated = np.flatnonzero(~starts & (gap == 0))
        if len(repeated):
            at = int(repeated[0])
            raise duplicate_error(*(block.column(key)[at].as_py() for key in self._roles.keys))
        linked = ~starts & (gap == 1)
        self.counts.gaps += int(np.count_nonzero(~starts & ~linked))
        self._last_step = step[-1]
        return bool(linked[0]), np.append(linked[1:], False)

    def _steps(self, block: pa.RecordBatch) -> NDArray[Any] | None:
        """Return the steps of [carried row, block's rows], if asked for."""
        if not self._episodes or self._roles.step is None:
            return None
        step = as_numpy(block.column(self._roles.step))
        before, self._step_before = self._step_before, step[-1]
        return np.append(before, step)

    def _times(self, block: pa.RecordBatch) -> Floats | None:
        """Return the times of [carried row, block's rows], if the log has them."""
        if self._roles.time is None:
            return None
        time = as_times(block.column(self._roles.time))
        before, self._last_time = self._last_time, float(time[-1])
        return np.append(before, time)

    def _number_episodes(self, block: pa.RecordBatch, starts: Bools) -> Ints | None:
        """Count the episodes and, if asked for, number those of [carried row, block's rows]."""
        before = self.counts.episodes - 1
        if self._roles.episode is not None and not self._ordered:
            numbers = self._numbers.of(block.column(self._roles.episode))
            self.counts.episodes = len(self._numbers)
            return np.append(before, numbers)
        self.counts.episodes += int(starts.sum())
        numbered = self._episodes or self.paths
        return np.append(before, before + np.cumsum(starts)) if numbered else None

    def _number_clusters(self, block: pa.RecordBatch, episode: Ints | None) -> list[Ints]:
        """Number the clusters of [carried row, block's rows], for each cluster column."""
        codes = [
            np.take(self.paths[name], episode, mode="clip")
            if episode is not None and name in self.paths
            else np.append(last, _codes(numbers, block.column(name)))
            for last, (name, numbers) in zip(self._last_clusters, self._clusters, strict=True)
        ]
        self._last_clusters = np.array([column[-1] for column in codes], dtype=np.int64)
        return codes


def _values(block: pa.RecordBatch, roles: Roles) -> ColumnArrays:
    """Return the numeric columns; the next state of a row that ended its episode is its own."""
    values = {name: as_numpy(block.column(name)) for name in roles.numeric}
    if not roles.terminal:
        return values
    check_terminal(values, roles)
    ended = ended_rows(values, roles)
    for following, state in zip(roles.next_state, roles.predicted, strict=False):
        values[following] = np.where(ended, values[state], values[following])
    return values


def _codes(numbers: Numbers, column: pa.Array) -> Ints:
    """Number the values of a column; a row without one, which is a next state alone, is 0."""
    if is_present(column):
        return numbers.of(column)
    absent = missing(column)
    codes = np.zeros(len(column), dtype=np.int64)
    if not absent.all():
        codes[~absent] = numbers.of(column.filter(as_arrow(~absent)))
    return codes


def _steps(column: pa.Array) -> NDArray[Any]:
    step = as_numpy(column)
    return step if step.dtype.kind == "f" else step.astype(np.int64, copy=False)
