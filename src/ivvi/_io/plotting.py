"""Figures, drawn without a display and written like all output: completely or not at all."""

from __future__ import annotations

import importlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ivvi._io.files import atomic_file, checked_output
from ivvi.errors import InputError

FORMATS = ("png", "svg", "pdf")


def check_figure(path: str | os.PathLike[str] | None, *, force: bool) -> None:
    """Raise an error for a figure that cannot be written, before the work starts."""
    if path is None:
        return
    checked_output(path, force=force)
    if Path(path).suffix.lstrip(".") not in FORMATS:
        raise InputError(
            f"the figure {path} has an unknown file ending; choose from {', '.join(FORMATS)}"
        )


IV, LS, MUTED = "#1d6fb8", "#c1121f", "#8a8b8c"
"""Colours: with the instrument, by least squares, and anything else."""
OTHERS = ("#7a5195", "#b07a00", "#2a8c6a")
"""Further colours."""


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches, which a notebook shows on its own."""
    figure: Any = importlib.import_module("matplotlib.figure")

    class Drawing(figure.Figure):  # type: ignore[misc]
        """A figure that a notebook shows with any backend."""

        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=110)
            return buffer.getvalue()

    return Drawing(figsize=(width, height), layout="constrained")


def finished(figure: Any, path: str | os.PathLike[str] | None, *, force: bool) -> Any:
    """Return a figure, after writing it if a path is given."""
    if path is not None:
        save_figure(figure, path, force=force)
    return figure


def draw_intervals(
    ax: Any,
    names: Sequence[str],
    rows: Sequence[tuple[float, float, float]],
    colours: str | Sequence[str],
) -> None:
    """Plot estimates with their intervals (estimate, low, high), the first one at the top.

    Pass one colour, or one per row. Consecutive rows with the same name share a line.
    """
    shades = [colours] * len(rows) if isinstance(colours, str) else colours
    lines = list(dict.fromkeys(names))
    for i, (name, colour, (estimate, low, high)) in enumerate(
        zip(names, shades, rows, strict=True)
    ):
        sharing = [j for j, other in enumerate(names) if other == name]
        y = len(lines) - lines.index(name) + 0.5 - (sharing.index(i) + 1) / (len(sharing) + 1)
        ax.plot([low, high], [y, y], color=colour, lw=2)
        ax.plot(estimate, y, "o", color=colour, ms=6)
    ax.set_yticks(range(len(lines), 0, -1), lines)
    ax.set_ylim(0.3, len(lines) + 0.7)


def plot_explained(
    gains: Mapping[str, float],
    chosen: str,
    folds: int,
    path: str | os.PathLike[str] | None,
    *,
    force: bool,
) -> Any:
    """Plot what features explain beyond the linear model, by name, the chosen ones blue.

    Candidates without a finite gain have no mark; `path` saves the picture.
    """
    check_figure(path, force=force)
    figure, axes = make_axes(1, 1)
    figure.set_size_inches(6.5, 1.4 + 0.3 * len(gains))
    shares = [gain if math.isfinite(gain) else math.nan for gain in gains.values()]
    colours = [IV if name == chosen else MUTED for name in gains]
    axes[0, 0].axvline(0, color=MUTED, lw=0.8)
    draw_intervals(axes[0, 0], list(gains), [(gain, gain, gain) for gain in shares], colours)
    axes[0, 0].set(xlabel=f"share of error variance explained, {folds} folds")
    axes[0, 0].set_title(f"chosen: {chosen}", loc="left", fontsize=10)
    return finished(figure, path, force=force)


def draw_survival(
    ax: Any,
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    label: str = "share that goes on",
) -> None:
    """Plot a share of episodes after each step, a line and a band per policy.

    Each curve has `estimate`, `low` and `high`, (H + 1,); the first one is the policy's.
    """
    fixed_colours = {"least-squares": LS, "behaviour": MUTED}
    others = iter(OTHERS * len(curves))
    for i, (name, curve) in enumerate(curves.items()):
        colour = IV if i == 0 else fixed_colours.get(name) or next(others)
        steps = range(len(curve["estimate"]))
        ax.step(steps, curve["estimate"], where="post", color=colour, lw=1.8, label=name)
        band = curve["low"], curve["high"]
        ax.fill_between(steps, *band, step="post", color=colour, alpha=0.15, lw=0)
    ax.set(xlabel="step", ylabel=label)
    ax.set_xlim(0, None)
    ax.set_ylim(0, 1.02)
    ax.legend(frameon=False, fontsize=9, loc="lower left")


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
