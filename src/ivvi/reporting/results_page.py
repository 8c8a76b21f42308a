"""The report of a run of experiments: its tables and curves, each with its command."""

from __future__ import annotations

from typing import Any

import numpy as np

from ivvi.experiments.results import Curve, ResultFigure, Results, ResultTable
from ivvi.reporting.page import Figure, Page, Part, Picture, Section, Table
from ivvi.reporting.pictures import EXTRA, INK, IV, LS, draw


def results_page(results: Results) -> Page:
    """Lay out everything that a run shows."""
    sections = []
    if results.tables:
        parts: tuple[Part, ...] = tuple(_table(table) for table in results.tables)
        sections.append(Section("Tables", "A click on a heading sorts.", parts))
    if results.figures:
        figures: tuple[Part, ...] = tuple(_figure(figure) for figure in results.figures)
        sections.append(Section("Curves", "Means with 95% bands.", figures))
    return Page(
        title=results.title,
        lead="Every number with the command that makes it again.",
        sections=tuple(sections),
        facts={name: str(value) for name, value in results.facts.items()},
    )


def _table(table: ResultTable) -> Table:
    return Table(table.title, table.columns, table.rows, table.note, table.command)


def _figure(figure: ResultFigure) -> Figure:
    looks = _looks(figure.curves)
    key = tuple((word, curve.label) for (word, _), curve in zip(looks, figure.curves, strict=True))
    picture = _curves(figure, [colour for _, colour in looks])
    return Figure(figure.title, (picture,), figure.note, figure.command, key, wide=True)


def _looks(curves: tuple[Curve, ...]) -> list[tuple[str, str]]:
    """Give each curve a colour: those of the page for what it knows, others in turn."""
    rest = iter([(f"c{i}", colour) for i, colour in enumerate(EXTRA)] * len(curves))
    found = []
    for curve in curves:
        label = curve.label.lower()
        if "least squares" in label or "baseline" in label:
            found.append(("ls", LS))
        elif "instrument" in label or "iv" in label.replace("-", " ").split():
            found.append(("iv", IV))
        elif "optimal" in label or "truth" in label:
            found.append(("truth", INK))
        else:
            found.append(next(rest))
    return found


def _curves(figure: ResultFigure, colours: list[str]) -> Picture:
    def paint(ax: Any) -> None:
        for curve, colour in zip(figure.curves, colours, strict=True):
            x, mean = np.asarray(curve.x), np.asarray(curve.mean)
            ax.plot(x, mean, color=colour, lw=1.6)
            if curve.low is not None and curve.high is not None:
                ax.fill_between(x, curve.low, curve.high, color=colour, alpha=0.16, lw=0)
        ax.set_xscale("log" if figure.log_x else "linear")
        ax.set_yscale("log" if figure.log_y else "linear")
        ax.set_xlabel(figure.x_label)
        ax.set_ylabel(figure.y_label)
        ax.grid(visible=True, axis="y")

    return draw(f"results-{figure.name}", figure.alt, paint, width=440, height=290)
