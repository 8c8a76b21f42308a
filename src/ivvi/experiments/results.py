"""What a run of experiments shows: tables, curves, and the command behind each.

Plain values between the experiments that compute and the pages that print, so that neither
knows the other: a page never reads a record, an experiment never writes markup.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Cell = str | float | int | None


@dataclass(frozen=True)
class ResultTable:
    """One table: `rows` of as many cells as there are `columns`; None is a cell not run."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    command: str = ""


@dataclass(frozen=True)
class Curve:
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
    """One plot of curves; `alt` says in words what the picture shows."""

    name: str
    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    alt: str
    note: str = ""
    command: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Results:
    """Everything that one run shows; `facts` holds versions, seeds, seconds, by name."""

    title: str
    tables: tuple[ResultTable, ...]
    figures: tuple[ResultFigure, ...]
    facts: dict[str, Any] = field(default_factory=dict)
