"""Figures, drawn without a display and written like every other output: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ivvi._io.files import atomic_file, checked_output
from ivvi.errors import InputError

FORMATS = ("png", "svg", "pdf")


def check_figure(path: str | os.PathLike[str] | None, *, force: bool) -> None:
    """Refuse a figure that cannot be written, before the work starts."""
    if path is None:
        return
    checked_output(path, force=force)
    if Path(path).suffix.lstrip(".") not in FORMATS:
        raise InputError(f"the figure {path} has no known ending; {', '.join(FORMATS)} are known")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def make_axes(rows: int, columns: int, **settings: Any) -> tuple[Any, Any]:
    """Return a figure and its axes (rows, columns)."""
    figure = new_figure(3.4 * columns, 2.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False, **settings)
    for ax in axes.ravel():
        ax.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, path: str | os.PathLike[str], *, force: bool) -> None:
    """Write a figure in the format of the path's ending."""
    with atomic_file(path, force=force) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.lstrip("."), dpi=150)
