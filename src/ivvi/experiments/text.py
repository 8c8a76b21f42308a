"""Results as plain text, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ivvi.experiments.results import Cell, Results, ResultTable


def as_text(results: Results) -> str:
    """Set all tables below each other."""
    return "\n\n".join(f"{table.title}\n{table_text(table)}" for table in results.tables)


def table_text(table: ResultTable) -> str:
    """Set a table in columns of one width."""
    rows = [table.columns, *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def table_markdown(table: ResultTable) -> str:
    """Set a table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    marks = ["---" if i < 2 else "---:" for i in range(len(table.columns))]
    rows = [line([shown(cell) for cell in row]) for row in table.rows]
    return "\n".join([line(table.columns), line(marks), *rows])


def shown(cell: Cell) -> str:
    """Write one cell; what was not run is left empty."""
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
