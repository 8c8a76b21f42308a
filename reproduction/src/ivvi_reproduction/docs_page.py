"""The page on the reproduction, made from the records and a template.

Run it with ``python -m ivvi_reproduction.docs_page``: every number of docs/reproduction.md
comes from ``reproduction/results/records.parquet``, what is said about how the paper is read
from docs/templates/reproduction.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi._io.files import atomic_file
from ivvi._io.plotting import make_axes, save_figure
from ivvi.errors import FileError
from ivvi_reproduction.reproduce import read_results
from ivvi_reproduction.results import ResultFigure, Results, ResultTable, shown, table_markdown
from ivvi_reproduction.specs import names, read_experiment, read_figure
from ivvi_reproduction.study import run_study

FACTOR = 3.0
"""Cells that are further off the paper's number than this are listed."""


def make_page(results: Results, template: str) -> str:
    """Fill the template: ``{{ table("linear-regret") }}``, ``{{ figure("linear-loss") }}``."""
    from jinja2 import Environment, StrictUndefined

    tables = {table.name: table for table in results.tables}

    def table(name: str) -> str:
        if name not in tables:
            return "*Not run yet.*"
        found = tables[name]
        return f"```text\n{found.command}\n```\n\n{table_markdown(found)}\n\n{found.note}"

    def figure(name: str) -> str:
        panels = panels_of(results, name)
        if not panels:
            return "*Not run yet.*"
        said = " ".join(f"{panel.title}: {panel.alt}" for panel in panels)
        return f"![{re.sub(r'[][]', '', said)}](images/{name}.png)"

    words = {
        "table": table,
        "figure": figure,
        "facts": results.facts,
        "column": lambda name, which: read_experiment(name).columns[which],
        "verdict": lambda: "\n".join(verdicts(tables)),
        "off": lambda name: "\n".join(off_by_much(tables.get(f"{name}-regret"))),
    }
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template).render(words)


def verdicts(tables: dict[str, ResultTable]) -> Iterator[str]:
    """Say in how many cells our best beats the paper, and how the paper's way ended."""
    for name in names("experiments"):
        if (table := tables.get(f"{name}-regret")) is None:
            continue
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        cells = [row for row in rows if row["setting"] != "Baseline" and row["best"] is not None]
        better = sum(float(row["best"]) < float(row["paper"]) for row in cells)  # type: ignore[arg-type]
        ends: dict[str, int] = {}
        for row in cells:
            word = str(row["descent"] or "not run yet")
            word = "differs from log to log" if "(" in word else word
            ends[word] = ends.get(word, 0) + 1
        said = ", ".join(f"{word} in {count}" for word, count in ends.items())
        yield (
            f"- {read_experiment(name).title}: our best regret is below the paper's in {better} of "
            f"{len(cells)} cells; descent-ascent with the paper's steps: {said}."
        )


def off_by_much(table: ResultTable | None) -> Iterator[str]:
    """List the cells where the paper's way, run by us, is off its number by a factor of 3."""
    for row in () if table is None else table.rows:
        cell = dict(zip(table.columns, row, strict=True))  # type: ignore[union-attr]
        ratio, where = cell["as / paper"], f"{cell['variant']}, {cell['setting']}"
        if isinstance(ratio, float) and not 1 / FACTOR <= ratio <= FACTOR:
            amount = f"{shown(ratio)} times" if ratio > 1 else f"1/{shown(1 / ratio)} of"
            yield (
                f"- {where}: {shown(cell['as the paper'])} is {amount} the paper's "
                f"{shown(cell['paper'])}; {cell['descent']}."
            )
        elif ratio is None and cell["descent"]:
            yield f"- {where}: {cell['descent']}, where the paper has {shown(cell['paper'])}."


def panels_of(results: Results, name: str) -> list[ResultFigure]:
    """Return the panels of one figure of the paper."""
    return [f for f in results.figures if f.name.startswith(f"{name}-") and f.curves]


def draw_panels(panels: list[ResultFigure], columns: int) -> Any:
    """Draw panels in rows: one column for each variant, one row for each measure."""
    kinds = list(dict.fromkeys(_kind(panel) for panel in panels))
    figure, axes = make_axes(len(kinds), columns)
    filled = [0] * len(kinds)
    for panel in panels:
        row = kinds.index(_kind(panel))
        ax, filled[row] = axes[row, filled[row]], filled[row] + 1
        colours = list(dict.fromkeys(c.level_for or c.label for c in panel.curves))
        for curve in panel.curves:
            colour = f"C{colours.index(curve.level_for or curve.label)}"
            line = ":" if curve.level_for else "-"
            style = {"linestyle": line, "linewidth": 1.3, "color": colour}
            ax.plot(curve.x, curve.mean, label=curve.label, **style)
            if curve.low is not None and curve.high is not None and not curve.level_for:
                ax.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=colour, lw=0)
        ax.set_xscale("log" if panel.log_x else "linear")
        ax.set_yscale("log" if panel.log_y else "linear")
        ax.set_title(panel.title.replace(": ", "\n", 1), fontsize=7)
        ax.set_xlabel(panel.x_label, fontsize=8)
        ax.set_ylabel(panel.y_label, fontsize=8)
        ax.legend(frameon=False, fontsize=6)
    return figure


def _kind(panel: ResultFigure) -> tuple[str, bool]:
    return panel.y_label, panel.name.endswith("-baseline")


def command(
    folder: Annotated[Path, typer.Argument(help="Folder of a reproduction.")] = Path(
        "reproduction/results"
    ),
    docs: Annotated[Path, typer.Option(help="Folder of the page and its template.")] = Path("docs"),
) -> None:
    """Write the page on the reproduction from its records."""
    results = read_results(folder)
    template = docs / "templates/reproduction.md"
    if not template.is_file():
        raise FileError(f"{template} is not there; the page is made from it")
    page = make_page(results, template.read_text(encoding="utf-8"))
    for experiment in names("experiments"):
        for name in names("figures", experiment):
            if panels := panels_of(results, name):
                columns = len(read_experiment(read_figure(name).experiment).variants)
                save_figure(draw_panels(panels, columns), docs / f"images/{name}.png", force=True)
    with atomic_file(docs / "reproduction.md", force=True) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    run_study(command)
