"""A log: a table, the roles of its columns, passes over its transitions, and plots of columns."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ivvi._io.arrays import Ints
from ivvi._io.files import atomic_file
from ivvi._io.result import html_table, text_table
from ivvi.errors import ColumnError, DataError, InputError, NoNextStateError
from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.column_summary import describe_columns, plot_columns
from ivvi.logs.columns.formula import parse_formula
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.columns.times import check_time
from ivvi.logs.data_checks import CopyWatch
from ivvi.logs.evenly_spaced_rows import KEPT, SpreadRows, spread_table
from ivvi.logs.instruments.shared_by_episodes import InstrumentPaths, PathGroups
from ivvi.logs.row_sample import Sample
from ivvi.logs.scan_position import Counts, Position
from ivvi.logs.schema import Roles, path_instruments
from ivvi.logs.sorting import check_no_duplicates, is_ordered, sort_table
from ivvi.logs.tables.arrow import check_keys
from ivvi.logs.tables.minari import write_minari
from ivvi.logs.tables.table import ArrowTable, BatchSource, order_columns
from ivvi.logs.transitions import Transitions

Progress = Callable[[int], None]
"""Called with the number of rows just read, or of whatever else was just done."""
BATCH_BYTES = 10 << 20
"""Default size of a batch: near the processor's cache, large enough for BLAS."""
HEAD_ROWS, HEAD_BYTES, HEAD_LEAST = 1 << 16, 8 << 20, 1 << 13
"""Rows of a log by which features, samples and warnings are chosen: at most so many, and of a
wide log as many as take so much memory, but no fewer than the last."""


class Log:
    """Transitions of a table, read in batches, as often as needed.

    Examples
    --------
    >>> import numpy as np, ivvi
    >>> t = np.arange(6)
    >>> log = ivvi.read_logs(
    ...     {"episode": t // 3, "step": t % 3, "x0": t * 1.0, "a0": -t, "z0": t**2},
    ...     state="x0", action="a0", instrument="z0",
    ... )
    >>> log.to_batch().y.ravel().tolist()      # x0 of the next row, inside each episode
    [1.0, 2.0, 4.0, 5.0]
    """

    def __init__(
        self,
        table: BatchSource,
        roles: Roles,
        *,
        drop_missing: bool = False,
        notes: tuple[str, ...] = (),
        removed: Counts | None = None,
        paths: dict[str, Ints] | None = None,
        progress: Progress | None = None,
        unfiltered: BatchSource | None = None,
    ) -> None:
        self.progress = progress
        self.unfiltered = unfiltered  # the table before the filter of `roles.where`
        self._first: list[Batch] | None = None  # see `remembering`
        self._after_first: Position | None = None
        self._spread: Batch | None = None
        self.removed = Counts() if removed is None else removed
        self._paths = {} if paths is None else paths
        self.table, self.roles, self.drop_missing = table, roles, drop_missing
        self.notes = notes
        check_keys(table.schema, roles.keys + roles.read_clusters, table.label)

    @property
    def label(self) -> str:
        """Where the rows come from, for people."""
        return self.table.label

    @property
    def num_rows(self) -> int | None:
        """Rows of the table, where the format knows it without reading."""
        return self.table.num_rows

    def batches(
        self,
        *,
        size: int | None = None,
        episodes: bool = False,
        start: Position | None = None,
        replay: bool = False,
    ) -> Pass:
        """Start a pass over the transitions, at most about `size` at a time.

        Parameters
        ----------
        size
            Rows read at once, which bounds the memory; by default about 10 MiB of them.
        episodes
            Number the episode of each row in `Batch.episode`.
        start
            `Pass.position` of an earlier pass with the same settings, to go on from there.
        replay
            Yield first batches that an earlier pass has kept (`remembering`) in place of reading
            them again; `Pass.position` is then that of the rows after them.
        """
        again = replay and start is None and self._after_first is not None
        start = self._after_first if again else start
        table, ordered = self._readable
        walk = Transitions(
            table,
            self.roles,
            source=self.table,
            size=batch_rows(self.roles) if size is None else size,
            ordered=ordered,
            drop_missing=self.drop_missing,
            episodes=episodes or self._first is not None,
            progress=self.progress,
        )
        walk.counts = replace(self.removed)
        made = set(self.roles.cluster) - set(self.roles.read_clusters)
        walk.paths = {name: self._path(name) for name in made}
        if start is not None:
            walk.go_on(start)
        known = tuple(self._first or ()) if again else ()
        return Pass(walk, self, start, fresh=start is None and size is None, known=known)

    @cached_property
    def _readable(self) -> tuple[BatchSource, bool]:
        """The table in an order in which it can be walked, and whether that is by episode."""
        roles = self.roles
        if roles.episode is None or roles.step is None:
            return self.table, False
        if (in_order := getattr(self.table, "in_order", None)) is not None:
            return self.table, in_order
        if is_ordered(self.table, (*order_columns(self.table, roles.episode), roles.step)):
            return self.table, True
        if roles.derived:
            return sort_table(self.table, roles.columns, roles.numeric, roles.keys), True
        check_no_duplicates(self.table, roles.keys)
        return self.table, False

    @property
    def ordered_table(self) -> BatchSource:
        """The rows in an order in which next states are found: by episode and step if derived."""
        return self._readable[0]

    @property
    def ordered(self) -> bool:
        """Whether the rows of an episode come one after another (found by one pass)."""
        return self.roles.episode is None or self._readable[1]

    def clustered(self, columns: Columns) -> Log:
        """Return the log with these columns read as clusters (the episode needs no reading)."""
        asked = (columns,) if isinstance(columns, str) else columns
        paths = [name for name in asked if path_instruments(name, self.roles.instrument)]
        names = match_columns(columns, [*self.table.schema.names, *paths], "cluster")
        others = tuple(name for name in names if name != self.roles.episode)
        return self.replaced(self.table, replace(self.roles, cluster=others))

    def knowing(self, groups: PathGroups) -> None:
        """Remember groups of episodes that a pass over this log has found."""
        self._paths[groups.name] = groups.codes

    def _path(self, name: str) -> Ints:
        """Return the group of each episode by the paths of instruments, found by one pass."""
        if name not in self._paths:
            alone = self.replaced(self.table, replace(self.roles, cluster=()))
            paths = InstrumentPaths(self.roles, residuals=self.is_residual, every=True)
            for batch in alone.batches(episodes=True):
                paths.add(batch)
            self._paths[name] = paths.codes(name)
        return self._paths[name]

    @property
    def is_residual(self) -> bool:
        """Whether the rows are what fixed effects have left, equal up to rounding."""
        return getattr(self.table, "absorbed", None) is not None

    def replaced(self, table: BatchSource, roles: Roles) -> Log:
        """Return the log with this table and these roles; settings, notes and counts stay."""
        paths = self._paths if table is self.table else None
        return Log(
            table,
            roles,
            drop_missing=self.drop_missing,
            notes=self.notes,
            removed=self.removed,
            paths=paths,
            progress=self.progress,
            unfiltered=self.unfiltered,
        )

    def watched(self, progress: Progress | None) -> Log:
        """Return the log that calls `progress` with the number of rows that a pass has just read.

        Looks at the first rows are not reported.
        """
        if progress is self.progress and self._first is None:
            return self
        log = copy.copy(self)
        log.progress, log._first, log._after_first, log._spread = progress, None, None, None
        return log

    def remembering(self) -> Log:
        """Return the log whose next pass keeps rows: nothing reads them again.

        They are the first ones, for a second pass, and some that are spread over the log
        (`ivvi.logs.evenly_spaced_rows`), for `head`.
        """
        log = copy.copy(self)
        log._first, log._after_first, log._spread = [], None, None
        return log

    @property
    def absorbed(self) -> tuple[str, ...]:
        """Columns whose fixed effects its formula absorbs."""
        return parse_formula(self.roles.formula).absorbed if self.roles.formula else ()

    def refuse_absorbed(self, verb: str, instead: str = "") -> None:
        """Refuse a formula with absorbed effects for a verb that does not take them out.

        `instead` is what to do where removing them is no way out.
        """
        if self.absorbed:
            raise InputError(
                f"{verb} cannot absorb fixed effects; remove `| {' + '.join(self.absorbed)}` "
                f"from the formula{instead}"
            )

    def absorbing(self, columns: Columns) -> Columns:
        """Return the columns to absorb: those of its formula, or those that are asked for."""
        own = self.absorbed
        if own and columns:
            raise InputError(
                f"the formula absorbs {' and '.join(own)}; remove --absorb (absorb=), or the "
                "part of the formula between the bars"
            )
        return own or columns

    def timed(self, column: str) -> Log:
        """Return the log with a column of calendar time: numbers, dates or timestamps."""
        names = match_columns([column], list(self.table.schema.names), "time")
        if len(names) != 1:
            raise ColumnError(
                f"the time column {column!r} matches {len(names)} columns; expected one"
            )
        name = names[0]
        check_time(self.table.schema, name, self.label)
        return self.replaced(self.table, replace(self.roles, time=name))

    def in_order(self) -> Log:
        """Return the log with the rows of an episode together, in the order of their steps."""
        roles, (_, ordered) = self.roles, self._readable
        if ordered or roles.episode is None:
            return self
        table = sort_table(self.table, roles.columns, roles.numeric, roles.keys)
        return self.replaced(table, roles)

    def to_batch(self, *, episodes: bool = False) -> Batch:
        """Read all transitions at once; for logs that fit in memory."""
        return concatenate(list(self.batches(episodes=episodes)))

    @property
    def head_rows(self) -> int:
        """How many rows features, samples and warnings are chosen by."""
        within = HEAD_BYTES // (8 * max(len(self.roles.numeric), 1))
        return max(HEAD_LEAST, min(HEAD_ROWS, within))

    def head(self, rows: int | None = None, *, episodes: bool = False) -> Batch:
        """Return the first transitions, about `rows` of them (feature maps look at these).

        Where a pass has kept rows (`remembering`), these are spread over the whole log.
        """
        if self._first and rows is None and episodes:
            return self.beginning() if self._spread is None else self._spread
        rows = self.head_rows if rows is None else rows
        taken: list[Batch] = []
        for batch in self.watched(None).batches(episodes=episodes):
            taken.append(batch)
            if sum(map(len, taken)) >= rows:
                break
        return concatenate(taken)

    def beginning(self) -> Batch:
        """Return the first transitions, whether or not a pass has kept rows."""
        return concatenate(self._first) if self._first else self.head(episodes=True)

    def shortened(self, rows: int) -> Log:
        """Return a log of about so many rows, in runs that are spread over a table in memory.

        A log of fewer rows, or of a table that can only be read from its beginning, is as it is.
        """
        table, roles = self.table, self.roles
        made = set(roles.cluster) - set(roles.read_clusters)
        if made or self.ordered_table is not table or not isinstance(table, ArrowTable):
            return self
        steps = roles.episode if roles.episode and roles.step and self.ordered else None
        short = spread_table(table.table, rows, steps)
        if short is None:
            return self
        return self.replaced(ArrowTable(short, table.label, table.files), roles)

    def sample(self) -> Sample:
        """Return a few rows, spread over the first transitions, and first states of episodes."""
        return Sample.of(self.head(episodes=True), self.roles)

    def to_arrow(self) -> pa.Table:
        """Return the columns of the log, as they are, as one Arrow table."""
        columns = self.roles.columns
        blocks = list(self.table.batches(columns, self.roles.numeric, 1 << 16))
        if not blocks:
            raise DataError(f"{self.label} has no rows")
        return pa.Table.from_batches(blocks)

    def to_parquet(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the columns of the log to a Parquet file, atomically, in bounded memory."""
        with atomic_file(path, force=force) as temporary:
            writer: pq.ParquetWriter | None = None
            joined = self.roles.episode if self.roles.episode_parts else None
            columns = [name for name in self.table.schema.names if name != joined]
            for block in self.table.batches(columns, (), 1 << 17):
                writer = writer or pq.ParquetWriter(temporary, block.schema)
                writer.write_batch(block)
            if writer is None:
                raise DataError(f"{self.label} has no rows to write")
            writer.close()

    def to_minari(self, dataset_id: str, *, description: str | None = None) -> Any:
        """Write the log as a Minari data set with the instrument in its infos."""
        text = description or f"confounded log {self.label}; instrument in infos['z']"
        return write_minari(
            self.in_order().batches(episodes=True), self.roles, dataset_id, description=text
        )

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw a histogram of each column, of the first rows; `path` saves the figure."""
        return plot_columns(self.head(), self.roles, path, force=force)

    def summary(self) -> str:
        """Return role, mean, spread and range of each column as text, by the first rows."""
        return f"{self!r}\n\n{text_table(describe_columns(self.head(), self.roles))}"

    def _repr_html_(self) -> str:
        described = describe_columns(self.head(), self.roles)
        return f"<p><b>{escape(repr(self))}</b></p>{html_table(described)}"

    def __repr__(self) -> str:
        r = self.roles
        rows = "?" if self.num_rows is None else f"{self.num_rows:,}"
        return (
            f"Log({self.label}, {rows} rows, {len(r.state)} states, {len(r.action)} actions, "
            f"{len(r.instrument)} instruments, outputs {', '.join(r.outputs)})"
        )


def batch_rows(roles: Roles) -> int:
    """Return the number of rows of a batch unless asked otherwise."""
    width = len(roles.numeric) + roles.derived * len(roles.state)
    return max(1024, BATCH_BYTES // (8 * width))


class Pass:
    """One pass over a log: iterate it once, then ask for its `counts`.

    The batches before `start` come first where they are `known`.
    """

    def __init__(
        self,
        walk: Transitions,
        log: Log,
        start: Position | None,
        *,
        fresh: bool,
        known: tuple[Batch, ...] = (),
    ) -> None:
        self._walk, self._log, self._known = walk, log, known
        self._head = log._first if fresh and not log._first else None
        self._spread: SpreadRows | None = None
        self._watch = CopyWatch(log.roles, start.alike if start else None)
        self._weight = start.weight if start else 0.0

    @property
    def counts(self) -> Counts:
        """Counts of the rows read so far."""
        return self._walk.counts

    @property
    def clusters(self) -> tuple[tuple[Any, ...], ...]:
        """The values of each cluster column so far, in the order of their numbers."""
        return self._walk.clusters

    @property
    def position(self) -> Position:
        """Where the pass stands: after the batch that it has just yielded."""
        return self._walk.position(self._watch.alike, self._weight)

    def unchecked(self) -> Iterator[Batch]:
        """Pass over rows that are not a whole log yet: perhaps none has its next state."""
        yield from self._known
        for batch in self._walk:
            self._watch.look(batch)
            self._weight += len(batch) if batch.weight is None else float(batch.weight.sum())
            if self._head is not None:
                self._keep(self._head, batch)
            elif self._spread is not None:
                self._keep_spread(self._spread, batch)
            yield batch
        if self._head:
            self._log._after_first = self.position
        if self._spread is not None:
            self._log._spread = self._spread.rows()

    def _keep(self, head: list[Batch], batch: Batch) -> None:
        """Keep one of the first batches; with enough of them, note where they end."""
        head.append(batch)
        log = self._log
        if sum(map(len, head)) >= log.head_rows:
            log._after_first, self._head = self.position, None
            steps = log.roles.episode is not None and log.roles.step is not None
            most = KEPT if log.num_rows is None else KEPT // 2
            self._spread = SpreadRows(most, log.num_rows, has_steps=steps, ordered=log.ordered)

    def _keep_spread(self, rows: SpreadRows, batch: Batch) -> None:
        """Keep rows of a batch after the first ones; the first call also keeps rows of those."""
        if rows.is_empty:
            rows.start(self._log._first or ())
        rows.add(batch)

    def __iter__(self) -> Iterator[Batch]:
        yield from self.unchecked()
        check_finished(self._log, self.position)


def check_finished(log: Log, end: Position) -> None:
    """Refuse a log in which a whole pass found no usable row, or found a copied instrument."""
    if not (log.roles.frequency and end.counts.rows > end.counts.missing):  # weights may be zero
        _check_not_empty(end.counts, log)
    if not end.weight:
        raise DataError(f"weight column {log.roles.weight!r} is zero in every row")
    if not getattr(log.table, "copies_are_meant", False):
        CopyWatch(log.roles, end.alike).check()


def _check_not_empty(counts: Counts, log: Log) -> None:
    if counts.transitions:
        return
    if not counts.rows:
        raise DataError(f"{log.label} has no rows")
    if counts.missing == counts.rows:
        raise DataError(f"{log.label}: all {counts.rows} rows have missing or infinite values")
    raise NoNextStateError(
        f"{log.label}: none of the {counts.rows} rows has a next state, because {_why(counts, log)}"
    )


def _why(counts: Counts, log: Log) -> str:
    """Return why no row is followed by the next one: wrong ids, wrong steps, or no steps."""
    roles = log.roles
    parts = tuple(f"{name} holds '" for name in roles.episode_parts or (roles.episode or "",))
    if ids := [note for note in log.notes if note.startswith(parts)]:
        return ids[0]
    steps = "its steps are not consecutive numbers (for 0, 10, 20 use --every 10, every=10)"
    if counts.gaps:
        return steps
    single = ""
    if roles.reward and not roles.terminal:
        usual = [name for name in roles.keys if name in ("episode", "step")]
        renamed = f" and rename {' and '.join(usual)}" if usual else ""
        single = f"; if rows do not follow each other, leave --episode and --step out{renamed}"
    return (
        "every episode is one row long (name the next states with --next-state, next_state="
        f"{single}) or {steps}"
    )
