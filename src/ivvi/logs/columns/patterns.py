"""Columns of a table by name, by glob or by range.

Columns are named one by one (with commas between, unless the whole is one name), by glob
(``x*``) or by range (``x0:x4`` or ``x0..x4``, in the order of the table).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

from ivvi.errors import ColumnError, nearest

Columns = str | Sequence[str]
"""One pattern, several separated by commas, or a sequence of patterns."""


def match_columns(patterns: Columns, available: Sequence[str], role: str) -> tuple[str, ...]:
    """Expand names, globs and ranges into column names, in the order asked for."""
    if isinstance(patterns, str) and patterns and patterns in available:
        return (patterns,)
    if isinstance(patterns, str):
        parts = [part.strip() for part in patterns.split(",") if part.strip()]
        if patterns and not parts:
            raise ColumnError(f"{role} is {patterns!r}, which names no column")
        patterns = parts
    matched: list[str] = []
    for pattern in patterns:
        for name in _match_one(pattern, available, role):
            if name in matched:
                raise ColumnError(f"column {name!r} is given twice as {role}")
            matched.append(name)
    return tuple(matched)


def _match_one(pattern: str, available: Sequence[str], role: str) -> list[str]:
    if pattern in available:
        return [pattern]
    ends = re.split(r"\.\.|:", pattern)
    if len(ends) == 2 and all(ends):
        first, last = (list(available).index(known_column(end, available, role)) for end in ends)
        if last < first:
            raise ColumnError(f"{role} range {pattern!r} runs backwards in the table")
        return list(available[first : last + 1])
    if any(sign in pattern for sign in "*?["):
        matches = fnmatch.filter(available, pattern)
        if not matches:
            raise ColumnError(
                f"no column matches the {role} pattern {pattern!r}; columns: {listing(available)}"
            )
        return matches
    return [known_column(pattern, available, role)]


def known_column(name: str, available: Sequence[str], role: str) -> str:
    """Return the name of a column; refuse one that the table does not have."""
    if name not in available:
        hint = nearest(name, available) or f"; columns: {listing(available)}"
        raise ColumnError(f"{role} column {name!r} is not in the log{hint}")
    return name


def one_column(
    name: str | None, available: Sequence[str], role: str, default: str | None = None
) -> str | None:
    """Return the column of a role that takes one; where none is named, `default` if it is there."""
    if name is not None:
        return known_column(name, available, role)
    return default if default in available else None


def listing(names: Iterable[str], most: int = 12) -> str:
    """Return names with commas between, the first `most` of them."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
