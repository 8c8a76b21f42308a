"""The paper's tables beside ours, from records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ivvi.experiments.measures import Measures, Spread
from ivvi.experiments.results import Cell, ResultTable
from ivvi.experiments.specs import Experiment, TableSpec, Variant

Row = tuple[Cell, ...]
REGRET = (
    *("variant", "setting", "paper", "paper ±", "as the paper", "as ±", "descent"),
    *("best", "best ±", "as / paper", "best / paper"),
)
SECONDS = ("variant", "setting", "paper", "as the paper", "as ±", "best", "best ±")
STRENGTH = ("variant", "setting", "paper", "ours", "sd", "off by, sd", "without the zero")
NOTES = {
    "regret": (
        "Return of planning with the true dynamics minus return of planning with the estimate, by "
        "the same planner in the same evaluation noise; mean over logs, ± half of a 95% interval "
        "(Student's t over logs). Of logs whose descent diverged there is no policy."
    ),
    "seconds": "CPU seconds of the estimation phase, without simulation and compilation.",
    "strength": (
        "Off by: distance from the interval that rounds to the paper's digits, in standard "
        "deviations over logs."
    ),
}


def make_table(
    spec: TableSpec, experiment: Experiment, measures: Measures, command: str
) -> ResultTable:
    """Fill one table of the paper."""
    make, columns = MAKERS[spec.measure]
    rows = [
        (variant.label, label, *make(spec, experiment, measures, variant, label, numbers[i]))
        for i, variant in enumerate(experiment.variants)
        for label, numbers in spec.numbers.items()
    ]
    title = f"{spec.title} ({spec.paper})"
    return ResultTable(spec.name, title, columns, tuple(rows), NOTES[spec.measure], command)


def _regret(
    spec: TableSpec, of: Experiment, found: Measures, variant: Variant, label: str, printed: Any
) -> Iterator[Cell]:
    who, setting = ("baseline", of.baseline) if label == "Baseline" else ("ivvi", label)
    paper, half = printed
    mine = {
        column: Spread.of(found.regrets((variant.key, column, who, setting)))
        for column in ("paper", "best")
    }
    yield from (paper, half)
    descent = found.descent((variant.key, "paper", who, setting))
    yield from _pair(mine["paper"]) if mine["paper"] else (descent or None, None)
    yield descent or None
    yield from _pair(mine["best"])
    for column in ("paper", "best"):
        spread = mine[column]
        yield None if spread is None else _rounded(spread.mean / paper)


def _seconds(
    spec: TableSpec, of: Experiment, found: Measures, variant: Variant, label: str, paper: Any
) -> Iterator[Cell]:
    yield paper
    for column in ("paper", "best"):
        yield from _pair(Spread.of(found.seconds((variant.key, column, "ivvi", label))))


def _strength(
    spec: TableSpec, of: Experiment, found: Measures, variant: Variant, label: str, paper: Any
) -> Iterator[Cell]:
    values = found.values((variant.key, "paper", "ivvi", label), of="strength")
    which = "smallest" if of.name == "movielens" else "mu_iv"
    spread = Spread.of([value[which] for value in values])
    yield paper
    if spread is None:
        yield from (None,) * 4
        return
    yield _rounded(spread.mean)
    yield _rounded(spread.sd)
    yield _rounded(deviation(spread, paper, spec.digit))
    honest = Spread.of([value["smallest_nonzero"] for value in values])
    yield _rounded(honest.mean) if honest and of.name == "movielens" else None


def deviation(spread: Spread, paper: float, digit: float) -> float:
    """Return the distance from what the paper may have rounded, in deviations over logs."""
    gap = max(abs(spread.mean - paper) - digit / 2, 0.0)
    return gap / spread.sd if spread.sd > 0 else math.nan


def _pair(spread: Spread | None) -> tuple[Cell, Cell]:
    return (None, None) if spread is None else (_rounded(spread.mean), _rounded(spread.half))


def _rounded(value: float, digits: int = 4) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


MAKERS: dict[str, tuple[Callable[..., Iterator[Cell]], tuple[str, ...]]] = {
    "regret": (_regret, REGRET),
    "seconds": (_seconds, SECONDS),
    "strength": (_strength, STRENGTH),
}
"""How the cells of a row are made, and the columns that they fill."""
