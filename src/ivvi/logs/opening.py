"""Open a log: find the table and the columns of each role, and compute those that it lacks.

`read_logs` opens a new log, `open_log` whatever a verb is given, and `reopened` another log with
the columns of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi.errors import ColumnError, InputError
from ivvi.logs.columns.category_encoding import without_indicators
from ivvi.logs.columns.conventions import SETTINGS, with_conventions, with_new_names, without_made
from ivvi.logs.columns.derived import Windowed, windowed
from ivvi.logs.columns.formula import parse_formula
from ivvi.logs.columns.missing_codes import missing_values, with_missing
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.columns.terminal import with_empty_ends
from ivvi.logs.columns.times import DT
from ivvi.logs.id_checks import id_notes, ids_in_files
from ivvi.logs.instruments.assignment_level import own_rows_left_in, set_by
from ivvi.logs.instruments.leave_one_out_means import LOO
from ivvi.logs.instruments.leave_out import left_out, original
from ivvi.logs.log import Log
from ivvi.logs.prepare import changing, encoded
from ivvi.logs.row_order import reversed_steps
from ivvi.logs.schema import Roles, Schema
from ivvi.logs.tables.blanks import without_blanks
from ivvi.logs.tables.csv_files import CsvTable, with_late_types
from ivvi.logs.tables.minari import is_minari, open_minari
from ivvi.logs.tables.numeric_text import many_codes, with_numbers
from ivvi.logs.tables.readers import open_table
from ivvi.logs.tables.row_filter import RowFilter
from ivvi.logs.tables.table import PASSES, BatchSource, filtered, flagged, with_joined, with_names

NUMERIC_ROLES = (
    *("state", "action", "instrument", "next_state", "context", "reward", "weight", "step"),
)
"""Fields of a schema whose columns are numbers, or categories."""
CONSTANT = "1"
"""What features call the constant."""
Types = Mapping[str, pa.DataType]


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
    """Open a log; only the rows needed to identify its columns are read now.

    Parameters
    ----------
    source
        A Parquet, CSV or Arrow file, a folder or glob of Parquet files (which may be a URL
        such as ``s3://bucket/logs``), an Arrow, pandas or polars table, a dict of arrays, or
        a Minari data set (``minari:NAME`` or the data set itself).
    state, action, instrument, next_state
        Columns by name, glob (``x*``) or range (``x0:x4``); ``price:Price paid`` gives a column a
        new name. If state, action or instrument is left out, it is the columns x0.., a0.. or z0..
        that have no other role. If state is left out, the next state is next_x0.. if those columns
        exist. ``state=()`` means that there is no state. An instrument ``loo:doctor`` is the mean
        of each action over the other episodes of the same doctor. Text, dictionary and boolean
        columns are categories (`ivvi.logs.columns.category_encoding`). States that never change
        within an episode are taken as context.
    episode
        The column that tells episodes apart, or several: each combination of their values is
        an episode. By default ``episode``, if there is such a column.
    formula
        Replaces state, action, instrument and next state: a formula such as
        ``next_x ~ x + C(ward) + x:age | id | dose ~ doctor`` (`ivvi.logs.columns.formula`). Verbs
        then take features and absorbed effects from it.
    where
        Use only the rows that pass, such as ``age >= 18 and ward != 'ICU'``. Their next states
        and lags are taken from all rows, whether these pass or not.
    drop_missing
        Drop rows with missing or infinite values, and count them, instead of refusing.
    **others
        `reward`, `step` and `weight`: one column each; `weight_kind`: ``probability`` or
        ``frequency``. `terminal`: one or several. `context` and `categorical`: columns. `lags`: a
        number, `lag_padding`: ``drop`` or ``first``, `every`: a time such as ``7d``, `date_format`:
        such as ``%d.%m.%Y``, `seen`: ``before`` or ``after``, `missing`: values that stand for
        missing ones, such as -9. See `Schema` for what they mean.
    """
    if isinstance(source, Log):
        raise InputError(
            "this is a log already: use it as it is, or open its source again with other columns"
        )
    settings: dict[str, Any] = {
        "state": state,
        "action": action,
        "instrument": instrument,
        **others,
    }
    settings |= {"next_state": next_state, "episode": episode}
    settings = {n: v if n in SETTINGS else _as_text(v) for n, v in settings.items()}
    ids = _words(settings["episode"]), _words(settings["instrument"])

    def opened(types: Types) -> Log:
        table = _source_table(source, *ids, types)
        names = list(table.schema.names)
        asked = Schema(
            **settings | {n: settings[n] or () for n in ("state", "action", "instrument")}
        )
        if formula is not None:
            return _opened_by(formula, table, asked, where=where, drop_missing=drop_missing)
        asked, renamed = with_new_names(asked, names)
        names = [name for name in (*names, *renamed) if name not in renamed.values()]
        schema = with_conventions(asked, names, [state is None, action is None, instrument is None])
        return _opened(table, schema, renamed, where=where, drop_missing=drop_missing)

    return with_late_types(opened)


def open_log(source: Any, formula: str | None = None) -> Log:
    """Return a log as it is, or what `read_logs` opens; with the columns of a formula if given."""
    if not isinstance(source, Log):
        return read_logs(source, formula=formula)
    return source if formula is None else _with_formula(source, formula)


def _with_formula(log: Log, formula: str) -> Log:
    """Return a log with the columns that a formula names, its episodes and weights kept."""
    roles = log.roles
    table = without_indicators(original(log.table), roles.categories)
    single: dict[str, Any] = {n: getattr(roles, n) for n in ("step", "weight", "terminal")}
    single["weight_kind"] = roles.weight_kind
    if roles.reward not in parse_formula(formula).outputs:
        single["reward"] = roles.reward
    schema = Schema(episode=roles.episode, **single)
    opened = _opened_by(formula, table, schema, where=None, drop_missing=log.drop_missing)
    as_written = (
        "episode",
        "step",
        "every",
        "terminal",
        "missing",
    )  # as the user has them, not as they are now
    asked = dict(opened.roles.asked) | {n: v for n, v in roles.asked if n in as_written}
    unchanged: dict[str, Any] = {"where": roles.where, "episode_parts": roles.episode_parts}
    unchanged["ends"] = roles.ends
    return opened.replaced(
        opened.table, replace(opened.roles, asked=tuple(asked.items()), **unchanged)
    )


def _source_table(
    source: Any, episode: Sequence[str], instrument: Sequence[str], types: Types
) -> BatchSource:
    """Return the rows of a source.

    The columns of episodes and those of ``loo:`` hold ids, which are kept as they are written.
    `types` are those that later rows of a CSV file have shown.
    """
    is_open = hasattr(type(source), "batches")  # a `BatchSource`
    table: BatchSource = source if is_open else _newly_opened(source)
    if isinstance(table, CsvTable):
        groups = [word.removeprefix(LOO) for word in instrument if word.startswith(LOO)]
        words = [*(episode or ["episode"]), *groups]
        id_names = [word if word in table.schema.names else word.split(":")[-1] for word in words]
        table = table.with_ids([name for name in id_names if table.schema.names.count(name) == 1])
        table = table.with_types(types)
    return without_blanks(table)


def _newly_opened(source: Any) -> BatchSource:
    return open_minari(source) if is_minari(source) else open_table(source)


def _where(table: BatchSource, schema: Schema, where: str) -> BatchSource:
    """Return the rows that pass a filter, or all with `PASSES` where others are looked at too.

    They are if next states, lags or times to the next row are made, unless the rows of an episode
    pass or fail together.
    """
    names = list(table.schema.names)
    id_columns = match_columns(schema.episode or (), names, "episode")
    id_columns = id_columns or (("episode",) if "episode" in names else ())
    own = match_columns(without_made(schema.state, names), names, "state")
    looks = schema.follows(own, names) or schema.lags or schema.seen == "after"
    looks = looks or (DT in _words(schema.context) and DT not in names)
    ordered = id_columns and (schema.step or "step") in names
    if not (looks and ordered) or schema.weight_kind == "frequency":
        return filtered(table, where)
    columns = RowFilter.of(where, table.schema, table.label).columns
    known = changing(table, id_columns, [name for name in columns if name not in id_columns])
    if all(known.get(name, True) is False for name in columns if name not in id_columns):
        return filtered(table, where)
    return flagged(table, where)


def _filter_notes(table: BatchSource, schema: Schema, roles: Roles) -> tuple[str, ...]:
    """Return a warning, if the filter chooses rows by what the instrument moves."""
    if roles.where is None:
        return ()
    columns = RowFilter.of(roles.where, table.schema, table.label).columns
    seen_before = () if schema.seen == "after" else roles.state
    moved = {*roles.action, *roles.next_state, *roles.terminal, roles.reward, *roles.state}
    filtering = [name for name in columns if name in moved.difference(seen_before)]
    if not filtering:
        return ()
    return (
        f"the filter (where=, --where) chooses rows by {' and '.join(filtering)}, which the "
        "instrument moves: the rows that pass are selected, and effects in them are biased; filter "
        "on what was known before the action (codes of missing values: missing=, --missing)",
    )


def _check_no_constant(roles: Roles) -> None:
    """Refuse a column with the name of the constant, which would be taken for it."""
    for role in ("state", "action", "instrument"):
        if CONSTANT in getattr(roles, role):
            raise ColumnError(
                f"{role} column {CONSTANT!r} has the name of the constant of the features; give it "
                f"another one, such as x{CONSTANT}:{CONSTANT} ({role}=, --{role})"
            )


def _as_text(columns: Any) -> Any:
    """Return names of columns as text: those of a data frame may be numbers."""
    if isinstance(columns, int | np.integer):
        return str(columns)
    if isinstance(columns, str | None):
        return columns
    return tuple(str(name) for name in columns)


def _words(columns: Columns | None) -> list[str]:
    """Return the words in which columns are named."""
    listed = columns.split(",") if isinstance(columns, str) else list(columns or ())
    return [word.strip() for word in listed]


def _needs_numbers(schema: Schema, names: Sequence[str]) -> list[str]:
    """Name the columns whose role needs numbers, unless they are called categories."""
    asked: list[str] = []
    for role in NUMERIC_ROLES:
        own = getattr(schema, role) or ()
        asked += match_columns(without_made(own, names), names, role.replace("_", "-"))
    if schema.step is None and "step" in names:
        asked.append("step")
    if schema.date_format:
        asked = [name for name in asked if name != (schema.step or "step")]
    return [n for n in asked if n not in match_columns(schema.categorical, names, "categorical")]


def _opened_by(
    formula: str, table: BatchSource, asked: Schema, *, where: str | None, drop_missing: bool
) -> Log:
    """Open a table with the columns of a formula."""
    parsed = parse_formula(formula)
    schema = parsed.schema(asked, list(table.schema.names))
    log = _opened(table, schema, {}, where=where, drop_missing=drop_missing)
    parsed.check_outputs(log.roles)
    return log.replaced(log.table, replace(log.roles, formula=formula))


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
    keys = *match_columns(schema.episode or (), [*table.schema.names, *renamed], "episode"), "step"
    at = [renamed.get(name, name) for name in (*(keys[:-1] or ["episode"]), schema.step or "step")]
    shared = ids_in_files(table.files, at[:-1], at[-1], whole=not (where or drop_missing))
    codes, renamed_table = missing_values(schema.missing), with_names(table, renamed)
    unfiltered = None if where is None else renamed_table
    renamed_table = renamed_table if where is None else _where(renamed_table, schema, where)
    table = with_missing(renamed_table, codes, (*keys, "episode", schema.step or "", PASSES))
    coded_before = {category.column for category in like.categories} if like else ()
    wanted = [n for n in _needs_numbers(schema, table.schema.names) if n not in coded_before]
    always = wanted if like else [schema.step or "step"]
    table = with_numbers(table, renamed_table, wanted, codes, always)
    derived = windowed(table, schema)
    table, names = derived.table, list(derived.table.schema.names)
    dates = derived.step if derived.shared else None
    roles = replace(derived.schema.resolve(names), where=where, groups=derived.groups, dates=dates)
    _check_no_constant(roles)
    id_columns = roles.episode_parts or ((roles.episode,) if roles.episode else ())
    if roles.episode is not None and roles.episode_parts:
        table = with_joined(table, roles.episode, roles.episode_parts)
    notes = _filter_notes(renamed_table, schema, roles)
    if like is None:
        notes += id_notes(table, list(dict.fromkeys((*id_columns, *derived.groups))))
        notes += shared + reversed_steps(renamed_table, id_columns, derived.step or roles.step)
    table, ends = with_empty_ends(table, roles.terminal, again=like is not None)
    coded = match_columns(schema.categorical, names, "categorical")
    coded += tuple(name for name, source in derived.lagged.items() if source in coded)
    new_names = tuple(f"{new}:{old}" for new, old in renamed.items())
    asked = (*_in_words(schema, roles, derived), ("renamed", new_names))
    table, roles = encoded(table, roles, coded, derived.lagged, derived.followed, like)
    codes_noted = many_codes(table, roles.categories, coded) if like is None else ()
    groups = set_by(table, roles) if like is None else like.set_by
    notes += own_rows_left_in(table, roles) if like is None else ()
    table = left_out(table, roles)
    roles = replace(roles, asked=asked, formula=like.formula if like else "", set_by=groups)
    notes += derived.notes + ends + codes_noted
    return Log(
        table,
        roles,
        drop_missing=drop_missing,
        notes=notes,
        removed=derived.removed,
        unfiltered=unfiltered,
    )


def reopened(
    source: Any, roles: Roles, *, where: str | None = None, drop_missing: bool = False
) -> Log:
    """Open another log with the columns of an earlier one, and its filter if no other is given.

    Its `source` may be a table that is open already.
    """
    where = where or roles.where
    words: dict[str, Any] = {name: names for name, names in roles.asked}
    episode = words.get("episode") or roles.episode_parts or roles.episode
    ids = _words(episode), _words(words.get("instrument"))
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

    def opened(types: Types) -> Log:
        table = _source_table(source, *ids, types)
        return _opened(table, schema, renamed, where=where, drop_missing=drop_missing, like=roles)

    return with_late_types(opened)


def _in_words(
    schema: Schema, roles: Roles, derived: Windowed
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the columns as the user has them, from which `reopened` makes the same again."""
    names = list(derived.table.schema.names)
    context = [name for name, _ in roles.carried]
    own = [name for name in roles.instrument if name not in derived.made]
    words: dict[str, Any] = {
        "state": [n for n in roles.state if n not in context and n not in derived.lagged],
        "action": roles.action,
        "instrument": [*own, *(f"{LOO}{group}" for group in derived.groups)],
        "next_state": () if derived.followed else roles.next_state,
        "episode": roles.episode_parts or ((roles.episode,) if roles.episode else ()),
        "context": context,
        "categorical": match_columns(schema.categorical, names, "categorical"),
        "step": (derived.step,) if derived.step else (),
        "lags": (str(schema.lags),) if schema.lags else (),
        "lag_padding": (schema.lag_padding,),
        "every": (schema.every,) if schema.every else (),
        "date_format": (schema.date_format,) if schema.date_format else (),
        "seen": (schema.seen,),
        "missing": missing_values(schema.missing),
        "terminal": roles.terminal,
    }
    for name in ("reward", "weight"):
        words[name] = (getattr(roles, name),) if getattr(roles, name) else ()
    return tuple((name, tuple(names)) for name, names in words.items())
