"""The page on the reproduction, made from the records and a template.

Run it with ``python -m ivvi_reproduction.docs_page``: the tables, captions and cells of
docs/reproduction.md come from ``reproduction/results/records.parquet``, what the other studies
printed from ``reproduction/results/printed/NAME.txt``, and what is said about them from
docs/templates/reproduction.md, whose sentences name no measured number of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi._io.files import atomic_file
from ivvi._io.plotting import make_axes, save_figure
from ivvi.errors import FileError
from ivvi_reproduction.jobs import list_jobs
from ivvi_reproduction.page_numbers import (
    PageNumbers,
    between,
    digits,
    in_words,
    is_off,
    span,
)
from ivvi_reproduction.reproduce import read_results
from ivvi_reproduction.results import Cell, ResultFigure, Results, shown
from ivvi_reproduction.run_job import Options
from ivvi_reproduction.specs import names, read_experiment, read_figure, read_table
from ivvi_reproduction.study import run_study

PRINTED = "printed"
"""Folder beside the records with what studies printed."""
NOT_RUN = "*Not run yet.*"


def make_page(results: Results, template: str, printed: Path | None = None) -> str:
    """Fill the template from the tables of `results` and the folder `printed`.

    ``regrets`` and ``by_variant`` are tables, ``figure`` is a picture with its caption, ``printed``
    what a study's command wrote. The other words are numbers for sentences (`PageNumbers`).
    """
    from jinja2 import Environment, StrictUndefined

    numbers = PageNumbers({table.name: table for table in results.tables}, printed or Path())
    experiments = names("experiments")
    quick = [Options(quick=True).experiment(name) for name in experiments]
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {"digits": digits, "in_words": in_words, "span": span}
    environment.filters["between"] = between
    words = {
        "regrets": lambda name: regret_table(numbers, name),
        "by_variant": lambda name, *columns: settings_by_variant(numbers, name, columns),
        "figure": lambda name, caption: _figure(results, name, caption),
        "printed": lambda name: _output(numbers.printed / f"{name}.txt"),
        "facts": results.facts,
        "episodes": {name: read_experiment(name).episodes for name in experiments},
        "quick_jobs": sum(1 for experiment in quick for _ in list_jobs(experiment, 1)),
        "number": numbers.number,
        "values": numbers.values,
        "between_settings": numbers.between_settings,
        "change": numbers.change,
        "off": numbers.off,
        "below_baseline": numbers.below_baseline,
        "half_a_digit": lambda name: read_table(name).digit / 2,
    }
    return environment.from_string(template).render(words)


def regret_table(numbers: PageNumbers, name: str) -> str:
    """Set the regrets of an experiment; a ratio beyond the factor is bold."""
    if f"{name}-regret" not in numbers.tables:
        return NOT_RUN

    def number(value: Cell, figures: int) -> str:
        return digits(value, figures) if isinstance(value, float) else shown(value)

    def pair(row: dict[str, Cell], column: str, half: str) -> str:
        return f"{number(row[column], 3)} ± {number(row[half], 2)}" if row[half] else ""

    def ratio(value: Cell) -> str:
        return f"**{number(value, 2)}**" if is_off(value) else number(value, 2)

    lines = [
        (
            f"{row['variant']}, {row['setting']}",
            f"{shown(row['paper'])} ± {shown(row['paper ±'])}",
            pair(row, "as the paper", "as ±") or number(row["as the paper"], 3),
            ratio(row["as / paper"]),
            number(row["their estimate"], 3),
            pair(row, "best", "best ±") or number(row["best"], 3),
        )
        for row in numbers.rows(f"{name}-regret")
    ]
    head = ("cell", "paper", "as the paper", "as / paper", "their estimate", "best")
    return _markdown(head, lines)


def settings_by_variant(numbers: PageNumbers, name: str, columns: Sequence[str]) -> str:
    """Set a table as the paper does: a row per setting, a column per variant."""
    if name not in numbers.tables:
        return NOT_RUN
    rows = numbers.rows(name)
    variants = list(dict.fromkeys(str(row["variant"]) for row in rows))
    cells = {
        (row["setting"], row["variant"]): " / ".join(
            digits(value, 3) if isinstance(value, float) else shown(value) or "-"
            for value in (row[column] for column in columns)
        )
        for row in rows
    }
    settings = dict.fromkeys(str(row["setting"]) for row in rows)
    lines = [(setting, *(cells.get((setting, v), "") for v in variants)) for setting in settings]
    return _markdown(("setting", *variants), lines)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    marks = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, marks, *lines))


def _figure(results: Results, name: str, caption: str) -> str:
    """Set a picture above its caption; the alternative text says whose curves they are."""
    panels = panels_of(results, name)
    if not panels:
        return NOT_RUN
    alt = f"{panels[0].title.partition(',')[0]}, our curves in {len(panels)} panels"
    return f"![{alt}](images/{name}.png)\n\n*{caption}*"


def _output(file: Path) -> str:
    """Set what a study printed."""
    if not file.is_file():
        return NOT_RUN
    return f"```text\n{file.read_text(encoding='utf-8').rstrip()}\n```"


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
