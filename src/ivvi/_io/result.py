"""Base classes of results: a summary, a display in notebooks, and, for tables, a data frame.

The summary of a verb's result opens with a `Brief`, a few plain sentences; statistics follow below.
`Compact` is for other classes that hold arrays: their `repr` is one line too.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ivvi.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Records = list[dict[str, Any]]
"""Rows of a table, one value per column."""
DIGITS = 4
WIDTH = 78
FIRST = 13
"""Width of the labels before the sentences."""
LONGEST_REPR, LONGEST_FIELD = 160, 40
"""Most characters of a `repr`, and of one field in it."""


class Result:
    """A result with a summary in words, which a notebook shows too.

    `repr` is one line and never prints arrays.
    """

    __slots__ = ()

    def summary(self) -> str:
        """Return the result as text."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Describe the result with JSON values."""
        raise NotImplementedError

    @property
    def headline(self) -> str:
        """The first of the plain sentences; where there are none, the first line of the summary."""
        brief = getattr(self, "brief", None)
        if brief is not None:
            label, sentence = brief.items[0]
            return sentence if label == type(self).__name__ else f"{label}: {sentence}"
        lines = (line.strip() for line in self.summary().splitlines())
        return next((line for line in lines if line.strip("=-")), "")

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {_cut(self.headline)}>"

    def _repr_html_(self) -> str:
        return brief_html(self) + f"<pre>{html.escape(self.summary())}</pre>"


class TableResult(Result):
    """A result that is a table too: `to_frame`."""

    __slots__ = ()

    def records(self) -> Records:
        """Return the rows of the table, one value per column."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the table as text."""
        return text_table(self.records())

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas frame."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise InputError(
                "to_frame needs pandas (pip install pandas); records() returns the same "
                "rows without it, and to_json() all of the result"
            ) from None
        frame: pd.DataFrame = pandas.DataFrame.from_records(self.records())
        return frame

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON values, a list of rows; null for numbers that are not finite."""
        return {"rows": json_records(self.records())}

    def _repr_html_(self) -> str:
        whole = f"<details><summary>full summary</summary><pre>{html.escape(self.summary())}</pre>"
        return brief_html(self) + html_table(self.records()) + whole + "</details>"


class Compact:
    """A dataclass whose `repr` is one line: arrays by type and shape, long fields by type.

    Examples
    --------
    >>> import numpy as np
    >>> @dataclass(repr=False)
    ... class Path(Compact):
    ...     name: str
    ...     x: np.ndarray
    >>> Path("first", np.zeros((2, 3)))
    Path(name='first', x=float64[2, 3])
    """

    __slots__ = ()

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return compact_repr(self, [field.name for field in fields if field.repr])


def compact_repr(value: Any, names: Sequence[str]) -> str:
    """Return a `repr` of one line, with the attributes `names` of the value.

    For the `__repr__` of a `NamedTuple`, which cannot inherit from `Compact`.
    """
    fields = ", ".join(f"{name}={short(getattr(value, name))}" for name in names)
    return f"{type(value).__name__}({_cut(fields)})"


def _cut(text: str) -> str:
    """Return a text, cut at a word if it is long."""
    return textwrap.shorten(text, LONGEST_REPR, placeholder=" ...")


def short(value: Any) -> str:
    """Return a short text for the value of a field."""
    kind = type(value).__name__
    if hasattr(value, "dtype") and hasattr(value, "ndim"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, tuple | list):
        text = f"({', '.join(map(short, value))})" if len(value) <= LONGEST_FIELD else ""
    elif isinstance(value, Mapping):
        text = f"{{{', '.join(f'{key!r}: {short(item)}' for key, item in value.items())}}}"
    elif callable(value) and hasattr(value, "__qualname__"):
        text = value.__qualname__
    else:
        text = repr(value)
    if 0 < len(text) <= LONGEST_FIELD and "\n" not in text:
        return text
    return f"{kind} of {len(value)}" if hasattr(value, "__len__") else f"{kind}(...)"


def json_records(records: Records) -> Records:
    """Return rows with None for numbers that are not finite."""
    return [
        {name: None if _is_endless(value) else value for name, value in row.items()}
        for row in records
    ]


def _is_endless(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def as_sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def brief_html(result: Any) -> str:
    """Return the plain sentences at the top of a result as HTML, if there are any."""
    brief = getattr(result, "brief", None)
    if brief is None:
        return ""
    lines = (f"<b>{html.escape(word)}</b> {html.escape(text)}" for word, text in brief.items)
    return f"<p>{'<br>'.join(lines)}</p>"


def html_table(records: Records) -> str:
    """Return rows as an HTML table, numbers with four digits."""
    if not records:
        return ""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in records[0])
    rows = (
        "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values())
        for row in records
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(records: Records) -> str:
    """Return rows as lines of text, numbers with four digits, aligned right.

    Examples
    --------
    >>> print(text_table([{"column": "dose", "mean": 2 / 3}, {"column": "age", "mean": 41.0}]))
    column    mean
    dose    0.6667
    age         41
    """
    if not records:
        return ""
    lines = [list(records[0]), *([_cell(value) for value in row.values()] for row in records)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    left = [isinstance(value, str) for value in records[0].values()]
    return "\n".join(
        "  ".join(
            f"{cell:{'<' if words else '>'}{width}}"
            for cell, width, words in zip(cells, widths, left, strict=True)
        ).rstrip()
        for cells in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True, repr=False)
class Brief(Compact):
    """Three answers, each with a label; the last one says what to do next.

    Examples
    --------
    >>> print(Brief((("Instrument", "Good enough."), ("Next", "Fit."))).text)
    Instrument   Good enough.
    Next         Fit.
    """

    items: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The sentences, folded to the width of the tables."""
        return "\n".join(
            textwrap.fill(
                f"{word:<{FIRST}}{sentence}",
                WIDTH,
                subsequent_indent=" " * FIRST,
                break_on_hyphens=False,
                break_long_words=False,
            )
            for word, sentence in self.items
        )

    def to_json(self) -> dict[str, str]:
        """Return the sentences by label, in lower case."""
        return {word.lower(): sentence for word, sentence in self.items}
