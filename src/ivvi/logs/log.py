"""A log: a table, what its columns mean, and passes over its transitions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ivvi._io.files import atomic_file
from ivvi._io.result import html_table
from ivvi.errors import ColumnError, DataError, InputError
from ivvi.logs.arrow import check_keys
from ivvi.logs.batch import Batch, concatenate
from ivvi.logs.calendar import check_time
from ivvi.logs.description import describe, plot_log
from ivvi.logs.encoding import without_indicators
from ivvi.logs.formula import parse_formula
from ivvi.logs.instrument_checks import CopyWatch
from ivvi.logs.instrument_paths import InstrumentPaths, Ints, PathGroups
from ivvi.logs.minari import is_minari, open_minari, write_minari
from ivvi.logs.prepare import encoded
from ivvi.logs.readers import open_table
from ivvi.logs.sample import Sample
from ivvi.logs.scan_position import Counts, Position
from ivvi.logs.schema import (
    Columns,
    Roles,
    Schema,
    match_columns,
    path_instruments,
    with_conventions,
    with_new_names,
)
from ivvi.logs.sorting import check_no_duplicates, is_ordered, sort_table
from ivvi.logs.table import BatchSource
from ivvi.logs.transitions import Transitions
from ivvi.logs.view import filtered, order_columns, with_joined, with_names
from ivvi.logs.windows import LOO, Windowed, windowed

BATCH_BYTES = 10 << 20
"""Size of a batch unless asked otherwise: near the processor's cache, large enough for BLAS."""


class Log:
    """Transitions of a table, read in batches, as often as wanted.

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
    ) -> None:
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
        progress: Callable[[int], None] | None = None,
        start: Position | None = None,
    ) -> Pass:
        """Start a pass over the transitions, at most about `size` at a time.

        Parameters
        ----------
        size
            Rows read at once, which bounds the memory; by default about 10 MiB of them.
        episodes
            Number the episode of each row in `Batch.episode`.
        progress
            Called with the number of rows just read.
        start
            `Pass.position` of an earlier pass with the same settings, to go on from there.
        """
        table, ordered = self._readable
        size = batch_rows(self.roles) if size is None else size
        walk = Transitions(
            table,
            self.roles,
            source=self.table,
            size=size,
            ordered=ordered,
            drop_missing=self.drop_missing,
            episodes=episodes,
            progress=progress,
        )
        walk.counts = replace(self.removed)
        made = set(self.roles.cluster) - set(self.roles.read_clusters)
        walk.paths = {name: self._path(name) for name in made}
        if start is not None:
            walk.go_on(start)
        return Pass(walk, self, start)

    @cached_property
    def _readable(self) -> tuple[BatchSource, bool]:
        """The table in an order in which it can be walked, and whether that is by episode."""
        roles = self.roles
        if roles.episode is None or roles.step is None:
            return self.table, False
        if (known := getattr(self.table, "in_order", None)) is not None:
            return self.table, known
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
        return self._with(self.table, replace(self.roles, cluster=others))

    def knowing(self, groups: PathGroups) -> None:
        """Remember groups of episodes that a pass over this log has found."""
        self._paths[groups.name] = groups.codes

    def _path(self, name: str) -> Ints:
        """Return the group of each episode by the paths of instruments, found by one pass."""
        if name not in self._paths:
            alone = self._with(self.table, replace(self.roles, cluster=()))
            paths = InstrumentPaths(self.roles, residuals=self.is_residual, every=True)
            for batch in alone.batches(episodes=True):
                paths.add(batch)
            self._paths[name] = paths.codes(name)
        return self._paths[name]

    @property
    def is_residual(self) -> bool:
        """Whether the rows are what fixed effects have left, equal up to rounding."""
        return getattr(self.table, "absorbed", None) is not None

    def _with(self, table: BatchSource, roles: Roles) -> Log:
        paths = self._paths if table is self.table else None
        return Log(
            table,
            roles,
            drop_missing=self.drop_missing,
            notes=self.notes,
            removed=self.removed,
            paths=paths,
        )

    def with_formula(self, formula: str) -> Log:
        """Return the log with the columns that a formula names, its episodes and weights kept."""
        roles = self.roles
        table = without_indicators(self.table, roles.categories)
        single: dict[str, Any] = {n: getattr(roles, n) for n in ("step", "weight", "terminal")}
        single["weight_kind"] = roles.weight_kind
        if roles.reward not in parse_formula(formula).outputs:
            single["reward"] = roles.reward
        given = Schema(episode=roles.episode, **single)
        opened = _opened_by(formula, table, given, where=None, drop_missing=self.drop_missing)
        made = ("episode", "step", "every", "terminal")  # as the user has them, not as they are now
        asked = dict(opened.roles.asked) | {n: v for n, v in roles.asked if n in made}
        kept: dict[str, Any] = {"where": roles.where, "episode_parts": roles.episode_parts}
        kept["ends"] = roles.ends
        return opened._with(opened.table, replace(opened.roles, asked=tuple(asked.items()), **kept))

    @property
    def absorbed(self) -> tuple[str, ...]:
        """Columns whose fixed effects its formula absorbs."""
        return parse_formula(self.roles.formula).absorbed if self.roles.formula else ()

    def refuse_absorbed(self, verb: str) -> None:
        """Refuse a formula with absorbed effects for a verb that does not take them out."""
        if self.absorbed:
            raise InputError(
                f"{verb} does not absorb effects, and the formula absorbs "
                f"{' and '.join(self.absorbed)}; leave this part of the formula out"
            )

    def absorbing(self, columns: Columns) -> Columns:
        """Return the columns to absorb: those of its formula, or those that are asked for."""
        own = self.absorbed
        if own and columns:
            raise InputError(
                f"the formula absorbs {' and '.join(own)}; leave --absorb (absorb=) out, or the "
                "formula's part between the bars"
            )
        return own or columns

    def timed(self, column: str) -> Log:
        """Return the log with a column of calendar time: numbers, dates or timestamps."""
        names = match_columns([column], list(self.table.schema.names), "time")
        if len(names) != 1:
            raise ColumnError(f"time is {column!r}, which names {len(names)} columns; expected one")
        name = names[0]
        check_time(self.table.schema, name, self.label)
        return self._with(self.table, replace(self.roles, time=name))

    def in_order(self) -> Log:
        """Return the log with the rows of an episode together, in the order of their steps."""
        roles, (_, ordered) = self.roles, self._readable
        if ordered or roles.episode is None:
            return self
        return self._with(sort_table(self.table, roles.columns, roles.numeric, roles.keys), roles)

    def to_batch(self, *, episodes: bool = False) -> Batch:
        """Read all transitions at once; for logs that fit in memory."""
        return concatenate(list(self.batches(episodes=episodes)))

    def head(self, rows: int = 1 << 16, *, episodes: bool = False) -> Batch:
        """Return the first transitions, about `rows` of them (feature maps look at these)."""
        taken: list[Batch] = []
        for batch in self.batches(episodes=episodes):
            taken.append(batch)
            if sum(map(len, taken)) >= rows:
                break
        return concatenate(taken)

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
        return plot_log(self, path, force=force)

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(repr(self))}</b></p>{html_table(describe(self))}"

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
    """One pass over a log: iterate it once, then ask for its `counts`."""

    def __init__(self, walk: Transitions, log: Log, start: Position | None = None) -> None:
        self._walk, self._log = walk, log
        self._watch = CopyWatch(log.roles, start.alike if start else None)
        self._weight = start.weight if start else 0.0

    @property
    def counts(self) -> Counts:
        """What the pass has met so far."""
        return self._walk.counts

    @property
    def clusters(self) -> tuple[tuple[Any, ...], ...]:
        """The values met so far in each cluster column, in the order of their numbers."""
        return self._walk.clusters

    @property
    def position(self) -> Position:
        """Where the pass stands: after the batch that it has just yielded."""
        return self._walk.position(self._watch.alike, self._weight)

    def unchecked(self) -> Iterator[Batch]:
        """Pass over rows that are not a whole log yet: perhaps none has its next state."""
        for batch in self._walk:
            self._watch.look(batch)
            self._weight += len(batch) if batch.weight is None else float(batch.weight.sum())
            yield batch

    def __iter__(self) -> Iterator[Batch]:
        yield from self.unchecked()
        check_finished(self._log, self.position)


def check_finished(log: Log, end: Position) -> None:
    """Refuse a log of which a whole pass has found nothing to use, or a copied instrument."""
    _check_not_empty(end.counts, log.label)
    if not end.weight:
        raise DataError(f"weight column {log.roles.weight!r} is zero in every row")
    if not getattr(log.table, "copies_are_meant", False):
        CopyWatch(log.roles, end.alike).check()


def _check_not_empty(counts: Counts, label: str) -> None:
    if counts.transitions:
        return
    if not counts.rows:
        raise DataError(f"{label} has no rows")
    if counts.missing == counts.rows:
        raise DataError(f"{label}: all {counts.rows} rows have missing or infinite values")
    raise DataError(
        f"{label}: none of the {counts.rows} rows has a next state, because every episode "
        "is one row long (name what follows with --next-state, next_state=) or its steps are not "
        "consecutive numbers (for 0, 10, 20 say --every 10, every=10)"
    )


def read_logs(  # noqa: PLR0913
    source: Any,
    *,
    state: Columns | None = None,
    action: Columns | None = None,
    instrument: Columns | None = None,
    next_state: Columns = (),
    episode: Columns | None = None,
    formula: str | None = None,
    where: str | None = None,
    drop_missing: bool = False,
    **others: Any,
) -> Log:
    """Open a log; only the rows that tell the columns apart are read yet.

    Parameters
    ----------
    source
        A Parquet, CSV or Arrow file, a folder or glob of Parquet files (which may be a URL
        such as ``s3://bucket/logs``), an Arrow, pandas or polars table, a dict of arrays, or
        a Minari data set (``minari:NAME`` or the data set itself).
    state, action, instrument, next_state
        Columns by name, glob (``x*``) or range (``x0:x4``); ``price:Price paid`` gives a column a
        new name. Of state, action and instrument, those left out are the columns x0.., a0.. and
        z0.. that have no other role; with the state, the next state is next_x0.. if they are
        there. ``state=()`` says that there is none. An instrument ``loo:doctor`` is the mean of
        each action over the other episodes of the same doctor. Text, dictionary and boolean
        columns are categories (`ivvi.logs.encoding`). States that never change within an episode
        are taken as context.
    episode
        The column that tells episodes apart, or several: each combination of their values is
        an episode. By default ``episode``, if there is such a column.
    formula
        In the place of state, action, instrument and next state: a formula such as
        ``next_x ~ x + C(ward) + x:age | id | dose ~ doctor`` (`ivvi.logs.formula`). Verbs then
        take features and absorbed effects from it.
    where
        Keep only the rows that pass, such as ``age >= 18 and ward != 'ICU'``. Rows that are
        removed are gaps: the row before one has no next state.
    drop_missing
        Drop rows with missing or infinite values, and count them, instead of refusing.
    **others
        `reward`, `step` and `weight`: one column each; `weight_kind`: ``probability`` or
        ``frequency``. `terminal`: one or several. `context` and `categorical`: columns. `lags`: a
        number, `lag_padding`: ``drop`` or ``first``, `every`: a time such as ``7d``, `date_format`:
        such as ``%d.%m.%Y``, `seen`: ``before`` or ``after``. See `Schema` for what they mean.
    """
    table: BatchSource = open_minari(source) if is_minari(source) else open_table(source)
    table = table if where is None else filtered(table, where)
    names = list(table.schema.names)
    named: dict[str, Any] = {"next_state": next_state, "episode": episode, **others}
    given = Schema(state or (), action or (), instrument or (), **named)
    if formula is not None:
        return _opened_by(formula, table, given, where=where, drop_missing=drop_missing)
    given, renamed = with_new_names(given, names)
    names = [name for name in (*names, *renamed) if name not in renamed.values()]
    schema = with_conventions(given, names, [state is None, action is None, instrument is None])
    return _opened(table, schema, renamed, where=where, drop_missing=drop_missing)


def open_log(source: Any, formula: str | None = None) -> Log:
    """Return a log as it is, or what `read_logs` opens; with the columns of a formula if given."""
    if not isinstance(source, Log):
        return read_logs(source, formula=formula)
    return source if formula is None else source.with_formula(formula)


def _opened_by(
    formula: str, table: BatchSource, given: Schema, *, where: str | None, drop_missing: bool
) -> Log:
    """Open a table with the columns of a formula."""
    parsed = parse_formula(formula)
    schema = parsed.schema(given, list(table.schema.names))
    log = _opened(table, schema, {}, where=where, drop_missing=drop_missing)
    parsed.check_outputs(log.roles)
    return log._with(log.table, replace(log.roles, formula=formula))


def _opened(
    table: BatchSource,
    schema: Schema,
    renamed: Mapping[str, str],
    *,
    where: str | None,
    drop_missing: bool,
    like: Roles | None = None,
) -> Log:
    """Make the numeric columns that a schema asks for, those of an earlier log if one is given."""
    made = windowed(with_names(table, renamed), schema)
    table, names = made.table, list(made.table.schema.names)
    dates = made.step if made.shared else None
    roles = replace(made.schema.resolve(names), where=where, groups=made.groups, dates=dates)
    if roles.episode is not None and roles.episode_parts:
        table = with_joined(table, roles.episode, roles.episode_parts)
    coded = match_columns(schema.categorical, names, "categorical")
    coded += tuple(name for name, source in made.lagged.items() if source in coded)
    new_names = tuple(f"{new}:{old}" for new, old in renamed.items())
    asked = (*_in_words(schema, roles, made), ("renamed", new_names))
    table, roles = encoded(table, roles, coded, made.lagged, made.followed, like)
    roles = replace(roles, asked=asked, formula=like.formula if like else "")
    return Log(table, roles, drop_missing=drop_missing, notes=made.notes, removed=made.removed)


def reopened(
    source: Any, roles: Roles, *, where: str | None = None, drop_missing: bool = False
) -> Log:
    """Open another log with the columns of an earlier one, and its filter if no other is given."""
    where = where or roles.where
    table: BatchSource = open_minari(source) if is_minari(source) else open_table(source)
    table = table if where is None else filtered(table, where)
    words: dict[str, Any] = {name: names for name, names in roles.asked}
    renamed = dict(word.split(":", 1) for word in words.pop("renamed", ()))
    for name in ("reward", "step", "weight", "every", "date_format"):
        words[name] = words[name][0] if words.get(name) else None
    words["lags"] = int(words["lags"][0]) if words.get("lags") else 0
    words["lag_padding"] = words["lag_padding"][0] if words.get("lag_padding") else "drop"
    words["weight_kind"] = roles.weight_kind
    words["seen"] = words["seen"][0] if words.get("seen") else "before"
    if not roles.asked:  # roles that were not read from a table
        words = {n: getattr(roles, n) for n in ("state", "action", "instrument", "next_state")}
        words |= {n: getattr(roles, n) for n in ("reward", "step", "weight", "weight_kind")}
        words["episode"] = roles.episode_parts or roles.episode
    schema = Schema(**words)
    return _opened(table, schema, renamed, where=where, drop_missing=drop_missing, like=roles)


def _in_words(
    schema: Schema, roles: Roles, made: Windowed
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the columns as the user has them, from which `reopened` makes the same again."""
    names = list(made.table.schema.names)
    context = [name for name, _ in roles.carried]
    own = [name for name in roles.instrument if name not in made.made]
    words: dict[str, Any] = {
        "state": [n for n in roles.state if n not in context and n not in made.lagged],
        "action": roles.action,
        "instrument": [*own, *(f"{LOO}{group}" for group in made.groups)],
        "next_state": () if made.followed else roles.next_state,
        "episode": roles.episode_parts or ((roles.episode,) if roles.episode else ()),
        "context": context,
        "categorical": match_columns(schema.categorical, names, "categorical"),
        "step": (made.step,) if made.step else (),
        "lags": (str(schema.lags),) if schema.lags else (),
        "lag_padding": (schema.lag_padding,),
        "every": (schema.every,) if schema.every else (),
        "date_format": (schema.date_format,) if schema.date_format else (),
        "seen": (schema.seen,),
        "terminal": roles.terminal,
    }
    for name in ("reward", "weight"):
        words[name] = (getattr(roles, name),) if getattr(roles, name) else ()
    return tuple((name, tuple(names)) for name, names in words.items())
