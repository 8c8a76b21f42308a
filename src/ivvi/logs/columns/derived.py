"""Columns that look at other rows of the log, made by one query of DuckDB.

- Steps from dates, and ``dt``, the time to the next row (`ivvi.logs.columns.times`).
- Next states, where a filter removes rows: they are taken from all rows, and the filter then keeps
  those that pass. To filter first would keep a row only if its outcome passes too.
- States that were seen after the action of their row: the state is that of the row before, and
  the row's own is its next state, ``next_sales``.
- Lags: earlier states and actions of the same episode, ``temperature_lag1``. The first rows of an
  episode have none: they are dropped, or padded with its first state and with no action.
- ``loo:doctor``: for each action, its mean over the *other* episodes of the same doctor.

The query spills to disk; its result is a temporary file, or a table in memory where the log is.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ivvi.categories import NO
from ivvi.errors import ColumnError, DataError, InputError
from ivvi.logs.columns.category_encoding import find_categories, is_text
from ivvi.logs.columns.patterns import match_columns
from ivvi.logs.columns.times import DT, StepTimes, count_rows
from ivvi.logs.instruments.leave_one_out_means import (
    assumption,
    averaged_values,
    is_missing,
    leave_one_out_mean,
    split_instruments,
)
from ivvi.logs.queries import (
    connected,
    explained,
    made_table,
    present,
    quote,
    rows_of,
    text_of,
    with_aliases,
    with_real_names,
)
from ivvi.logs.scan_position import Counts
from ivvi.logs.schema import Schema
from ivvi.logs.sorting import temporary_folder
from ivvi.logs.tables.arrow import plain_type
from ivvi.logs.tables.table import PASSES, ArrowTable, BatchSource

PADDING = ("drop", "first")
"""What to do with rows whose lags lie before their episode."""


@dataclass(frozen=True, slots=True)
class Windowed:
    """A table with columns that look at other rows, and their names.

    `lagged` are columns of the state that are earlier values of others; `followed` the next states
    that were made; `groups` the columns over whose values leave-one-out means were taken, which are
    the `made` instruments; `step` is the step column as the user has it, and `shared` whether dates
    occur more than once; `removed` counts the rows that are left out.
    """

    table: BatchSource
    schema: Schema
    step: str | None = None
    lagged: dict[str, str] = field(default_factory=dict)
    followed: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shared: bool = False
    removed: Counts = field(default_factory=Counts)


def windowed(table: BatchSource, schema: Schema) -> Windowed:
    """Return the table with the columns that a schema asks for and the table does not have."""
    plan = _Plan.of(table, schema)
    if not plan.is_needed:
        return Windowed(table, schema, plan.times.step)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        db, rows = _opened(table, stack, folder)
        with explained(table.label):
            plan.check(db, rows, table.label)
            spacing, shared = plan.times.spacing(db, rows), plan.times.are_shared(db, rows)
        result = _result(table, db, plan.query(rows), stack, folder)
        removed = plan.removed(db, rows, int(result.num_rows or 0))
    named = replace(
        schema,
        state=[*plan.state, *plan.lagged],
        instrument=plan.own_instruments + tuple(plan.means),
        next_state=plan.followed or schema.next_state,
        step=plan.times.column,
        lags=0,
        lag_padding="drop",
        every=None,
        date_format=None,
        seen="before",
    )
    parts = plan.times.step, plan.lagged, plan.followed, plan.groups, tuple(plan.means)
    return Windowed(result, named, *parts, spacing + plan.notes, shared, removed)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be made, with the names of all columns known.

    `leads` says that next states are taken from the next row, `earlier` how many rows before its
    own a row of the result looks at, and `pads` whether the first rows of an episode get lags that
    stand for what was before it. `lagged` are the names of the lags, with the column of which each
    is one step earlier; `followed` those of the next states that are made; `means` those of
    the leave-one-out means, with the expression and the group of each.
    """

    table: BatchSource
    schema: Schema
    times: StepTimes
    state: tuple[str, ...]
    action: tuple[str, ...]
    own_instruments: tuple[str, ...]
    groups: tuple[str, ...]
    leads: bool
    earlier: int
    pads: bool
    lagged: dict[str, str]
    followed: tuple[str, ...]
    means: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, table: BatchSource, schema: Schema) -> _Plan:
        """Match what the schema asks for with the columns of the table."""
        names = [name for name in table.schema.names if name != PASSES]
        own_instruments, groups = split_instruments(schema, names)
        action = match_columns(schema.action, names, "action")
        listed = match_columns(schema.categorical, names, "categorical")
        coded = find_categories(table, action, listed, {}) if groups else ()
        default = ("episode",) if "episode" in names else ()
        times = StepTimes(
            table,
            schema,
            match_columns(schema.episode or default, names, "episode"),
            schema.step or ("step" if "step" in names else None),
        )
        state = match_columns(schema.state, names, "state")
        seen_after = _is_seen_after(schema)
        leads = PASSES in table.schema.names and schema.follows(state, names)
        return cls(
            *(table, schema, times, state, action, own_instruments, groups),
            leads=leads and not seen_after,
            earlier=schema.lags + seen_after,
            pads=_is_padded(schema),
            lagged=_lag_names((*state, *action), schema.lags),
            followed=tuple(f"next_{name}" for name in state) if seen_after or leads else (),
            means=averaged_values(groups, action, coded),
        )

    @property
    def is_needed(self) -> bool:
        """Whether anything is asked for that the table does not have."""
        return bool(self._in_order or self.schema.every or self.groups or self.is_filtered)

    @property
    def is_filtered(self) -> bool:
        """Whether a filter removes rows after the columns are made."""
        return PASSES in self.table.schema.names

    @property
    def _in_order(self) -> bool:
        """Whether the rows of an episode are put in order and their steps numbered."""
        return bool(self.times.are_numbered or self.earlier or self.leads)

    def check(self, db: Any, rows: str, label: str) -> None:
        """Refuse lags that no episode has, and what the times of rows make impossible."""
        if self.schema.lags < 0:
            raise InputError(f"lags is {self.schema.lags}; expected 0 or more")
        if self.is_filtered and not count_rows(db, f"SELECT * FROM {rows} WHERE {PASSES}"):
            raise DataError(f"{label} has no rows")
        if not self._in_order:
            return
        parts = ",".join(self.times.episode)
        self.times.check(db, rows, label, TOLD_APART.format(parts) if self.is_filtered else "")
        self._check_followed()
        if self.earlier:
            longest = db.execute(
                f"SELECT max(c) FROM (SELECT count(*) AS c FROM {rows} GROUP BY {self.times.keys})"
            ).fetchall()[0][0]
            fewest = self.earlier - self.pads * self.schema.lags + 2 - bool(self.followed)
            if not longest or longest < fewest:
                asked = f"{self.schema.lags} lags were" if self.schema.lags else "earlier rows are"
                raise DataError(
                    f"{asked} requested, but the longest episode of {label} has {longest or 0} "
                    f"rows; expected at least {fewest}"
                )

    def _check_followed(self) -> None:
        """Refuse next-state columns besides derived ones, and a table with the same names."""
        if self.followed and self.schema.next_state:
            raise InputError(
                "states were seen after the action (seen='after', --seen after), so a row's own "
                "states are its next states; remove the next-state columns"
            )
        if taken := [name for name in self.followed if name in self.table.schema.names]:
            raise ColumnError(
                f"the next state would be named {taken[0]!r}, but the log already has that column; "
                "name it with next_state (--next-state), or rename the state (new:old)"
            )

    def query(self, rows: str) -> str:
        """Return the query; its rows come by episode and step where there are steps."""
        keys = self.times.keys
        inner, hidden = f"SELECT * FROM {rows}", list(map(quote, self._shifted))
        conditions = [f"({self._has_earlier})"] if self.earlier else []
        if self._in_order:
            inner = self.times.numbered(inner)
            hidden += ["__t", "__gap", "__ahead", "__step"]
        if self.is_filtered:
            conditions += [PASSES] + [f"({self._has_next})"] * self.leads
            hidden += [PASSES]
        star = f"* EXCLUDE ({', '.join(hidden)})" if hidden else "*"
        query = f"SELECT {', '.join([star, *self._made(keys)])} FROM ({inner})"
        if self._in_order:
            query += f" WINDOW v AS (PARTITION BY {keys} ORDER BY __t)"
            query += f" QUALIFY {' AND '.join(conditions)}" if conditions else ""
        if self.means:
            known = " AND ".join(
                f"({quote(name)} IS NOT NULL OR {is_missing(quote(group))})"
                for name, (_, group) in self.means.items()
            )
            query = f"SELECT * FROM ({query}) WHERE {known}"
        if self.times.episode and self.times.column:
            query += f" ORDER BY {keys}, {quote(self.times.column)}"
        return query

    @property
    def _shifted(self) -> tuple[str, ...]:
        """States that are those of the row before."""
        return self.state if self.followed and not self.leads else ()

    def _made(self, keys: str) -> list[str]:
        """Return the columns that are made, as expressions with names."""
        made: list[str] = []
        if self.times.are_numbered:
            made.append(f"__step AS {quote(str(self.times.column))}")
        if self.times.has_dt:
            made.append(f"coalesce(__ahead, median(__ahead) OVER ()) AS {quote(DT)}")
        for name in self.lagged:
            root, _, k = name.rpartition("_lag")
            made.append(f"{self._lag(root, int(k))} AS {quote(name)}")
        for own, name in zip(map(quote, self.state), map(quote, self.followed), strict=False):
            if self.leads:
                made.append(f"lead({own}) OVER v AS {name}")
            else:
                made += [f"lag({own}) OVER v AS {own}", f"{own} AS {name}"]
        for name, (value, group) in self.means.items():
            used = f"CASE WHEN {PASSES} THEN {value} END" if self.is_filtered else value
            made.append(f"{leave_one_out_mean(used, quote(group), keys)} AS {quote(name)}")
        return made

    @property
    def _has_next(self) -> str:
        """The condition that a row has a next state, or ended its episode.

        What is missing in a row that the filter removes does no harm: it is no next state.
        """
        kinds = {name: self.table.schema.field(name).type for name in self.state}
        known = " AND ".join(present(name, kind) for name, kind in kinds.items())
        follows_one = f"lead(__step) OVER v = __step + 1 AND lead({PASSES} OR {known}) OVER v"
        ends = []
        for name in match_columns(self.schema.terminal, self.table.schema.names, "terminal"):
            text = f"lower(trim(CAST({quote(name)} AS VARCHAR)))"
            no = ", ".join(map(text_of, ("", "0.0", "nan", *NO)))
            ends.append(f"{text} NOT IN ({no})")
        return " OR ".join(f"coalesce({one}, FALSE)" for one in (follows_one, *ends))

    @property
    def _has_earlier(self) -> str:
        """The condition that a row has the rows before it, or that lags may be padded."""
        n, follows = self.earlier, f"lag(__step, {self.earlier}) OVER v = __step - {self.earlier}"
        if not self.pads:
            return follows
        place, first = "row_number() OVER v", "first_value(__step) OVER v"
        unbroken = f"__step - {first} = {place} - 1 AND {place} > {n - self.schema.lags}"
        return f"({follows}) OR ({place} <= {n} AND {unbroken})"

    def _lag(self, root: str, k: int) -> str:
        """A column k steps earlier; before an episode's first row its first state, no action."""
        back, column = k + (root in self._shifted), quote(root)
        earlier = f"lag({column}, {back}) OVER v"
        if not self.pads:
            return earlier
        before = f"first_value({column}) OVER v"
        if root in self.action:
            kind = plain_type(self.table.schema.field(root).type)
            listed = match_columns(self.schema.categorical, self.table.schema.names, "categorical")
            first_level = is_text(kind) or root in listed
            before = "FALSE" if pa.types.is_boolean(kind) else "0"
            before = f"min({column}) OVER ()" if first_level else before
        return f"CASE WHEN row_number() OVER v > {back} THEN {earlier} ELSE {before} END"

    def removed(self, db: Any, rows: str, left: int) -> Counts:
        """Count the rows that the query leaves out: without a time, without rows before, alone.

        `left` is the number of rows that it returns.
        """
        counts, keys = Counts(), self.times.keys
        passing = f"SELECT * FROM {rows}" + f" WHERE {PASSES}" * self.is_filtered
        lost = count_rows(db, passing) - left
        if self._in_order:
            counts.untimed = count_rows(
                db, f"SELECT * FROM ({passing}) WHERE {self.times.expression} IS NULL"
            )
        if self.earlier or self.leads:
            flags = f"coalesce({self._has_earlier if self.earlier else 'TRUE'}, FALSE) AS k, "
            flags += f"{self._has_next if self.leads else 'TRUE'} AS f"
            stepped = self.times.numbered(f"SELECT * FROM {rows}")
            window = f"WINDOW v AS (PARTITION BY {keys} ORDER BY __t)"
            query = f"SELECT *, {flags} FROM ({stepped}) {window}"
            query = f"SELECT * FROM ({query})" + f" WHERE {PASSES}" * self.is_filtered
            counts.early = count_rows(db, f"SELECT * FROM ({query}) WHERE NOT k")
            counts.without_next = count_rows(db, f"SELECT * FROM ({query}) WHERE k AND NOT f")
        counts.alone = lost - counts.untimed - counts.early - counts.without_next
        return counts

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what leave-one-out instruments assume."""
        return (assumption(self.groups),) if self.means else ()


def _is_seen_after(schema: Schema) -> bool:
    if schema.seen not in ("before", "after"):
        raise InputError(
            f"seen is {schema.seen!r}; expected 'before' (states were seen before the action of "
            "their row) or 'after'"
        )
    return schema.seen == "after"


def _is_padded(schema: Schema) -> bool:
    looks_back = schema.lags > 0 or schema.seen == "after"
    if looks_back and schema.lag_padding not in PADDING:
        raise InputError(
            f"the padding of lags is {schema.lag_padding!r}; expected 'drop' (drop the first rows "
            "of an episode) or 'first' (assume its first state before it began)"
        )
    return schema.lag_padding == "first" and schema.lags > 0


def _lag_names(columns: Sequence[str], lags: int) -> dict[str, str]:
    lagged: dict[str, str] = {}
    for name in columns:
        before = name
        for k in range(1, lags + 1):
            lagged[f"{name}_lag{k}"] = before
            before = f"{name}_lag{k}"
    return lagged


def _opened(table: BatchSource, stack: contextlib.ExitStack, folder: str) -> tuple[Any, str]:
    """Return a connection and what it calls the rows."""
    db = stack.enter_context(connected(folder))
    if isinstance(table, ArrowTable):
        db.register("log_rows", with_aliases(table))
        return db, "log_rows"
    return db, f"({rows_of(table, table.schema.names, (), Path(folder))})"


def _result(
    table: BatchSource, db: Any, query: str, stack: contextlib.ExitStack, folder: str
) -> BatchSource:
    with explained(table.label):
        if isinstance(table, ArrowTable):
            rows = with_real_names(db.sql(query).to_arrow_table())
            result = ArrowTable(rows, table.label, table.files)
            if not result.num_rows:
                raise DataError(f"{table.label}: no row is left {_WHY}")
            return result
        target = Path(folder) / "windows.parquet"
        db.execute(f"COPY ({query}) TO {text_of(target)} (FORMAT parquet, COMPRESSION snappy)")
    written = made_table(target, table.label)
    if not written.num_rows:
        raise DataError(f"{table.label}: no row is left {_WHY}")
    written.files = list(table.files)
    weakref.finalize(written, stack.pop_all().close)
    return written


TOLD_APART = (
    "; a filter (where=, --where) applies after next states are found, so that a column that tells "
    "such rows apart must be named as a part of the episode (--episode {},COLUMN)"
)
_WHY = (
    "after next states, lags and instruments are computed: every episode is too short, or alone in "
    "its group"
)
