"""The page on the reproduction, made from the records and a template.

Run it with ``python -m ivvi_reproduction.docs_page``: the tables, captions and cells of
docs/reproduction.md come from ``reproduction/results/records.parquet``, what the other studies
printed from ``reproduction/results/printed/NAME.txt``, and what is said about them from
docs/templates/reproduction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi._io.files import atomic_file
from ivvi._io.plotting import make_axes, save_figure
from ivvi.errors import FileError, InputError
from ivvi_reproduction.reproduce import read_results
from ivvi_reproduction.results import (
    BandCurve,
    ResultFigure,
    Results,
    ResultTable,
    shown,
    table_markdown,
)
from ivvi_reproduction.specs import names, read_experiment, read_figure
from ivvi_reproduction.study import run_study

PRINTED = "printed"
"""Folder beside the records with what studies printed."""
FACTOR = 2.0
"""Cells that are further off the paper's number than this are listed."""


def make_page(results: Results, template: str, printed: Path | None = None) -> str:
    """Fill the template: ``{{ table("linear-regret") }}``, ``{{ figure("linear-loss") }}``.

    ``{{ printed("one_change-linear") }}`` is a file of the folder `printed`: what a study's
    command wrote. ``cell`` is one number of a table, ``lowest`` and ``highest`` are those of a
    column, as they are or divided by another column, in the rows named.
    """
    from jinja2 import Environment, StrictUndefined

    tables = {table.name: table for table in results.tables}

    def table(name: str) -> str:
        if name not in tables:
            return "*Not run yet.*"
        found = tables[name]
        return f"```text\n{found.command}\n```\n\n{table_markdown(filled(found))}\n\n{found.note}"

    def figure(name: str) -> str:
        panels = panels_of(results, name)
        if not panels:
            return "*Not run yet.*"
        rest = f"{panels[0].title}, and {len(panels) - 1} more panels"
        caption = " ".join(_captions(panels)).replace("W*", "`W*`")
        return f"![{rest}](images/{name}.png)\n\n{caption}"

    def output(name: str) -> str:
        file = (printed or Path()) / f"{name}.txt"
        if not file.is_file():
            return "*Not run yet.*"
        return f"```text\n{file.read_text(encoding='utf-8').rstrip()}\n```"

    def over(pick: Callable[[list[float]], float]) -> Callable[..., str]:
        return lambda name, *of: shown(pick(column_values(tables[name], *of)))

    words = {
        "table": table,
        "figure": figure,
        "printed": output,
        "lowest": over(min),
        "highest": over(max),
        "facts": results.facts,
        "off": lambda name: "\n".join(off_by_much(tables.get(f"{name}-regret"))),
        "cell": lambda name, variant, setting, column: cell(tables[name], variant, setting, column),
    }
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(template).render(words)


def cell(table: ResultTable, variant: str, setting: str, column: str) -> str:
    """Return one cell of a table, as it is written there."""
    for row in table.rows:
        found = dict(zip(table.columns, row, strict=True))
        if (found["variant"], found["setting"]) == (variant, setting):
            return shown(found[column])
    raise InputError(f"{table.name} has no row {variant}, {setting}")


def filled(table: ResultTable) -> ResultTable:
    """Leave out columns that are empty in every row."""
    kept = [i for i in range(len(table.columns)) if any(row[i] is not None for row in table.rows)]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=rows)


def column_values(
    table: ResultTable, column: str, per: str = "", settings: Sequence[str] = ()
) -> list[float]:
    """Return the numbers of a column, divided by those of `per`, of all or of some settings."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    chosen = [row for row in rows if not settings or row["setting"] in settings]
    pairs = [(row[column], row[per] if per else 1.0) for row in chosen]
    numbers = (int, float)
    return [a / b for a, b in pairs if isinstance(a, numbers) and isinstance(b, numbers)]


def _captions(panels: list[ResultFigure]) -> Iterator[str]:
    """Say what each kind of panel shows, and where its curves end."""
    for kind in dict.fromkeys(_kind(panel) for panel in panels):
        alike = [panel for panel in panels if _kind(panel) == kind]
        dotted = any(curve.level_for for panel in alike for curve in panel.curves)
        said = "; ends (in brackets, of the dotted lines):" if dotted else "; ends:"
        ends = "; ".join(
            f"{panel.title.partition(',')[2].partition(':')[0].strip()}: {_ends(panel)}"
            for panel in alike
        )
        yield f"{alike[0].alt.partition(':')[0]}{said} {ends}."


def _ends(panel: ResultFigure) -> str:
    """List where curves end, each with the level that is drawn beside it."""
    levels = {c.level_for: f" ({c.label.partition(',')[0]} {_end(c)})" for c in panel.curves}
    return ", ".join(
        f"{c.label.removeprefix('setting ')} {_end(c)}{levels.get(c.label, '')}"
        for c in panel.curves
        if not c.level_for
    )


def _end(curve: BandCurve) -> str:
    end = float(curve.mean[-1])
    return f"{end:,.0f}" if abs(end) >= 1000 else f"{end:.3g}"


def off_by_much(table: ResultTable | None) -> Iterator[str]:
    """List the cells where the paper's way, run by us, is off its number by a factor of 2."""
    for row in () if table is None else table.rows:
        cell = dict(zip(table.columns, row, strict=True))  # type: ignore[union-attr]
        ratio, where = cell["as / paper"], f"{cell['variant']}, {cell['setting']}"
        if isinstance(ratio, float) and not 1 / FACTOR <= ratio <= FACTOR:
            amount = f"{shown(ratio)} times" if ratio > 1 else f"1/{shown(1 / ratio)} of"
            theirs = shown(cell["their estimate"])
            yield (
                f"- {where}: {shown(cell['as the paper'])} is {amount} the paper's "
                f"{shown(cell['paper'])}{f'; with their estimate {theirs}' if theirs else ''}."
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
            label = "_" if curve.level_for else curve.label  # dotted levels are in the caption
            ax.plot(curve.x, curve.mean, label=label, **style)
            if curve.low is not None and curve.high is not None and not curve.level_for:
                ax.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=colour, lw=0)
        ax.set_xscale("log" if panel.log_x else "linear")
        ax.set_yscale("log" if panel.log_y else "linear")
        ax.set_title(panel.title.replace(": ", "\n", 1), fontsize=7)
        ax.set_xlabel(panel.x_label, fontsize=8)
        ax.set_ylabel(panel.y_label, fontsize=8)
        ax.legend(frameon=False, fontsize=6)
    return figure


def _kind(panel: ResultFigure) -> tuple[str, bool, bool]:
    return panel.y_label, panel.name.endswith("-baseline"), "-best-" in panel.name


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
    page = make_page(results, template.read_text(encoding="utf-8"), folder / PRINTED)
    for experiment in names("experiments"):
        for name in names("figures", experiment):
            if panels := panels_of(results, name):
                columns = len(read_experiment(read_figure(name).experiment).variants)
                save_figure(draw_panels(panels, columns), docs / f"images/{name}.png", force=True)
    with atomic_file(docs / "reproduction.md", force=True) as temporary:
        temporary.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    run_study(command)
