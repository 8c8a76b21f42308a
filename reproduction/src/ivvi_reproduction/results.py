"""Results of a run of experiments: tables, curves, the command behind each; as text and JSON.

Plain values between the experiments that compute and the pages that print, so that neither
knows the other: a page never reads a record, an experiment never writes markup.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

TableCell = str | float | int | None


@dataclass(frozen=True)
class ResultTable:
    """One table: `rows` of as many cells as there are `columns`; None is a cell not run."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str = ""
    command: str = ""


@dataclass(frozen=True)
class BandCurve:
    """A mean and its 95% band along `x`; `low` and `high` are None where there is no band.

    A level to compare another curve with names that curve: `level_for`.
    """

    label: str
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    level_for: str = ""


@dataclass(frozen=True)
class ResultFigure:
    """One plot of curves; `alt` describes the picture in words."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[BandCurve, ...]
    alt: str
    note: str = ""
    command: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Results:
    """All results of one run; `facts` holds versions, seeds, seconds, by name."""

    title: str
    tables: tuple[ResultTable, ...]
    figures: tuple[ResultFigure, ...]
    facts: dict[str, Any] = field(default_factory=dict)


def as_text(results: Results) -> str:
    """Return all tables as text."""
    return "\n\n".join(f"{table.title}\n{table_text(table)}" for table in results.tables)


def table_text(table: ResultTable) -> str:
    """Return a table as text in columns of equal width."""
    rows = [table.columns, *([cell_text(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def cell_text(cell: TableCell) -> str:
    """Return one cell as text, '' if it was not run."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 10_000 else f"{cell:.4g}"
    return str(cell)


def as_json(results: Results) -> dict[str, Any]:
    """Describe results with JSON values."""
    return {
        "title": results.title,
        "facts": results.facts,
        "tables": [asdict(table) for table in results.tables],
        "figures": [_plain(asdict(figure)) for figure in results.figures],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
