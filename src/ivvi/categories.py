"""Categories as columns of 0 and 1, for a few rows, as saved models and policies need them.

A category of L levels is L - 1 indicators, ``ward[ICU]``; for the first level, the reference, all
of them are 0. `ivvi.logs.columns.category_encoding` makes them for whole logs.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ivvi.errors import LARGEST, DataError, hint

YES, NO = ("true", "yes", "y", "t", "1"), ("false", "no", "n", "f", "0")


@dataclass(frozen=True, slots=True)
class CodedColumn:
    """A column of categories, and the columns of 0 and 1 that encode it.

    Attributes
    ----------
    column
        The user's column.
    levels
        Its values as text; the first is the reference.
    boolean
        Whether it holds true and false, so that it is its own indicator.
    optional
        Whether an empty value or a word for no is the reference.
    """

    column: str
    levels: tuple[str, ...]
    boolean: bool = False
    optional: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the indicators, one for each level but the reference."""
        if self.boolean:
            return (self.column,)
        return tuple(f"{self.column}[{level}]" for level in self.levels[1:])

    def code(self, value: Any, where: str, unseen: str | None = None) -> int:
        """Return the number of a level; an unknown level is an error, or counts as `unseen`."""
        text = level_text(value)
        if self.optional and is_nothing(value):
            return 0
        if self.boolean and text.lower() in YES + NO:
            return int(text.lower() in YES)
        if text not in self.levels and unseen is not None:
            text = unseen
        if text not in self.levels:
            listed = ", ".join(self.levels[:8]) + (", ..." if len(self.levels) > 8 else "")
            raise DataError(
                f"column {self.column!r} of {where} holds {text!r}, which is none of the levels "
                f"{listed}{hint(text, self.levels) if len(self.levels) > 8 else ''}"
            )
        return self.levels.index(text)

    def encode(
        self, values: Sequence[Any], where: str, unseen: str | None = None
    ) -> NDArray[np.float64]:
        """Return the indicators of a few values, (n, L - 1)."""
        codes = np.array([self.code(value, where, unseen) for value in values], dtype=np.int64)
        return np.eye(len(self.levels))[codes][:, 1:]

    def decode(self, indicators: NDArray[Any]) -> list[str]:
        """Return the level that indicators (n, L - 1) are nearest to."""
        rest = 1.0 - indicators.sum(axis=1, keepdims=True)
        chosen = np.hstack([rest, indicators]).argmax(axis=1)
        return [self.levels[int(code)] for code in chosen]


CodedColumns = tuple[CodedColumn, ...]


def levels_alike(categories: CodedColumns) -> list[str]:
    """Return warnings on columns with two levels that differ only in case or blanks."""
    texts = []
    for coded in categories:
        met: dict[str, str] = {}
        for level in coded.levels:
            first = met.setdefault(" ".join(level.casefold().split()), level)
            if first != level:
                texts.append(
                    f"{coded.column} has the levels {first!r} and {level!r}, which differ only in "
                    "case or blanks but count as two: spell them the same in the table"
                )
                break
    return texts


UNKNOWN = ("-", "--", "?", ".", "None", "<NA>", "NaT", "n.a.", "N.A.")
"""Levels that may mean that a value is missing."""


def levels_unknown(categories: CodedColumns) -> list[str]:
    """List, for each column, levels that may mean 'missing'.

    But ``-`` together with ``+`` is a result, and ``None`` among capitalised words is an amount.
    """
    texts = []
    for coded in categories:
        titled = any(
            len(level) > 1 and level.istitle() for level in coded.levels if level != "None"
        )
        real = ("-", "--") if "+" in coded.levels else ("None",) if titled else ()
        for level in [level for level in coded.levels if level in UNKNOWN and level not in real]:
            texts.append(
                f"{coded.column} has the level {level!r}, which counts as any other: if it means "
                f"that the value is missing, use --missing {shlex.quote(level)} --drop-missing "
                f"(read_logs(missing={level!r}, drop_missing=True))"
            )
    return texts


def level_text(value: Any) -> str:
    """Return a value as the text of a level; whole numbers without a point."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def raw_columns(names: Sequence[str], categories: CodedColumns) -> tuple[str, ...]:
    """Return the user's columns for numeric ones: each category is one column."""
    column_of = {name: category.column for category in categories for name in category.names}
    return tuple(dict.fromkeys(column_of.get(name, name) for name in names))


def encode_rows(
    columns: Mapping[str, Sequence[Any]],
    names: Sequence[str],
    categories: CodedColumns,
    where: str,
    unseen: str | None = None,
) -> NDArray[np.float64]:
    """Return numeric columns (n, d) for a few rows of the user's columns."""
    coded = {category.column: category for category in categories}
    parts: list[NDArray[np.float64]] = []
    for column in raw_columns(names, categories):
        values = columns[column]
        for row, value in enumerate(values):
            if is_missing(value):
                raise DataError(f"{where} has no value in column {column!r}, row {row} (from 0)")
        if column in coded:
            parts.append(coded[column].encode(values, where, unseen))
        else:
            parts.append(np.array([_number(v, column, where) for v in values])[:, None])
    encoded = np.hstack(parts) if parts else np.zeros((1, 0))
    order = [name for c in raw_columns(names, categories) for name in _made(c, coded)]
    return encoded[:, [order.index(name) for name in names]]


def decode_rows(
    values: NDArray[Any], names: Sequence[str], categories: CodedColumns
) -> dict[str, list[Any]]:
    """Return the user's columns for numeric ones (n, d)."""
    coded = {category.column: category for category in categories}
    columns: dict[str, list[Any]] = {}
    for column in raw_columns(names, categories):
        at = [list(names).index(name) for name in _made(column, coded)]
        part = values[:, at]
        columns[column] = coded[column].decode(part) if column in coded else part[:, 0].tolist()
    return columns


def _made(column: str, coded: Mapping[str, CodedColumn]) -> tuple[str, ...]:
    return coded[column].names if column in coded else (column,)


def _number(value: Any, column: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise DataError(f"column {column!r} of {where} holds {value!r}; expected a finite number")
    if abs(number) > LARGEST:
        raise DataError(
            f"column {column!r} of {where} holds {number:g}; expected at most {LARGEST:g} in "
            "absolute value"
        )
    return number


def is_nothing(value: Any) -> bool:
    """Return whether a value is missing, empty, or a word for no."""
    return is_missing(value) or level_text(value).strip().lower() in ("", *NO)


def is_missing(value: Any) -> bool:
    """Return whether a value is None or not a number."""
    return value is None or (isinstance(value, float) and value != value)  # NaN
