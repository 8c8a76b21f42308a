"""Numbers that the sentences of docs/reproduction.md name, looked up in its tables and blocks.

A sentence never holds a measured number of its own: the template asks for a cell, the values of a
column, or a line of a study's printed block, and Jinja's filters take the least or the ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ivvi.errors import FileError, InputError
from ivvi_reproduction.one_change import ROWS
from ivvi_reproduction.results import Cell, ResultTable

FACTOR = 2.0
"""Cells further than this from the paper's number are set in bold and explained."""
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@dataclass(frozen=True)
class PageNumbers:
    """The tables by name, and the folder with what studies printed."""

    tables: Mapping[str, ResultTable]
    printed: Path

    def rows(self, name: str, settings: Sequence[str] = ()) -> list[dict[str, Cell]]:
        """Return the rows of a table by column, of all or of some settings."""
        if name not in self.tables:
            raise InputError(f"there is no table {name}; expected {', '.join(self.tables)}")
        table = self.tables[name]
        found = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return [row for row in found if not settings or row["setting"] in settings]

    def number(self, name: str, variant: str, setting: str, column: str) -> float:
        """Return one number of a table."""
        for row in self.rows(name, (setting,)):
            if row["variant"] == variant and isinstance(row[column], int | float):
                return float(row[column])  # type: ignore[arg-type]
        raise InputError(f"{name} has no number at {variant}, {setting}, {column}")

    def values(
        self, name: str, column: str, settings: Sequence[str] = (), per: str = ""
    ) -> list[float]:
        """Return the numbers of a column, divided by those of `per` in the same rows."""
        pairs = [(row[column], row[per] if per else 1.0) for row in self.rows(name, settings)]
        return [
            a / b for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)
        ]

    def between_settings(
        self, name: str, column: str, over: Sequence[str], under: Sequence[str]
    ) -> list[float]:
        """Divide a column in the settings `over` by itself in the settings `under`."""
        pairs = zip(self.values(name, column, over), self.values(name, column, under), strict=True)
        return [a / b for a, b in pairs]

    def change(self, experiment: str, change: str, row: str, variant: str) -> float:
        """Return one number of the block that `one_change` printed."""
        file = self.printed / f"one_change-{experiment}.txt"
        if not file.is_file():
            raise FileError(f"{file} is not there; it holds what one_change {experiment} printed")
        block = ""
        for line in file.read_text(encoding="utf-8").splitlines():
            label, cells = line[:30].strip(), line[30:].split()
            block = label if tuple(cells) == ROWS else block
            if (block, label) == (variant, change):
                return float(cells[ROWS.index(row)])
        raise InputError(f"{file.name} has no line {change!r} of {variant}")

    def off(self, name: str) -> list[float]:
        """Return how many times too large or too small regrets are, where beyond FACTOR."""
        ratios = [ratio for ratio in self.values(f"{name}-regret", "as / paper") if is_off(ratio)]
        return [max(ratio, 1 / ratio) for ratio in ratios]

    def below_baseline(self, name: str, column: str) -> int:
        """Count the cells in which the method loses less than the baseline of its variant."""
        rows = self.rows(f"{name}-regret")
        poor = {row["variant"]: row[column] for row in rows if row["setting"] == "Baseline"}
        values = [(row[column], poor[row["variant"]]) for row in rows]
        return sum(isinstance(a, float) and isinstance(b, float) and a < b for a, b in values)


def is_off(ratio: Cell) -> bool:
    """Say whether a ratio to the paper's number is beyond FACTOR, either way."""
    return isinstance(ratio, float) and not 1 / FACTOR <= ratio <= FACTOR


def digits(value: float, number: int = 2) -> str:
    """Write a number with so many significant digits, and no exponent."""
    rounded = float(f"{value:.{number}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (number - 1) else f"{rounded:.{number}g}"


def in_words(count: int) -> str:
    """Write a count up to ten as a word."""
    return WORDS[count] if count < len(WORDS) else str(count)


def span(values: Iterable[float], number: int = 2) -> str:
    """Write the least and the largest of some values: ``0.94 to 1.03``."""
    found = sorted(values)
    low, high = digits(found[0], number), digits(found[-1], number)
    return low if low == high else f"{low} to {high}"


def between(values: Iterable[float], low: float, high: float) -> list[float]:
    """Keep the values from `low` to `high`."""
    return [value for value in values if low <= value <= high]
