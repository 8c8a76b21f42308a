"""Columns that look at other rows of the log, made by one query of DuckDB.

- Steps out of dates: rows of an episode in the order of their time are consecutive steps, or with
  `every` only those that lie as far apart; ``dt`` is the time to the next row.
- States that were seen after the action of their row: the state is that of the row before, and
  the row's own is its next state, ``next_sales``.
- Lags: earlier states and actions of the same episode, ``temperature_lag1``. The first rows of an
  episode have none: they are dropped, or padded with its first state and with no action.
- ``loo:doctor``: for each action, its mean over the *other* episodes of the same doctor.

The query spills to disk; its result is a temporary file, or a table in memory where the log is.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from ivvi.categories import CodedColumn
from ivvi.errors import ColumnError, DataError, FileError, InputError
from ivvi.logs.arrow import plain_type
from ivvi.logs.encoding import find_categories, is_text
from ivvi.logs.parquet_files import ParquetTable
from ivvi.logs.scan_position import Counts
from ivvi.logs.schema import Schema, match_columns
from ivvi.logs.sorting import (
    ROWS,
    as_parquet,
    connected,
    duplicate_error,
    quote,
    temporary_folder,
    text_of,
)
from ivvi.logs.table import ArrowTable, BatchSource

LOO, DT = "loo:", "dt"
UNITS = {"s": 1 / 86400, "min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "": 1.0}
"""Days of each unit of time; of steps that are numbers, the number itself."""
FORMATS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%d.%m.%y"),
    *("%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%Y%m%d"),
    *("%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M"),
)
"""Dates that people write, to be suggested."""
PADDING = ("drop", "first")
"""What becomes of rows whose lags lie before their episode."""
NEAR = 0.1
"""Share by which the time between two rows may differ from `every`."""
SHARED_DATES = 1.5
"""Rows of a date from which on dates are looked at as what episodes may share."""
RARELY = 0.005
"""Share of rows that lie otherwise apart than most, above which it is told."""


@dataclass(frozen=True, slots=True)
class Windowed:
    """A table with columns that look at other rows, and what was asked for in their names.

    `lagged` are columns of the state that are earlier values of others; `followed` the next states
    that were made; `groups` the columns over
    whose values leave-one-out means were taken, which are the `made` instruments; `step` is the
    step column as the user has it, and `shared` whether its dates come more than once each;
    `removed` counts the rows that are left out.
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
        return Windowed(table, schema, plan.step)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        db, rows = _opened(table, stack, folder)
        plan.check(db, rows, table.label)
        spacing, shared = plan.spacing(db, rows), plan.shares_dates(db, rows)
        made = _result(table, db, plan.query(rows), stack, folder)
        removed = plan.removed(db, rows, int(made.num_rows or 0))
    lagged, state = plan.lagged, [*plan.state, *plan.lagged]
    named = replace(
        schema,
        state=state,
        instrument=plan.instruments,
        next_state=plan.followed or schema.next_state,
        step=plan.new_step,
        lags=0,
        lag_padding="drop",
        every=None,
        date_format=None,
        seen="before",
    )
    parts = plan.step, lagged, plan.followed, plan.groups, tuple(plan.means)
    return Windowed(made, named, *parts, spacing + plan.notes, shared, removed)


@dataclass(frozen=True)
class _Plan:
    """What is to be made, with the names of all columns known."""

    table: BatchSource
    schema: Schema
    state: tuple[str, ...]
    action: tuple[str, ...]
    plain: tuple[str, ...]
    groups: tuple[str, ...]
    episode: tuple[str, ...]
    step: str | None
    coded: tuple[CodedColumn, ...]

    @classmethod
    def of(cls, table: BatchSource, schema: Schema) -> _Plan:
        """Match what the schema asks for with the columns of the table."""
        names = list(table.schema.names)
        asked = schema.instrument
        if isinstance(asked, str):
            asked = [asked] if asked in names else [p.strip() for p in asked.split(",")]
        loo = [p for p in asked if p.startswith(LOO) and p not in names and "loo" not in names]
        plain = match_columns([p for p in asked if p and p not in loo], names, "instrument")
        groups = match_columns([p[len(LOO) :] for p in loo], names, "instrument")
        if groups and (twice := set(groups) & set(match_columns(schema.action, names, "action"))):
            raise ColumnError(f"column {min(twice)!r} is an action, and its own loo instrument")
        action = match_columns(schema.action, names, "action")
        listed = match_columns(schema.categorical, names, "categorical")
        coded = find_categories(table, action, listed, {}) if groups else ()
        default = ("episode",) if "episode" in names else ()
        return cls(
            table,
            schema,
            match_columns(schema.state, names, "state"),
            action,
            plain,
            groups,
            match_columns(schema.episode or default, names, "episode"),
            schema.step or ("step" if "step" in names else None),
            coded,
        )

    @property
    def is_needed(self) -> bool:
        """Whether anything is asked for that the table does not have."""
        return bool(self.earlier or self.schema.every or self.groups or self.orders)

    @property
    def earlier(self) -> int:
        """How many rows before its own a row of the result looks at."""
        if self.schema.seen not in ("before", "after"):
            raise InputError(
                f"states were seen {self.schema.seen!r}; expected 'before' the action of their "
                "row, or 'after' it"
            )
        return self.schema.lags + (self.schema.seen == "after")

    @property
    def pads(self) -> bool:
        """Whether the first rows of an episode get lags that stand for what was before it."""
        padding = self.schema.lag_padding
        if padding not in PADDING:
            raise InputError(
                f"the padding of lags is {padding!r}; expected 'drop' (leave the first rows of an "
                "episode out) or 'first' (its first state was there before)"
            )
        return padding == "first" and self.schema.lags > 0

    @property
    def followed(self) -> tuple[str, ...]:
        """Names of the next states, where those of a row were seen after its action."""
        if self.schema.seen != "after":
            return ()
        return tuple(f"next_{name}" for name in self.state)

    @property
    def orders(self) -> bool:
        """Whether steps are to be numbered: they are dates, or a spacing or dt is asked for."""
        if self.step is None or self.step not in self.table.schema.names:
            return False
        kind = plain_type(self.table.schema.field(self.step).type)
        asked = bool(self.schema.every or self.schema.date_format)
        return is_text(kind) or pa.types.is_temporal(kind) or asked or self.has_dt

    @property
    def has_dt(self) -> bool:
        """Whether the time to the next row is asked for as a column."""
        asked = self.schema.context
        listed = [p.strip() for p in asked.split(",")] if isinstance(asked, str) else list(asked)
        return DT in listed and DT not in self.table.schema.names

    @property
    def new_step(self) -> str | None:
        """Name of the step column of the result."""
        return f"{self.step}_number" if self.orders else self.step

    @property
    def lagged(self) -> dict[str, str]:
        """Names of the lags, with the column of which each is one step earlier."""
        columns: dict[str, str] = {}
        for name in (*self.state, *self.action):
            before = name
            for k in range(1, self.schema.lags + 1):
                columns[f"{name}_lag{k}"] = before
                before = f"{name}_lag{k}"
        return columns

    @property
    def means(self) -> dict[str, tuple[str, str]]:
        """Names of the leave-one-out means, with the expression and the group of each."""
        coded = {category.column: category for category in self.coded}
        columns: dict[str, tuple[str, str]] = {}
        for group in self.groups:
            for name in self.action:
                if name in coded and not coded[name].boolean:
                    for level in coded[name].levels[1:]:
                        value = f"CAST(CAST({quote(name)} AS VARCHAR) = {text_of(level)} AS DOUBLE)"
                        columns[f"{name}[{level}]_by_{group}"] = value, group
                else:
                    columns[f"{name}_by_{group}"] = f"CAST({quote(name)} AS DOUBLE)", group
        return columns

    @property
    def instruments(self) -> tuple[str, ...]:
        """Columns of the instrument in the result."""
        return self.plain + tuple(self.means)

    @property
    def time(self) -> str:
        """The time of a row as an expression: days, or the number of the step."""
        if self.step is None:
            raise InputError("lags and steps need a step column; name one (--step)")
        kind = plain_type(self.table.schema.field(self.step).type)
        name = quote(self.step)
        if is_text(kind) or self.schema.date_format:
            return f"epoch({self._parsed}) / 86400.0"
        if pa.types.is_temporal(kind):
            return f"epoch(CAST({name} AS TIMESTAMP)) / 86400.0"
        return f"CAST({name} AS DOUBLE)"

    @property
    def _parsed(self) -> str:
        """The step as a timestamp, where it is text; NULL where it is no date."""
        name = quote(str(self.step))
        if not self.schema.date_format:
            return f"try_cast({name} AS TIMESTAMP)"
        formats = ", ".join(text_of(f) for f in self.schema.date_format.split(";"))
        return f"try_strptime(CAST({name} AS VARCHAR), [{formats}])"

    @property
    def every(self) -> float | None:
        """The time between consecutive steps, in days or in steps."""
        asked = self.schema.every
        if asked is None:
            return None
        matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d|w|)\s*", str(asked))
        if matched is None or not float(matched[1]):
            raise InputError(
                f"every is {asked!r}; expected a time between steps such as 7d, 12h or 10"
            )
        return float(matched[1]) * UNITS[matched[2]]

    def check(self, db: Any, rows: str, label: str) -> None:
        """Refuse times that do not parse, or stand twice in an episode; lags without episodes."""
        if self.schema.lags < 0:
            raise InputError(f"{self.schema.lags} lags were asked for; expected 0 or more")
        if not (self.orders or self.earlier):
            return
        if not self.episode or self.step is None:
            raise ColumnError(
                "lags, states seen after the action and steps out of dates need an episode and a "
                "step column"
            )
        self._check_followed()
        name = quote(self.step)
        if is_text(self.table.schema.field(self.step).type) or self.schema.date_format:
            self._check_dates(db, rows, label)
        keys = ", ".join(map(quote, self.episode))
        twice = db.execute(
            f"SELECT {keys}, any_value({name}) FROM {rows} WHERE {name} IS NOT NULL "
            f"GROUP BY {keys}, {self.time} HAVING count(*) > 1 LIMIT 1"
        ).fetchall()
        if twice:
            *episode, step = twice[0]
            raise duplicate_error(episode[0] if len(episode) == 1 else tuple(episode), str(step))
        if self.earlier:
            longest = db.execute(
                f"SELECT max(c) FROM (SELECT count(*) AS c FROM {rows} GROUP BY {keys})"
            ).fetchall()[0][0]
            fewest = self.earlier - self.pads * self.schema.lags + 2 - bool(self.followed)
            if not longest or longest < fewest:
                what = f"{self.schema.lags} lags were" if self.schema.lags else "earlier rows are"
                raise DataError(
                    f"{what} asked for, and the longest episode of {label} has {longest or 0} "
                    f"rows; expected at least {fewest}"
                )

    def _check_dates(self, db: Any, rows: str, label: str) -> None:
        """Refuse a date that does not parse, with its row and its value."""
        import duckdb  # heavy, and only few logs need it

        numbered = f"SELECT *, row_number() OVER () - 1 AS __n FROM {rows}"
        value = f"CAST({quote(str(self.step))} AS VARCHAR)"
        asked = self.schema.date_format
        try:
            bad = db.execute(
                f"SELECT __n, {value} AS v FROM ({numbered}) WHERE v IS NOT NULL AND "
                f"{self._parsed} IS NULL ORDER BY try_cast(v AS DOUBLE) IS NOT NULL, __n LIMIT 1"
            ).fetchall()
        except duckdb.Error as error:
            sentence = str(error).strip().splitlines()[0]
            raise InputError(
                f"the date format {asked!r} cannot be read ({sentence}); expected one such as "
                "%d.%m.%Y, or several with semicolons"
            ) from error
        if bad:
            row, held = bad[0]
            known = f"dates as {asked}" if asked else "dates such as 2024-03-01"
            raise DataError(
                f"step column {self.step!r} of {label} holds {held!r} in data row {row} (from 0), "
                f"which is no date; expected {known}{'' if asked else _guessed(db, rows, value)}"
            )

    def _check_followed(self) -> None:
        """Refuse next states beside those that are made, and a table that has their names."""
        if self.followed and self.schema.next_state:
            raise InputError(
                "states were seen after the action (--seen after), so a row's own are its "
                "next states; next-state columns are given too"
            )
        if taken := [name for name in self.followed if name in self.table.schema.names]:
            raise ColumnError(
                f"the next state is to be called {taken[0]!r}, as a column is; name it with "
                "--next-state, or rename the state (--state new:old)"
            )

    def spacing(self, db: Any, rows: str) -> tuple[str, ...]:
        """Say that times between rows vary, where nothing uses it."""
        if not self.orders or self.schema.every or self.has_dt:
            return ()
        keys = ", ".join(map(quote, self.episode))
        gaps = (
            f"SELECT t - lag(t) OVER (PARTITION BY {keys} ORDER BY t) AS g "
            f"FROM (SELECT {keys}, {self.time} AS t FROM {rows})"
        )
        low, usual, high, other = db.execute(
            "SELECT quantile_cont(g, 0.05), any_value(m), quantile_cont(g, 0.95), "
            f"avg(CAST(abs(g / m - 1) > {NEAR} AS INTEGER)) "
            f"FROM ({gaps}), (SELECT median(g) AS m FROM ({gaps}))"
        ).fetchall()[0]
        if low is None or other <= RARELY:
            return ()
        if high <= low * (1 + NEAR):
            return (
                f"rows of an episode lie {usual:.3g} apart in {self.step} (in days), but for "
                f"{other:.2%}, which count as one step too: --every {usual:.3g}d makes gaps of "
                "them, and --context dt takes the time to the next row along",
            )
        return (
            f"rows of an episode lie {low:.3g} to {high:.3g} apart in {self.step} (in days), "
            "and count as one step each: take the time to the next row along (--context dt), or "
            f"only rows that lie as far apart (--every {max(usual, 1):.3g}d)",
        )

    def shares_dates(self, db: Any, rows: str) -> bool:
        """Whether steps are numbered and their dates come, on average, more than once each."""
        if not self.orders or self.step is None:
            return False
        name = quote(self.step)
        count, dates = db.execute(
            f"SELECT count({name}), approx_count_distinct({name}) FROM {rows}"
        ).fetchall()[0]
        return bool(count >= SHARED_DATES * max(dates, 1))

    def query(self, rows: str) -> str:
        """Return the query; its rows come by episode and step where there are steps."""
        keys = ", ".join(map(quote, self.episode))
        inner, hidden = f"SELECT * FROM {rows}", list(map(quote, self._shifted))
        if self.orders or self.earlier:
            inner = self._stepped(inner, keys)
            hidden += ["__t", "__gap", "__ahead", "__step"]
        star = f"* EXCLUDE ({', '.join(hidden)})" if hidden else "*"
        query = f"SELECT {', '.join([star, *self._made(keys)])} FROM ({inner})"
        if self.orders or self.earlier:
            query += f" WINDOW v AS (PARTITION BY {keys} ORDER BY __t)"
            query += f" QUALIFY {self._has_earlier}" if self.earlier else ""
        if self.means:
            present = " AND ".join(f"{quote(name)} IS NOT NULL" for name in self.means)
            query = f"SELECT * FROM ({query}) WHERE {present}"
        if self.episode and self.new_step:
            query += f" ORDER BY {keys}, {quote(self.new_step)}"
        return query

    @property
    def _shifted(self) -> tuple[str, ...]:
        """States that are those of the row before."""
        return self.state if self.followed else ()

    def _made(self, keys: str) -> list[str]:
        """Return the columns that are made, as expressions with names."""
        made: list[str] = []
        if self.orders:
            made.append(f"__step AS {quote(str(self.new_step))}")
        if self.has_dt:
            made.append(f"coalesce(__ahead, median(__ahead) OVER ()) AS {DT}")
        for name in self.lagged:
            root, _, k = name.rpartition("_lag")
            made.append(f"{self._lag(root, int(k))} AS {quote(name)}")
        for own, name in zip(self._shifted, self.followed, strict=True):
            made += [f"lag({quote(own)}) OVER v AS {quote(own)}", f"{quote(own)} AS {quote(name)}"]
        for name, (value, group) in self.means.items():
            made.append(f"{self._leave_out(value, quote(group), keys)} AS {quote(name)}")
        return made

    @property
    def _has_earlier(self) -> str:
        """The condition that a row has the rows before it, or that lags may be padded."""
        n, known = self.earlier, f"lag(__step, {self.earlier}) OVER v = __step - {self.earlier}"
        if not self.pads:
            return known
        place, first = "row_number() OVER v", "first_value(__step) OVER v"
        unbroken = f"__step - {first} = {place} - 1 AND {place} > {n - self.schema.lags}"
        return f"({known}) OR ({place} <= {n} AND {unbroken})"

    def _lag(self, root: str, k: int) -> str:
        """A column k steps earlier; before an episode's first row its first state, no action."""
        back, column = k + (root in self._shifted), quote(root)
        known = f"lag({column}, {back}) OVER v"
        if not self.pads:
            return known
        before = f"first_value({column}) OVER v"
        if root in self.action:
            kind = plain_type(self.table.schema.field(root).type)
            listed = match_columns(self.schema.categorical, self.table.schema.names, "categorical")
            first_level = is_text(kind) or root in listed
            before = "FALSE" if pa.types.is_boolean(kind) else "0"
            before = f"min({column}) OVER ()" if first_level else before
        return f"CASE WHEN row_number() OVER v > {back} THEN {known} ELSE {before} END"

    def _stepped(self, inner: str, keys: str) -> str:
        """Number the steps: one on from row to row, two where there is a gap."""
        window = f"WINDOW w AS (PARTITION BY {keys} ORDER BY __t)"
        timed = f"SELECT *, {self.time} AS __t FROM ({inner}) WHERE {self.time} IS NOT NULL"
        spaced = (
            f"SELECT *, __t - lag(__t) OVER w AS __gap, lead(__t) OVER w - __t AS __ahead "
            f"FROM ({timed}) {window}"
        )
        if not self.orders:
            return f"SELECT *, __t AS __step FROM ({spaced})"
        near = "TRUE" if self.every is None else f"abs(__gap / {self.every!r} - 1) <= {NEAR}"
        more = f"CASE WHEN __gap IS NULL THEN 0 WHEN {near} THEN 1 ELSE 2 END"
        return f"SELECT *, CAST(sum({more}) OVER w AS BIGINT) AS __step FROM ({spaced}) {window}"

    def _leave_out(self, value: str, group: str, keys: str) -> str:
        """The mean of a value over the rows of a group that are of other episodes."""
        total, count = (f"{f}({value}) OVER (PARTITION BY {group})" for f in ("sum", "count"))
        own, rows = value, "1"
        if keys:
            own, rows = (
                f"{f}({value}) OVER (PARTITION BY {group}, {keys})" for f in ("sum", "count")
            )
        return f"({total} - {own}) / nullif({count} - {rows}, 0)"

    def removed(self, db: Any, rows: str, left: int) -> Counts:
        """Count the rows that the query leaves out: without a time, without rows before, alone.

        `left` is the number of rows that it returns.
        """
        counts, keys = Counts(), ", ".join(map(quote, self.episode))
        lost = _counted(db, f"SELECT * FROM {rows}") - left
        if self.orders or self.earlier:
            counts.untimed = _counted(db, f"SELECT * FROM {rows} WHERE {self.time} IS NULL")
        if self.earlier and self.means:
            stepped = self._stepped(f"SELECT * FROM {rows}", keys)
            window = f"WINDOW v AS (PARTITION BY {keys} ORDER BY __t)"
            known = f"SELECT coalesce({self._has_earlier}, FALSE) AS k FROM ({stepped}) {window}"
            counts.early = _counted(db, f"SELECT * FROM ({known}) WHERE NOT k")
        elif self.earlier:
            counts.early = lost - counts.untimed
        counts.alone = lost - counts.untimed - counts.early
        return counts

    @property
    def notes(self) -> tuple[str, ...]:
        """Say what a leave-one-out instrument rests on."""
        if not self.means:
            return ()
        groups = " and ".join(self.groups)
        return (
            f"instruments by {groups} are means over others' episodes: they are as good as the "
            f"assignment to a {groups} is random, and need many episodes of each",
        )


def _guessed(db: Any, rows: str, value: str) -> str:
    """Suggest the formats in which every date of a column can be read."""
    fits = [
        word
        for word in FORMATS
        if not _counted(
            db,
            f"SELECT * FROM {rows} WHERE {value} IS NOT NULL AND "
            f"try_strptime({value}, {text_of(word)}) IS NULL LIMIT 1",
        )
    ]
    listed = " or ".join(f"--date-format '{word}'" for word in fits)
    return f", or their format: {listed} fits all of them" if fits else ""


def _counted(db: Any, query: str) -> int:
    return int(db.execute(f"SELECT count(*) FROM ({query})").fetchall()[0][0])


def _opened(table: BatchSource, stack: contextlib.ExitStack, folder: str) -> tuple[Any, str]:
    """Return a connection and what it calls the rows."""
    db = stack.enter_context(connected(folder))
    if isinstance(table, ArrowTable):
        db.register("log_rows", table.table)
        return db, "log_rows"
    files = as_parquet(table, list(table.schema.names), (), Path(folder))
    listed = ", ".join(text_of(file) for file in files)
    return db, ROWS.replace("?", f"[{listed}]")


def _result(
    table: BatchSource, db: Any, query: str, stack: contextlib.ExitStack, folder: str
) -> BatchSource:
    import duckdb  # heavy, and only few logs need it

    try:
        if isinstance(table, ArrowTable):
            result = ArrowTable(db.sql(query).to_arrow_table(), table.label, table.files)
            if not result.num_rows:
                raise DataError(f"{table.label}: no row is left {_WHY}")
            return result
        target = Path(folder) / "windows.parquet"
        db.execute(f"COPY ({query}) TO {text_of(target)} (FORMAT parquet, COMPRESSION snappy)")
    except duckdb.Error as error:
        raise FileError(f"{table.label} cannot be prepared: {error}") from error
    made = ParquetTable([target], table.label)
    if not made.num_rows:
        raise DataError(f"{table.label}: no row is left {_WHY}")
    made.files = list(table.files)
    weakref.finalize(made, stack.pop_all().close)
    return made


_WHY = "once lags and instruments are made: every episode is too short, or alone in its group"
