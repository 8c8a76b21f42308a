"""The paper's tables beside ours, from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi_reproduction.cell_statistics import CellStatistics, Key, Spread
from ivvi_reproduction.results import ResultTable, TableCell
from ivvi_reproduction.specs import COLUMNS, Experiment, TableSpec, Variant

REGRET = (
    *("variant", "setting", "paper", "paper ±", "as the paper", "as ±", "their estimate"),
    *("best", "best ±", "as / paper", "descent"),
)
ESTIMATES = (
    *("variant", "setting", "theirs to W*", "ours to W*", "sd", "ours / theirs"),
    *("ours to theirs", "closed form to W*", "descent"),
)
SECONDS = ("variant", "setting", "paper", "as the paper", "as ±", "best", "best ±")
STRENGTH = (
    *("variant", "setting", "paper", "ours", "sd", "lowest log", "highest log"),
    *("ours / paper", "off by, sd", "without the zero"),
)
NOTES = {
    "regret": (
        "Return of planning with the true dynamics minus return of planning with the estimate, by "
        "the same planner in the same evaluation noise; mean over logs, ± half of a 95% interval "
        "(Student's t over logs); what the paper's ± is, it does not say. *As the paper* and "
        "*their estimate* share a planner, *best* has another one (on MovieLens the same). Of logs "
        "whose descent diverged there is no policy."
    ),
    "estimates": (
        "Frobenius norms, means over logs; sd over logs. *Theirs* are the matrices that the "
        "authors released, *ours* those of the same loop on our logs (of the baseline, least "
        "squares), as is the closed form where there is a column of it."
    ),
    "seconds": "CPU seconds of the estimation phase, without simulation and compilation.",
    "strength": (
        "Off by: distance from the interval that rounds to the paper's digits, in standard "
        "deviations over logs, which few logs give only roughly."
    ),
}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row to fill: the table, the statistics, the cell, and the paper's numbers there."""

    spec: TableSpec
    experiment: Experiment
    measures: CellStatistics
    variant: Variant
    label: str
    printed: Any

    def key(self, column: str, who: str = "ivvi") -> Key:
        """Return the cell of a column; the baseline's cell has its own setting."""
        setting = self.experiment.baseline if who == "baseline" else self.label
        return self.variant.key, column, who, setting


def make_table(
    spec: TableSpec, experiment: Experiment, measures: CellStatistics, command: str
) -> ResultTable:
    """Return one table of the paper, beside our numbers."""
    fill, columns = FILLED[spec.measure]
    to_fill = [
        TableRow(spec, experiment, measures, variant, label, numbers[i])
        for i, variant in enumerate(experiment.variants)
        for label, numbers in spec.numbers.items()
    ]
    rows = tuple((row.variant.label, row.label, *fill(row)) for row in to_fill)
    title = f"{spec.title} ({spec.paper})"
    return ResultTable(spec.name, title, columns, rows, NOTES[spec.measure], command)


def make_estimates_table(
    experiment: Experiment, measures: CellStatistics, command: str
) -> ResultTable | None:
    """Return our estimates beside those that the authors released; None where there are none."""
    rows = tuple(
        (variant.label, label, *_estimates(experiment, measures, variant.key, label))
        for variant in experiment.variants
        for label in ("Baseline", *experiment.settings)
        if label in experiment.released.get(variant.key, {})
    )
    if not rows:
        return None
    name, title = f"{experiment.name}-estimates", f"Estimates, {experiment.title.lower()}"
    return ResultTable(name, title, ESTIMATES, rows, NOTES["estimates"], command)


def _estimates(
    experiment: Experiment, measures: CellStatistics, variant: str, label: str
) -> Iterator[TableCell]:
    is_baseline = label == "Baseline"
    cell = ("baseline", experiment.baseline) if is_baseline else ("ivvi", label)

    def spread(column: str, of: str) -> Spread | None:
        return Spread.of(measures.values((variant, column, *cell), of=of))

    theirs, ours = spread("authors", "distance"), spread("paper", "distance")
    has_closed = experiment.columns["best"].method == "exact" and not is_baseline
    closed = spread("best", "distance") if has_closed else None
    yield _pair(theirs)[0]
    yield _pair(ours)[0]
    yield None if ours is None else _rounded(ours.sd)
    yield None if ours is None or theirs is None else _rounded(ours.mean / theirs.mean)
    yield _pair(spread("paper", "from_authors"))[0]
    yield _pair(closed)[0]
    yield measures.descent((variant, "paper", *cell)) or None


def _regret(row: TableRow) -> Iterator[TableCell]:
    policy = "baseline" if row.label == "Baseline" else "ivvi"
    paper, half = row.printed
    mine, theirs, best = (
        Spread.of(row.measures.regrets(row.key(column, policy))) for column in COLUMNS
    )
    descent = row.measures.descent(row.key("paper", policy)) or None
    yield from (paper, half)
    yield from _pair(mine) if mine else (descent, None)
    yield _pair(theirs)[0]
    yield from _pair(best)
    yield None if mine is None else _rounded(mine.mean / paper)
    yield descent


def _seconds(row: TableRow) -> Iterator[TableCell]:
    yield row.printed
    for column in ("paper", "best"):
        yield from _pair(Spread.of(row.measures.seconds(row.key(column))))


def _strength(row: TableRow) -> Iterator[TableCell]:
    several = row.experiment.needs_ratings  # the paper averages the smallest eigenvalues there
    columns = row.experiment.columns  # of the same features, and so of the same strength
    comparable = [name for name in columns if columns[name].features == columns["paper"].features]
    candidates = [row.measures.values(row.key(name), of="strength") for name in comparable]
    values = max(candidates, key=len)
    strengths = [value["smallest" if several else "mu_iv"] for value in values]
    spread = Spread.of(strengths)
    yield row.printed
    if spread is None:
        yield from (None,) * 7
        return
    for value in (spread.mean, spread.sd, min(strengths), max(strengths)):
        yield _rounded(value)
    yield _rounded(spread.mean / row.printed)
    yield _rounded(deviation(spread, row.printed, row.spec.digit))
    honest = float(np.mean([value["smallest_nonzero"] for value in values]))
    yield _rounded(honest) if several else None


def deviation(spread: Spread, paper: float, digit: float) -> float:
    """Return the distance from what the paper may have rounded, in deviations over logs."""
    gap = max(abs(spread.mean - paper) - digit / 2, 0.0)
    return gap / spread.sd if spread.sd > 0 else math.nan


def _pair(spread: Spread | None) -> tuple[TableCell, TableCell]:
    return (None, None) if spread is None else (_rounded(spread.mean), _rounded(spread.half))


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


FILLED: dict[str, tuple[Callable[[TableRow], Iterator[TableCell]], tuple[str, ...]]] = {
    "regret": (_regret, REGRET),
    "seconds": (_seconds, SECONDS),
    "strength": (_strength, STRENGTH),
}
"""The functions that compute the cells of a row, and the columns that they fill."""
