"""The report of a run of experiments: its tables and curves, each with its command."""

from __future__ import annotations

import os
from itertools import groupby
from typing import Any

import numpy as np

from ivvi._io.plotting import IV, LS, MUTED
from ivvi.reporting.inline_svg import EXTRA, INK, draw
from ivvi.reporting.page import Cell, Figure, Page, PageTable, Picture, Section, SectionPart
from ivvi_reproduction.reproduce import read_results
from ivvi_reproduction.results import BandCurve, ResultFigure, Results, ResultTable

REGRET = ("paper", "as the paper", "their estimate", "best")
"""Columns of a table whose numbers are also plotted side by side."""


def read_page(folder: str | os.PathLike[str]) -> Page:
    """Return the page of the records in a folder."""
    return report_page(read_results(folder))


def report_page(results: Results) -> Page:
    """Return the page of all results of a run, one section for each experiment."""
    names = dict.fromkeys(_group(table.name) for table in results.tables)
    names |= dict.fromkeys(_group(figure.name) for figure in results.figures)
    return Page(
        title=results.title,
        lead="The paper's numbers, ours run as its authors did, our planner with their estimates, "
        "and ours at our best; each with the command that makes it again.",
        sections=tuple(_section(results, name) for name in names),
        facts={name: _fact(value) for name, value in results.facts.items()},
    )


def _group(name: str) -> str:
    return name.partition("-")[0]


def _section(results: Results, name: str) -> Section:
    parts: list[SectionPart] = []
    for table in (table for table in results.tables if _group(table.name) == name):
        parts += [_overview(table)] if set(REGRET) <= set(table.columns) else []
        parts.append(PageTable(table.title, table.columns, table.rows, table.note, table.command))
    drawn = [figure for figure in results.figures if _group(figure.name) == name and figure.curves]
    for _, panels in groupby(drawn, key=_alike):
        parts.append(_small_multiples(list(panels)))
    return Section(name.capitalize(), _lead(parts), tuple(parts))


def _lead(parts: list[SectionPart]) -> str:
    tables = sum(isinstance(part, PageTable) for part in parts)
    return f"{tables} tables and {len(parts) - tables} figures."


def _overview(table: ResultTable) -> Figure:
    """Plot the regrets of all columns, one line per cell."""
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    names = [f"{cell['variant']}, {cell['setting']}" for cell in cells]
    looks = {
        "paper": (INK, "|", 13),
        "as the paper": (LS, "X", 7),
        "their estimate": (EXTRA[0], "D", 5),
        "best": (IV, "o", 7),
    }
    values = {word: np.array([_number(cell[word]) for cell in cells]) for word in REGRET}
    everything = np.concatenate(list(values.values()))
    positive = everything[everything > 0]

    def paint(ax: Any) -> None:
        at = np.arange(len(cells))[::-1]
        if len(positive):
            ax.set_xscale("log")
        for word, (colour, marker, size) in looks.items():
            is_positive = values[word] > 0
            width = 2.0 if marker == "|" else 0.0
            ax.plot(
                values[word][is_positive], at[is_positive], marker, color=colour, ms=size, mew=width
            )
        ax.hlines(at, *ax.get_xlim(), color=MUTED, lw=0.3, zorder=0)
        ax.set_yticks(at, names)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.set_xlabel("logarithmic scale")

    alt = f"The numbers of the table on a logarithmic scale, {len(cells)} cells."
    picture = draw(f"overview-{table.name}", alt, paint, width=390, height=70 + 19 * len(cells))
    key = (
        *(("truth", "the paper"), ("ls", "as the paper does")),
        *(("c0", "its authors' estimate, our planner"), ("iv", "at our best")),
    )
    lost = int(np.sum(~(everything > 0)))
    caption = f"{alt} Without {lost} numbers that are missing or not above zero." if lost else alt
    return Figure(f"{table.title}, side by side", (picture,), caption, table.command, key)


def _alike(figure: ResultFigure) -> tuple[Any, ...]:
    """The parts that the panels of one figure share."""
    labels = tuple(curve.label for curve in figure.curves)
    return figure.title.partition(": ")[2], figure.x_label, figure.y_label, figure.command, labels


def _small_multiples(panels: list[ResultFigure]) -> Figure:
    first = panels[0]
    looks = _looks(first.curves)
    key = [(looks[curve.label][0], curve.label) for curve in first.curves if not curve.level_for]
    key += [("muted", "dotted: at our best")] if len(key) < len(looks) else []
    title = first.title.partition(": ")[2] or first.title
    pictures = tuple(_curves(panel, looks) for panel in panels)
    return Figure(title, pictures, first.note, first.command, tuple(key))


def _looks(curves: tuple[BandCurve, ...]) -> dict[str, tuple[str, str]]:
    """Return a colour for each label: the page's for known labels, others in turn.

    A level has the colour of its curve.
    """
    fixed = {"least squares": ("ls", LS), "instrument": ("iv", IV), "optimal": ("truth", INK)}
    rest = dict.fromkeys(c.level_for or c.label for c in curves if c.label not in fixed)
    turns = {name: i % len(EXTRA) for i, name in enumerate(rest)}
    looks = fixed | {name: (f"c{i}", EXTRA[i]) for name, i in turns.items()}
    return {c.label: looks[c.level_for or c.label] for c in curves}


def _curves(figure: ResultFigure, looks: dict[str, tuple[str, str]]) -> Picture:
    positive = all((np.asarray(curve.mean) > 0).any() for curve in figure.curves)

    def paint(ax: Any) -> None:
        for curve in figure.curves:
            colour, line = looks[curve.label][1], ":" if curve.level_for else "-"
            ax.plot(curve.x, curve.mean, line, color=colour, lw=1.6)
            if curve.low is not None and curve.high is not None and not curve.level_for:
                ax.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.16, lw=0)
        ax.set_xscale("log" if figure.log_x else "linear")
        ax.set_yscale("log" if figure.log_y and positive else "linear")
        ax.set_xlabel(figure.x_label)
        ax.set_ylabel(figure.y_label)
        ax.grid(visible=True, axis="y")

    panel, _, measure = figure.title.partition(": ")
    return draw(f"results-{figure.name}", figure.alt, paint, title=panel if measure else "")


def _number(cell: Cell) -> float:
    return float(cell) if isinstance(cell, int | float) else float("nan")


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "; ".join(map(_fact, value)) if isinstance(value, list | tuple) else str(value)
