"""Cells of a table and words of a text: how values are written for people, and sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MINUS = "\N{MINUS SIGN}"
WIDE = 8.0
"""Ratio of sizes in a column from which its numbers are written one by one."""
PROSE = 48
"""Letters from which a cell of text may be broken into lines."""


@dataclass(frozen=True)
class Picture:
    """Inline SVG that `pictures.draw` made: markup, not escaped again; its title is text."""

    svg: str
    title: str = ""


@dataclass(frozen=True)
class Shown:
    """A number that is written in its own way."""

    value: float
    text: str


Cell = str | float | int | None | Picture | Shown
"""What a table holds; None is a cell without a value."""


def format_cell(cell: Cell, decimals: int | None = 3) -> str:
    """Write a cell for people: with this many decimals, or with three significant digits.

    A dash stands for what is missing.
    """
    if isinstance(cell, Shown):
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


def _places(size: float) -> int:
    """Return the decimals that give a number three digits."""
    return max(0, 2 - math.floor(math.log10(size))) if size > 0 else 0


def p_value(value: float) -> Shown:
    """Write a p-value."""
    return Shown(value, f"{value:.3f}" if value >= 0.001 else "< 0.001")


def is_missing(cell: Cell) -> bool:
    """Whether there is nothing to show."""
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def sort_value(cell: Cell) -> str:
    """Return what a cell is sorted by: a number in full, text as it is, nothing if missing."""
    if is_missing(cell) or isinstance(cell, Picture):
        return ""
    return str(cell.value if isinstance(cell, Shown) else cell)


def kind_of(column: Sequence[Cell]) -> str:
    """Say what a column holds: ``number``, ``prose``, or nothing special."""
    if any(isinstance(cell, int | float | Shown) for cell in column):
        return "number"
    longest = max((len(cell) for cell in column if isinstance(cell, str)), default=0)
    return "prose" if longest > PROSE else ""


def listed(names: Sequence[str], most: int = 6) -> str:
    """Write names one after another, the first few of many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def sentence(text: str) -> str:
    """Begin with a capital letter and end with a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
