"""Leave-one-out instruments, ``loo:doctor``: which are asked for, and their means in SQL.

For each action, its mean over the *other* episodes of the same doctor: how readily this doctor
treats. `ivvi.logs.columns.derived` makes them; `ivvi.logs.instruments.leave_out` keeps the own
action out of them when controls are taken out.
"""

from __future__ import annotations

from collections.abc import Sequence

from ivvi.categories import CodedColumn
from ivvi.errors import ColumnError
from ivvi.logs.columns.patterns import match_columns
from ivvi.logs.queries import quote, text_of
from ivvi.logs.schema import Schema

LOO = "loo:"


def split_instruments(schema: Schema, names: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the instruments that are columns, and the groups of those that are made."""
    asked = schema.instrument
    if isinstance(asked, str):
        asked = [asked] if asked in names else [p.strip() for p in asked.split(",")]
    loo = [p for p in asked if p.startswith(LOO) and p not in names and "loo" not in names]
    own = match_columns([p for p in asked if p and p not in loo], names, "instrument")
    groups = match_columns([p[len(LOO) :] for p in loo], names, "instrument")
    if groups and (twice := set(groups) & set(match_columns(schema.action, names, "action"))):
        raise ColumnError(f"column {min(twice)!r} is both an action and its own loo instrument")
    return own, groups


def averaged_values(
    groups: Sequence[str], action: Sequence[str], coded: Sequence[CodedColumn]
) -> dict[str, tuple[str, str]]:
    """Return what is averaged over which group, by the name of the mean: actions, or their levels.

    A value is an SQL expression.
    """
    categories = {category.column: category for category in coded}
    means: dict[str, tuple[str, str]] = {}
    for group in groups:
        for name in action:
            if name in categories and not categories[name].boolean:
                for level in categories[name].levels[1:]:
                    value = f"CAST(CAST({quote(name)} AS VARCHAR) = {text_of(level)} AS DOUBLE)"
                    means[f"{name}[{level}]_by_{group}"] = value, group
            else:
                means[f"{name}_by_{group}"] = f"CAST({quote(name)} AS DOUBLE)", group
    return means


def leave_one_out_mean(value: str, group: str, keys: str) -> str:
    """Return the SQL mean of a value over the rows of a group that are of other episodes.

    NULL where the group is not known: such a row is missing its instrument, as any other may.
    """
    total, count = (f"{f}({value}) OVER (PARTITION BY {group})" for f in ("sum", "count"))
    own, rows = value, "1"
    if keys:
        own, rows = (f"{f}({value}) OVER (PARTITION BY {group}, {keys})" for f in ("sum", "count"))
    mean = f"({total} - {own}) / nullif({count} - {rows}, 0)"
    return f"CASE WHEN {is_missing(group)} THEN NULL ELSE {mean} END"


def is_missing(column: str) -> str:
    """Return the SQL condition that a cell is empty."""
    return f"nullif(trim(CAST({column} AS VARCHAR)), '') IS NULL"


def assumption(groups: Sequence[str]) -> str:
    """Return what leave-one-out instruments assume."""
    named = " and ".join(groups)
    return (
        f"instruments by {named} are means over other episodes: they are valid only as far as "
        f"the assignment to a {named} is random, and need many episodes of each"
    )
