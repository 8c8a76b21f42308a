"""The page on the reproduction, made from the records and a template.

Run it with ``python -m ivvi_reproduction.docs_page``: the tables, captions and cells of
docs/reproduction.md come from ``reproduction/results/records.parquet``, the output of the other
studies from ``reproduction/results/printed/NAME.txt``, and the text from
docs/templates/reproduction.md. Sentences there contain no measured numbers. They ask `PageNumbers`
for a cell, the values of a column, or a line of a study's output, and Jinja's filters take the
least or the ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi._io.files import atomic_file
from ivvi._io.plotting import make_axes, save_figure
from ivvi.errors import FileError, InputError
from ivvi_reproduction.jobs import Options, list_jobs
from ivvi_reproduction.one_change import ROWS
from ivvi_reproduction.reproduce import read_results
from ivvi_reproduction.results import ResultFigure, Results, ResultTable, TableCell, cell_text
from ivvi_reproduction.specs import names, read_experiment, read_figure, read_table
from ivvi_reproduction.study import run_study

PRINTED = "printed"
"""Folder beside the records with the output of studies."""
NOT_RUN = "*Not run yet.*"
FACTOR = 2.0
"""Cells further than this from the paper's number are set in bold and explained."""
WORDS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


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
    """Return the table of an experiment's regrets; a ratio beyond the factor is bold."""
    if f"{name}-regret" not in numbers.tables:
        return NOT_RUN

    def number(value: TableCell, figures: int) -> str:
        return digits(value, figures) if isinstance(value, float) else cell_text(value)

    def pair(row: dict[str, TableCell], column: str, half: str) -> str:
        return f"{number(row[column], 3)} ± {number(row[half], 2)}" if row[half] else ""

    def ratio(value: TableCell) -> str:
        return f"**{number(value, 2)}**" if is_off(value) else number(value, 2)

    lines = [
        (
            f"{row['variant']}, {row['setting']}",
            f"{cell_text(row['paper'])} ± {cell_text(row['paper ±'])}",
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
    """Return a table laid out as the paper's: a row per setting, a column per variant."""
    if name not in numbers.tables:
        return NOT_RUN
    rows = numbers.rows(name)
    variants = list(dict.fromkeys(str(row["variant"]) for row in rows))
    cells = {
        (row["setting"], row["variant"]): " / ".join(
            digits(value, 3) if isinstance(value, float) else cell_text(value) or "-"
            for value in (row[column] for column in columns)
        )
        for row in rows
    }
    settings = dict.fromkeys(str(row["setting"]) for row in rows)
    lines = [(setting, *(cells.get((setting, v), "") for v in variants)) for setting in settings]
    return _markdown(("setting", *variants), lines)


def panels_of(results: Results, name: str) -> list[ResultFigure]:
    """Return the panels of one figure of the paper."""
    return [f for f in results.figures if f.name.startswith(f"{name}-") and f.curves]


def draw_panels(panels: list[ResultFigure], columns: int) -> Any:
    """Plot panels: one column for each variant, one row for each measure."""
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


@dataclass(frozen=True)
class PageNumbers:
    """The tables by name, and the folder with the output of studies."""

    tables: Mapping[str, ResultTable]
    printed: Path

    def rows(self, name: str, settings: Sequence[str] = ()) -> list[dict[str, TableCell]]:
        """Return the rows of a table by column, of all or of some settings."""
        if name not in self.tables:
            raise InputError(f"there is no table {name}; expected {', '.join(self.tables)}")
        table = self.tables[name]
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return [row for row in rows if not settings or row["setting"] in settings]

    def number(self, name: str, variant: str, setting: str, column: str) -> float:
        """Return one number of a table."""
        for row in self.rows(name, (setting,)):
            if row["variant"] == variant and isinstance(row[column], int | float):
                return float(row[column])  # type: ignore[arg-type]
        raise InputError(f"{name} has no number at {variant}, {setting}, {column}")

    def values(
        self, name: str, column: str, settings: Sequence[str] = (), per: str = ""
    ) -> list[float]:
        """Return the numbers of a column, divided by those of `per` in the same rows."""
        pairs = [(row[column], row[per] if per else 1.0) for row in self.rows(name, settings)]
        return [
            a / b for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float)
        ]

    def between_settings(
        self, name: str, column: str, over: Sequence[str], under: Sequence[str]
    ) -> list[float]:
        """Return a column in the settings `over`, divided by itself in the settings `under`."""
        pairs = zip(self.values(name, column, over), self.values(name, column, under), strict=True)
        return [a / b for a, b in pairs]

    def change(self, experiment: str, change: str, row: str, variant: str) -> float:
        """Return one number of the block that `one_change` printed."""
        file = self.printed / f"one_change-{experiment}.txt"
        if not file.is_file():
            raise FileError(f"{file} is not there; it holds what one_change {experiment} printed")
        block = ""
        for line in file.read_text(encoding="utf-8").splitlines():
            label, cells = line[:30].strip(), line[30:].split()
            block = label if tuple(cells) == ROWS else block
            if (block, label) == (variant, change):
                return float(cells[ROWS.index(row)])
        raise InputError(f"{file.name} has no line {change!r} of {variant}")

    def off(self, name: str) -> list[float]:
        """Return the factors by which regrets are too large or too small, if beyond FACTOR."""
        ratios = [ratio for ratio in self.values(f"{name}-regret", "as / paper") if is_off(ratio)]
        return [max(ratio, 1 / ratio) for ratio in ratios]

    def below_baseline(self, name: str, column: str) -> int:
        """Return the number of cells in which the method loses less than its variant's baseline."""
        rows = self.rows(f"{name}-regret")
        poor = {row["variant"]: row[column] for row in rows if row["setting"] == "Baseline"}
        values = [(row[column], poor[row["variant"]]) for row in rows]
        return sum(isinstance(a, float) and isinstance(b, float) and a < b for a, b in values)


def is_off(ratio: TableCell) -> bool:
    """Return whether a ratio to the paper's number is beyond FACTOR, either way."""
    return isinstance(ratio, float) and not 1 / FACTOR <= ratio <= FACTOR


def digits(value: float, number: int = 2) -> str:
    """Return a number as text with this many significant digits, and no exponent."""
    rounded = float(f"{value:.{number}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (number - 1) else f"{rounded:.{number}g}"


def in_words(count: int) -> str:
    """Return a count as text, up to ten as a word."""
    return WORDS[count] if count < len(WORDS) else str(count)


def span(values: Iterable[float], number: int = 2) -> str:
    """Return the range of values as text: ``0.94 to 1.03``."""
    ordered = sorted(values)
    low, high = digits(ordered[0], number), digits(ordered[-1], number)
    return low if low == high else f"{low} to {high}"


def between(values: Iterable[float], low: float, high: float) -> list[float]:
    """Return the values from `low` to `high`."""
    return [value for value in values if low <= value <= high]


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    marks = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, marks, *lines))


def _figure(results: Results, name: str, caption: str) -> str:
    """Return a picture with its caption below and an alternative text."""
    panels = panels_of(results, name)
    if not panels:
        return NOT_RUN
    alt = f"{panels[0].title.partition(',')[0]}, our curves in {len(panels)} panels"
    return f"![{alt}](images/{name}.png)\n\n*{caption}*"


def _output(file: Path) -> str:
    """Return the output of a study as a code block."""
    if not file.is_file():
        return NOT_RUN
    return f"```text\n{file.read_text(encoding='utf-8').rstrip()}\n```"


def _kind(panel: ResultFigure) -> tuple[str, bool, bool]:
    return panel.y_label, panel.name.endswith("-baseline"), "-best-" in panel.name


if __name__ == "__main__":
    run_study(command)
