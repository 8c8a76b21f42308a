"""A page of a report as plain values, and its HTML file.

The file is self-contained: style, script and pictures are inside, and its content policy lets a
browser run only our script and fetch nothing. The template escapes all text. This module also
formats and sorts the cells of tables.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from ivvi._io.files import atomic_file, checked_output
from ivvi.errors import InputError
from ivvi.version import __version__

MINUS = "\N{MINUS SIGN}"
WIDE = 8.0
"""If sizes in a column differ by more than this ratio, each number has its own format."""
PROSE = 48
"""A cell of text with at least this many characters may be broken into lines."""


@dataclass(frozen=True)
class Figure:
    """Pictures side by side (one below another on a narrow screen) under one caption.

    `key` pairs a colour's name with its meaning; `walk` are the paths that `page.js` animates.
    """

    title: str
    pictures: tuple[Picture, ...]
    caption: str = ""
    command: str = ""
    key: tuple[tuple[str, str], ...] = ()
    wide: bool = False
    walk: Mapping[str, Any] | None = None
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class PageTable:
    """Rows of as many cells as there are columns; a click on a heading sorts them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    command: str = ""
    kind: ClassVar[str] = "table"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each column: ``number`` (aligned right), ``prose``, or ''."""
        return tuple(kind_of(column) for column in self._by_column)

    @property
    def written(self) -> tuple[tuple[Any, ...], ...]:
        """Rows of (cell, its text); the numbers of a column have as many decimals."""
        decimals = [decimals_of(column) for column in self._by_column]
        return tuple(
            tuple((cell, format_cell(cell, d)) for cell, d in zip(row, decimals, strict=True))
            for row in self.rows
        )

    @property
    def _by_column(self) -> list[tuple[Cell, ...]]:
        return list(zip(*self.rows, strict=True)) if self.rows else [()] * len(self.columns)


@dataclass(frozen=True)
class Text:
    """Paragraphs."""

    paragraphs: tuple[str, ...]
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Points:
    """A list of short statements, each with a few words ahead of it."""

    items: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "points"


@dataclass(frozen=True)
class Badge:
    """An important word in a box; `tone` is good, doubtful or bad."""

    word: str
    text: str
    tone: str = "good"
    kind: ClassVar[str] = "verdict"


SectionPart = Figure | PageTable | Text | Points | Badge


@dataclass(frozen=True)
class Section:
    """A heading, a sentence that sums it up, and its parts."""

    title: str
    lead: str
    parts: tuple[SectionPart, ...]


@dataclass(frozen=True)
class Page:
    """A whole report: `numbers` are pairs (value, meaning), `facts` are at the foot."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    numbers: tuple[tuple[str, str], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def render(page: Page) -> str:
    """Return the page as one HTML document."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ivvi.reporting", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sortable"] = sort_value
    environment.tests["picture"] = lambda cell: isinstance(cell, Picture)
    assets = files("ivvi.reporting") / "assets"
    style, script = ((assets / name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html").render(
        page=page, style=style, script=script, digest=digest, version=__version__
    )


def check_page(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Raise an error if the page cannot be written, before the work starts."""
    target = checked_output(path, force=force)
    if target.suffix not in (".html", ".htm"):
        raise InputError(f"the report {target} is not an .html file; a report is one HTML file")
    return target


def write_page(page: Page, path: Path, *, force: bool) -> Path:
    """Write a page completely or not at all."""
    text = render(page)
    with atomic_file(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


@dataclass(frozen=True)
class Picture:
    """Inline SVG from `inline_svg.draw`: markup that is not escaped again; its title is text."""

    svg: str
    title: str = ""


@dataclass(frozen=True)
class FormattedNumber:
    """A number with a text of its own."""

    value: float
    text: str


Cell = str | float | int | None | Picture | FormattedNumber
"""A cell of a table; None is a cell without a value."""


def format_cell(cell: Cell, decimals: int | None = 3) -> str:
    """Return a cell as text: with this many decimals, or with three significant digits.

    A missing value is a dash.
    """
    if isinstance(cell, FormattedNumber):
        return cell.text
    if isinstance(cell, str):
        return cell
    if cell is None or isinstance(cell, Picture) or is_missing(cell):
        return "\N{EN DASH}"
    if isinstance(cell, float):
        if math.isinf(cell):
            text = f"{cell:+}"[0].replace("+", "") + "\N{INFINITY}"
        elif cell != 0 and not 1e-4 <= abs(cell) < 1e7:
            text = f"{cell:.1e}"
        elif decimals is None or (cell != 0 and abs(cell) < 0.5 * 10.0**-decimals):
            text = f"{cell:,.{_places(abs(cell))}f}"
        else:
            text = f"{cell:,.{decimals}f}"
    else:
        text = f"{cell:,}"
    return text.replace("-", MINUS)


def decimals_of(column: Sequence[Cell]) -> int | None:
    """Return the decimals that give three digits to a number large in its column.

    None where the numbers differ so much in size that each needs its own.
    """
    sizes = sorted(abs(v) for v in column if isinstance(v, float) and math.isfinite(v) and v)
    if not sizes:
        return 3
    small, large = sizes[len(sizes) // 4], sizes[3 * len(sizes) // 4]
    return None if large > WIDE * small and large > 1 else min(4, _places(large))


def p_value(value: float) -> FormattedNumber:
    """Return a p-value with its text."""
    return FormattedNumber(value, f"{value:.3f}" if value >= 0.001 else "< 0.001")


def is_missing(cell: Cell) -> bool:
    """Return whether a cell has nothing to show."""
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def sort_value(cell: Cell) -> str:
    """Return a cell's sort key: a number in full, text as it is, '' if missing."""
    if is_missing(cell) or isinstance(cell, Picture):
        return ""
    return str(cell.value if isinstance(cell, FormattedNumber) else cell)


def kind_of(column: Sequence[Cell]) -> str:
    """Return the kind of a column: ``number``, ``prose``, or ''."""
    if any(isinstance(cell, int | float | FormattedNumber) for cell in column):
        return "number"
    longest = max((len(cell) for cell in column if isinstance(cell, str)), default=0)
    return "prose" if longest > PROSE else ""


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return names as a list in words, only the first few if there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def sentence(text: str) -> str:
    """Return a text with a capital letter at the start and a full stop at the end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _places(size: float) -> int:
    """Return the decimals that give a number three digits."""
    return max(0, 2 - math.floor(math.log10(size))) if size > 0 else 0
