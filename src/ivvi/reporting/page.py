"""A page of a report as plain values, and the one HTML file that it becomes.

The file stands alone: style, script and pictures are inside, and its content policy lets a
browser run no script but ours and fetch nothing. All text is escaped by the template.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, ClassVar

from ivvi.reporting.cells import (
    Cell,
    Picture,
    decimals_of,
    format_cell,
    kind_of,
    sort_value,
)
from ivvi.version import __version__


@dataclass(frozen=True)
class Figure:
    """Pictures side by side (one below another on a narrow screen) under one caption.

    `key` pairs a colour's name with what it stands for; `walk` is what `page.js` animates.
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
        """What each column holds: ``number``, set to the right, ``prose``, or nothing special."""
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
    """One word that matters, in a box; `tone` is good, doubtful or bad."""

    word: str
    text: str
    tone: str = "good"
    kind: ClassVar[str] = "verdict"


Part = Figure | PageTable | Text | Points | Badge


@dataclass(frozen=True)
class Section:
    """A heading, what it says in one sentence, and its parts."""

    title: str
    lead: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Page:
    """A whole report: `numbers` are (value, what it is), `facts` stand at the foot."""

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
