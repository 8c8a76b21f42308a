"""How often 95% intervals contain the slopes of a panel with fixed effects.

Run it with ``python -m ivvi_reproduction.panel_coverage``. Units differ by alpha, which is in
states, actions and outcomes; a confounder of one step moves the action and the outcome.

- *exogenous*: y = 0.5 x - 0.5 a + alpha + e, where x has its own course and e lasts (0.5 of it is
  left a step later). Absorbing the units is unbiased for any number of steps.
- *lagged*: x' = 0.5 x - 0.5 a + alpha + e, where x' is the state of the next row. Absorbing the
  units is biased by about one over the number of steps (Nickell); the half-panel jackknife takes
  the first order of it out, differences have none of it.
- *late*: the exogenous design with an instrument that lasts (0.8 of it is left a step later) and an
  action that has its effect again a step later. Absorbing is biased, and the fit should warn
  (*told*) that an instrument of the step before is related to the outcome.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from ivvi.errors import IvviWarning
from ivvi.fitting import estimate
from ivvi.logs import Log, read_logs
from ivvi.logs.log import Progress
from ivvi_reproduction.study import (
    Force,
    Json,
    Logs,
    Seed,
    check,
    coverage_cell,
    coverage_table,
    each_log,
    no_bar,
    run_study,
    tell,
)

SLOPES = {"x": 0.5, "a": -0.5}
UNITS, STEPS, BEFORE = 200, (5, 10, 50), 20
"""Units, observed steps, and steps before them, after which states no longer drift."""
ABSORBED: dict[str, Any] = {"absorb": "episode"}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "exogenous": {"absorbed": ABSORBED},
    "lagged": {
        "absorbed": ABSORBED,
        "half-panel": ABSORBED | {"half_panel": True},
        "differences": {"difference": True},
    },
    "late": {"absorbed": ABSORBED},
}
OTHER_STEPS = "after the effects of units"
"""Words of the warning that an instrument of another step is related to the outcome."""


@dataclass(frozen=True, slots=True)
class SlopeCoverage:
    """How one slope was estimated in many panels: bias, spread, mean s.e. and coverage.

    `told` is the share of panels with a warning about an instrument of another step.
    """

    design: str
    steps: int
    way: str
    slope: str
    panels: int
    bias: float
    spread: float
    se: float
    coverage: float
    told: float


def draw_panel(design: str, units: int, steps: int, rng: np.random.Generator) -> Log:
    """Draw a panel of one of the three designs."""
    alpha = rng.normal(size=units)
    x, e = 2 * alpha + rng.normal(size=units), rng.normal(size=units)
    lagged, late = design == "lagged", design == "late"
    z, before = np.zeros((2, units))
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("step", "x", "a", "z", "y")}
    for t in range(-BEFORE, steps + lagged):
        shock, new = rng.normal(size=(2, units))
        z = 0.8 * z + 0.6 * new if late else new
        e = shock if lagged else 0.5 * e + np.sqrt(0.75) * shock
        a = 0.8 * z + 0.5 * e + rng.normal(size=units) + alpha
        y = SLOPES["x"] * x + SLOPES["a"] * (a + late * before) + alpha + e
        before = a
        for name, values in zip(columns, (np.full(units, t), x, a, z, y), strict=True):
            if t >= 0:
                columns[name].append(values)
        x = y if lagged else 0.5 * x + alpha + rng.normal(size=units)
    rows = {name: np.array(values).T.ravel() for name, values in columns.items()}
    rows["episode"] = np.repeat(np.arange(units), steps + lagged)
    roles: dict[str, Any] = {"state": "x", "action": "a", "instrument": "z"}
    return read_logs(rows, **roles | ({} if lagged else {"next_state": "y"}))


def measure(
    design: str,
    steps: int,
    panels: int,
    seed: int = 0,
    *,
    units: int = UNITS,
    bar: Progress = no_bar,
) -> list[SlopeCoverage]:
    """Fit many panels of a design in every way, and count the intervals that hold the truth."""
    fits: dict[tuple[str, str], list[tuple[float, float, bool, bool]]] = {}
    for i in range(panels):
        log = draw_panel(design, units, steps, np.random.default_rng([seed, steps, i]))
        for method, settings in WAYS[design].items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IvviWarning)  # the bias is intended
                fit = estimate(log, **settings)
            warned = any(OTHER_STEPS in text for text in fit.doubts)
            for row in fit.records():
                if (truth := SLOPES.get(row["feature"])) is not None:
                    covers = row["low"] <= truth <= row["high"]
                    values = (row["coefficient"] - truth, row["se"], covers, warned)
                    fits.setdefault((method, row["feature"]), []).append(values)
        bar(1)
    records = []
    for (method, slope), rows in fits.items():
        gap, se, covers, warned = np.array(rows, dtype=np.float64).T
        means = (gap.mean(), gap.std(), se.mean(), covers.mean(), warned.mean())
        parts = (float(part) for part in means)
        records.append(SlopeCoverage(design, steps, method, slope, panels, *parts))
    return records


def table(records: Iterable[SlopeCoverage]) -> str:
    """Return the coverage, bias, spread and standard errors of each slope as a text table."""
    records = list(records)
    head = (
        f"{'steps':>5}  {'states':<10} {'fit':<12} {'slope':<5}"
        f"{'bias':>9}{'spread':>9}{'mean se':>9}{'coverage':>10}{'told':>7}"
    )
    lines = [
        f"{r.steps:>5}  {r.design:<10} {r.way:<12} {r.slope:<5}"
        f"{r.bias:>+9.4f}{r.spread:>9.4f}{r.se:>9.4f}"
        f"{coverage_cell(r.coverage, r.panels, 10)}{r.told:>7.1%}"
        for r in records
    ]
    return coverage_table(head, lines, records[0].panels, f"{UNITS} units")


def command(
    logs: Logs = 400,
    steps: Annotated[list[int] | None, typer.Option(help="Steps of a unit; may repeat.")] = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure how often 95% intervals hold the slopes of a panel with fixed effects."""
    check(json, force, logs=logs, **{"steps": min(steps or STEPS)})
    cases = [(design, count) for count in steps or STEPS for design in WAYS]
    records: list[SlopeCoverage] = each_log(
        cases, lambda case, n, seed, bar: measure(*case, n, seed, bar=bar), logs, seed
    )
    tell(table(records), records, json, force)


if __name__ == "__main__":
    run_study(command)
