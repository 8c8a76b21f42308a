"""The times of rows: steps that are numbered by date, and calendar time.

Sorted by time, the rows of an episode are consecutive steps; with `every`, only rows that far apart
are; ``dt`` is the time to the next row. All of this is expressions and queries of DuckDB for
`ivvi.logs.columns.derived`. Calendar time is a numeric, date or timestamp column; its quartiles cut
a log into quarters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi.errors import ColumnError, DataError, InputError
from ivvi.logs.columns.category_encoding import is_text
from ivvi.logs.queries import in_real_names, quote, text_of
from ivvi.logs.schema import Schema
from ivvi.logs.sorting import duplicate_error
from ivvi.logs.tables.arrow import as_times, plain_type
from ivvi.logs.tables.table import ArrowTable, BatchSource

DT = "dt"
UNITS = {"s": 1 / 86400, "min": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0} | {
    "mo": 365.25 / 12,
    "y": 365.25,
    "": 1.0,
}
"""Days of each unit of time; of steps that are numbers, the number itself. Months of the calendar
differ by less than `NEAR` from their mean."""
DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%d-%m", "%Y.%m.%d"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%y/%m/%d"),
    *("%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%Y%m%d"),
)
CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
FORMATS = (
    *(*DAYS, "%Y-%m", "%Y%m", "%m/%Y", "%b %Y", "%b-%y"),
    *(f"{day} {clock}" for day in (*DAYS[:3], *DAYS[7:10]) for clock in CLOCKS),
    *(f"%Y-%m-%d {clock}" for clock in CLOCKS[2:]),
)
"""Usual ways to write dates, as suggestions."""
DATE = (
    r"^\s*(\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[ T]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?)"
    r"(?: ?(?:Z|UTC|GMT)|([+-])(\d{2}):?(\d{2})?)?\s*$"
)
"""The whole of a cell that is a date, with the time of day and its distance from UTC if it has
them: year first, as no other order can be told from its reverse."""
UNITS_OF_A_DAY = {"s": 86400.0, "ms": 86400e3, "us": 86400e6, "ns": 86400e9}
NEAR = 0.1
"""Share by which the time between two rows may differ from `every`."""
SHARED_DATES = 1.5
"""With more rows per date than this, dates may be something that episodes share."""
RARELY = 0.005
"""Share of rows with an unusual gap to the next one, above which a note says so."""
MOST_TIMES = 1 << 16
"""Most times in memory when looking for the cuts; longer logs are thinned by 2, 4, 8 and so on."""


@dataclass(frozen=True)
class StepTimes:
    """The times of a table's rows.

    Attributes
    ----------
    table, schema
        The rows, and what is asked of them.
    episode, step
        The columns that name an episode, and the one that orders its rows.
    """

    table: BatchSource
    schema: Schema
    episode: tuple[str, ...]
    step: str | None

    @property
    def keys(self) -> str:
        """The columns of the episode, for a query."""
        return ", ".join(map(quote, self.episode))

    @property
    def are_numbered(self) -> bool:
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
    def column(self) -> str | None:
        """Name of the column of the step's number."""
        return f"{self.step}_number" if self.are_numbered else self.step

    @property
    def expression(self) -> str:
        """The time of a row as an expression: days, or the number of the step."""
        if self.step is None:
            raise InputError("lags and steps need a step column; name one (step=, --step)")
        kind = plain_type(self.table.schema.field(self.step).type)
        name = quote(self.step)
        if is_text(kind) or self.schema.date_format:
            return f"epoch({self._parsed}) / 86400.0"
        if pa.types.is_duration(kind) and not isinstance(self.table, ArrowTable):
            return f"{name} / {UNITS_OF_A_DAY[kind.unit]!r}"  # Parquet has a number there
        if pa.types.is_duration(kind) or pa.types.is_time(kind):
            return f"epoch({name}) / 86400.0"
        if pa.types.is_temporal(kind):  # with a time zone: the moment, whatever this machine's is
            zone = "TZ" if getattr(kind, "tz", None) else ""
            return f"epoch(CAST({name} AS TIMESTAMP{zone})) / 86400.0"
        return f"CAST({name} AS DOUBLE)"

    @property
    def _parsed(self) -> str:
        """The step as a timestamp, where it is text; NULL where it is no date."""
        name = quote(str(self.step))
        if not self.schema.date_format:
            time, sign, hours, minutes = (
                f"regexp_extract({name}, {text_of(DATE)}, {i})" for i in range(1, 5)
            )
            east = f"try_cast({hours} AS INT) * 60 + coalesce(try_cast({minutes} AS INT), 0)"
            ahead = f"coalesce(try_cast({sign} || '1' AS INT) * ({east}), 0)"
            return f"try_cast({time} AS TIMESTAMP) - to_minutes({ahead})"
        formats = ", ".join(text_of(f) for f in self.schema.date_format.split(";"))
        return f"try_strptime(CAST({name} AS VARCHAR), [{formats}])"

    @property
    def every(self) -> float | None:
        """The time between consecutive steps, in days or in steps."""
        asked = self.schema.every
        if asked is None:
            return None
        matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d|w|mo|y|)\s*", str(asked))
        if matched is None or not float(matched[1]):
            raise InputError(
                f"every is {asked!r}; expected a number and s, min, h, d, w, mo or y, as in 7d or "
                "1mo; for steps that are numbers a number alone, such as 10"
            )
        return float(matched[1]) * UNITS[matched[2]]

    def check(self, db: Any, rows: str, label: str, remedy: str = "") -> None:
        """Refuse times that do not parse, or stand twice in an episode; rows without episodes."""
        if not self.episode or self.step is None:
            raise ColumnError(
                "lags, states seen after the action and steps out of dates need an episode and a "
                "step column"
            )
        name = quote(self.step)
        if is_text(self.table.schema.field(self.step).type) or self.schema.date_format:
            self._check_dates(db, rows, label)
        times = {n for n in self.episode if pa.types.is_temporal(self.table.schema.field(n).type)}
        episode_words = [f"{quote(n)}{'::VARCHAR' if n in times else ''}" for n in self.episode]
        twice = db.execute(
            f"SELECT {', '.join(episode_words)}, any_value({name}::VARCHAR) FROM {rows} "
            f"WHERE {name} IS NOT NULL "
            f"GROUP BY {self.keys}, {self.expression} HAVING count(*) > 1 LIMIT 1"
        ).fetchall()
        if twice:
            *episode, step = twice[0]
            raise duplicate_error(episode[0] if len(episode) == 1 else tuple(episode), step, remedy)

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
            sentence = in_real_names(str(error).strip().splitlines()[0])
            raise InputError(
                f"the date format {asked!r} cannot be read ({sentence}); expected one such as "
                "%d.%m.%Y, or several, separated by semicolons"
            ) from error
        if bad:
            guessed = "" if asked else _guessed(db, rows, value)
            row, text = bad[0]
            numbers = "numbers (0, 1, 2), or dates such as 2024-03-01"
            expected = f"dates as {asked}" if asked else numbers
            raise DataError(
                f"step column {self.step!r} of {label} holds {text!r} in data row {row} (from 0), "
                f"which is no date; expected {expected}{guessed}"
            )

    def spacing(self, db: Any, rows: str) -> tuple[str, ...]:
        """Return a note, if times between rows vary and nothing uses them."""
        if not self.are_numbered or self.schema.every or self.has_dt:
            return ()
        gaps = (
            f"SELECT t - lag(t) OVER (PARTITION BY {self.keys} ORDER BY t) AS g "
            f"FROM (SELECT {self.keys}, {self.expression} AS t FROM {rows})"
        )
        low, usual, high, other = db.execute(
            "SELECT quantile_cont(g, 0.05), any_value(m), quantile_cont(g, 0.95), "
            f"avg(CAST(abs(g / m - 1) > {NEAR} AS INTEGER)) "
            f"FROM ({gaps}), (SELECT median(g) AS m FROM ({gaps}))"
        ).fetchall()[0]
        if low is None or other <= RARELY:
            return ()
        steady = high <= low * (1 + NEAR)
        days = _spacing(usual)
        if steady:
            return (
                f"rows of an episode are {_plainly(usual)} days apart in {self.step}, except for "
                f"{other:.2%}, which also count as one step: every={days!r} (--every {days}) "
                "treats these as gaps, and context='dt' (--context dt) adds the time to the next "
                "row to the model",
            )
        return (
            f"rows of an episode are {_plainly(low)} to {_plainly(high)} days apart in "
            f"{self.step}, but each counts as one step: add the time to the next row to the model "
            f"(context='dt', --context dt), or join only rows {days} apart (every={days!r}, "
            f"--every {days})",
        )

    def are_shared(self, db: Any, rows: str) -> bool:
        """Whether steps are numbered and their dates come, on average, more than once each."""
        if not self.are_numbered or self.step is None:
            return False
        name = quote(self.step)
        count, dates = db.execute(
            f"SELECT count({name}), approx_count_distinct({name}) FROM {rows}"
        ).fetchall()[0]
        return bool(count >= SHARED_DATES * max(dates, 1))

    def numbered(self, inner: str) -> str:
        """Number the steps of a query's rows, ``__step``: one on each time, two over a gap."""
        window = f"WINDOW w AS (PARTITION BY {self.keys} ORDER BY __t)"
        timed = (
            f"SELECT *, {self.expression} AS __t FROM ({inner}) WHERE {self.expression} IS NOT NULL"
        )
        spaced = (
            f"SELECT *, __t - lag(__t) OVER w AS __gap, lead(__t) OVER w - __t AS __ahead "
            f"FROM ({timed}) {window}"
        )
        if not self.are_numbered:
            return f"SELECT *, __t AS __step FROM ({spaced})"
        near = "TRUE" if self.every is None else f"abs(__gap / {self.every!r} - 1) <= {NEAR}"
        more = f"CASE WHEN __gap IS NULL THEN 0 WHEN {near} THEN 1 ELSE 2 END"
        return f"SELECT *, CAST(sum({more}) OVER w AS BIGINT) AS __step FROM ({spaced}) {window}"


def count_rows(db: Any, query: str) -> int:
    """Return the number of rows of a query."""
    return int(db.execute(f"SELECT count(*) FROM ({query})").fetchall()[0][0])


@dataclass(frozen=True, slots=True)
class Calendar:
    """Times that cut the rows of a log into quarters, as numbers and in words.

    Attributes
    ----------
    column
        The time column.
    cuts, words
        The quartiles, repeated ones left out; a row is after a cut from it on.
    """

    column: str
    cuts: tuple[float, ...]
    words: tuple[str, ...]

    @classmethod
    def of_table(cls, table: BatchSource, column: str) -> Calendar:
        """Find the quartiles in one pass over the column, in bounded memory."""
        every, rows_seen, sample = 1, 0, np.empty(0)
        for block in table.batches([column], (), MOST_TIMES):
            times = as_times(block.column(column))
            times = times[np.isfinite(times)]
            sample, rows_seen = (
                np.append(sample, times[-rows_seen % every :: every]),
                rows_seen + len(times),
            )
            while len(sample) > MOST_TIMES:
                sample, every = sample[::2], 2 * every
        if not len(sample) or sample.min() == sample.max():
            raise DataError(
                f"time column {column!r} of {table.label} is the same in every row; "
                "expected times that differ"
            )
        cuts = np.unique(np.quantile(sample, (0.25, 0.5, 0.75), method="higher"))
        cuts = (
            cuts[cuts > sample.min()] if (cuts > sample.min()).any() else sample.max(keepdims=True)
        )
        kind = table.schema.field(column).type
        return cls(column, tuple(cuts.tolist()), tuple(_in_words(cut, kind) for cut in cuts))


def check_time(schema: pa.Schema, name: str, label: str) -> None:
    """Refuse a column that holds no times."""
    kind = schema.field(name).type
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (numeric or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise ColumnError(
            f"time column {name!r} of {label} holds {kind}; expected numbers, dates or timestamps"
        )


def as_dates(steps: np.ndarray) -> str | None:
    """Return the format of steps that are months (202401), days (20240131) or years, if so."""
    numbers = steps.astype(int)
    if (numbers != steps).any():
        return None
    for word, year, month in (
        ("%Y%m", numbers // 100, numbers % 100),
        ("%Y", numbers, np.ones_like(numbers)),
    ):
        if ((year >= 1900) & (year <= 2100) & (month >= 1) & (month <= 12)).all():
            return word
    days = (numbers >= 19000101) & (numbers <= 21001231) & (numbers // 100 % 100 <= 12)
    return "%Y%m%d" if days.all() else None


def _guessed(db: Any, rows: str, value: str) -> str:
    """Suggest the formats in which every date of a column can be read."""
    fits = [
        word
        for word in FORMATS
        if not count_rows(
            db,
            f"SELECT year(try_strptime({value}, {text_of(word)})) AS y FROM {rows} "
            f"WHERE {value} IS NOT NULL AND (y IS NULL OR y NOT BETWEEN 1800 AND 2200) LIMIT 1",
        )
    ]
    listed = " or ".join(f"--date-format '{word}'" for word in fits)
    verb = "fits" if len(fits) == 1 else "fit"
    return f", or their format (date_format=): {listed} {verb} all of them" if fits else ""


def _plainly(number: float) -> str:
    """Return three digits of a number, never as 1.49e+03."""
    return np.format_float_positional(float(f"{number:.3g}"), trim="-")


def _spacing(days: float) -> str:
    """Return a time as --every takes it: in days, or in hours or minutes where that is short."""
    for unit in ("d", "h", "min"):
        count = float(f"{days / UNITS[unit]:.3g}")
        if count >= 1:
            return f"{_plainly(count)}{unit}"
    return f"{_plainly(days / UNITS['s'])}s"


def _in_words(time: float, kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return str(np.datetime64(int(time), kind.unit))
    if pa.types.is_date(kind):
        return str(np.datetime64(int(time), "D" if pa.types.is_date32(kind) else "ms"))[:10]
    return f"{time:g}"
