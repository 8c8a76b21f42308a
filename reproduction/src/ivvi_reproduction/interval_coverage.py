"""How often the interval that a fit recommends contains the true effect, for many designs.

Run it with ``python -m ivvi_reproduction.interval_coverage``. Every log is fitted with the
defaults. The study counts how often the true effect is in the interval that the summary recommends
(Wald's, or the one that is valid with a weak instrument), and how often it is in Wald's. The
designs: weekly instruments that 40 stores share, also where they and the shocks last from week to
week, and where the stores differ by constants; those that only the stores of a region share; a
policy that states adopt one after another, and regional shifts, in logs of people that name neither
states nor regions; 15 to 80 clusters of equal and of Pareto sizes; strong endogeneity with
heteroskedastic errors; 30 instruments, weak and less weak; errors of heavy tails; weights of heavy
tails.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer

from ivvi._io.arrays import Floats
from ivvi.errors import IvviWarning
from ivvi.fitting import Fit, estimate
from ivvi.fitting.inference_tables import half_widths
from ivvi.logs import Log, read_logs
from ivvi.logs.log import Progress
from ivvi_reproduction.study import (
    Force,
    Json,
    Logs,
    Seed,
    check,
    each_log,
    no_bar,
    run_study,
    tell,
    with_heading,
)

EFFECT = -0.5
STORES, ROWS = 40, 20
REGIONS, WEEKS = 8, 40
STATES, PEOPLE, YEARS = 50, 8, 15
MARKETS = 40
PARETO = 1.2
"""Exponent of the sizes of uneven clusters; their variance is infinite."""
Draw = Callable[[np.random.Generator], Log]


@dataclass(frozen=True, slots=True)
class CoverageDesign:
    """A name, and a function that draws a log in which the effect of a0 on next_x0 is -0.5.

    Effects of the column `absorb` are absorbed, if there is one.
    """

    name: str
    draw: Draw
    absorb: str = ""


@dataclass(frozen=True, slots=True)
class IntervalCoverage:
    """Coverage in a design: of the recommended interval, and of Wald's.

    `robust` is how often another interval than Wald's was recommended, `length` the median
    length of Wald's, `by` how often errors were clustered by which columns.
    """

    design: str
    logs: int
    recommended: float
    wald: float
    robust: float
    length: float
    by: dict[str, int] = field(default_factory=dict)


def weekly(weeks: int, lasting: float = 0.0, differ: float = 0.0) -> Draw:
    """One instrument and a shock that all stores share in a week, and that may last.

    Outcomes of stores may `differ` by constants, which are no part of their states.
    """

    def draw(rng: np.random.Generator) -> Log:
        n, week = STORES * weeks, np.tile(np.arange(weeks), STORES)
        shock, z = series = rng.normal(size=(2, weeks))
        for t in range(1, weeks):
            series[:, t] = lasting * series[:, t - 1] + np.sqrt(1 - lasting**2) * series[:, t]
        e = np.sqrt(0.3) * shock[week] + np.sqrt(0.7) * rng.normal(size=n)
        store = np.repeat(np.arange(STORES), weeks)
        if differ:
            e = e + differ * rng.normal(size=STORES)[store]
        return _log(rng, z[week][:, None], e, episode=store, step=week)

    return draw


def regional(rng: np.random.Generator) -> Log:
    """One instrument and a shock of which the stores of a region share all and half in a week."""
    store, week = np.divmod(np.arange(STORES * WEEKS), WEEKS)
    z, shock = rng.normal(size=(2, REGIONS, WEEKS))[:, store % REGIONS, week]
    e = np.sqrt(0.5) * (shock + rng.normal(size=len(store)))
    return _log(rng, z[:, None], e, episode=store, step=week)


def staggered(rng: np.random.Generator) -> Log:
    """A policy that states adopt one after another, and shocks that people of a state share.

    The log names people and not their states; all years have effects of their own.
    """
    person, year = np.divmod(np.arange(STATES * PEOPLE * YEARS), YEARS)
    state = person % STATES
    adopted = rng.integers(1, YEARS + 1, size=STATES)
    z = (year >= adopted[state]).astype(float)
    shock = rng.normal(size=STATES)[state] + rng.normal(size=(STATES, YEARS))[state, year]
    e = np.sqrt(0.1) * shock + np.sqrt(0.8) * rng.normal(size=len(person))
    e = e + 0.3 * rng.normal(size=YEARS)[year]
    return _log(rng, z[:, None], e, episode=person, step=year)


def shift_share(rng: np.random.Generator) -> Log:
    """One instrument that people of a region share at every step, as they do part of the shocks."""
    person, step = np.divmod(np.arange(MARKETS * PEOPLE * 10), 10)
    market = person % MARKETS
    z, shock = rng.normal(size=(2, MARKETS, 10))[:, market, step]
    z = np.sqrt(0.5) * (z + rng.normal(size=MARKETS)[market])
    lasting = rng.normal(size=MARKETS)[market]
    e = np.sqrt(0.1) * (shock + lasting) + np.sqrt(0.8) * rng.normal(size=len(person))
    return _log(rng, z[:, None], e, episode=person, step=step)


def clusters(count: int, *, pareto: bool) -> Draw:
    """Return a design in which rows of a cluster share 0.3 of instruments and errors."""

    def draw(rng: np.random.Generator) -> Log:
        sizes = np.full(count, ROWS)
        if pareto:
            wild = 1 + rng.pareto(PARETO, count)
            sizes = np.maximum(2, np.round(ROWS * wild / wild.mean())).astype(int)
        number = np.repeat(np.arange(count), sizes)
        both = rng.normal(size=(2, count))[:, number]
        z, e = np.sqrt(0.3) * both + np.sqrt(0.7) * rng.normal(size=(2, len(number)))
        step = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return _log(rng, z[:, None], e, episode=number, step=step)

    return draw


def endogenous(rng: np.random.Generator) -> Log:
    """400 rows, endogeneity .9, errors whose spread grows with the instrument."""
    z, v, w = rng.normal(size=(3, 400))
    e = (0.9 * v + np.sqrt(1 - 0.81) * w) * np.sqrt(0.5 + 0.5 * z**2)
    a = 0.2 * z + v * np.sqrt(0.5 + 0.5 * z**2)
    return _log(rng, z[:, None], e, action=a)


def many_instruments(strength: float) -> Draw:
    """Return a design of 30 instruments, 1,000 rows, and a first-stage F of about `strength`."""

    def draw(rng: np.random.Generator) -> Log:
        z, e, w = rng.normal(size=(1000, 30)), rng.normal(size=1000), rng.normal(size=1000)
        pi = np.sqrt((strength - 1) / 1000)
        a = z.sum(axis=1) * pi + 0.6 * e + 0.8 * w
        return _log(rng, z, e, action=a)

    return draw


def heavy(rng: np.random.Generator) -> Log:
    """400 rows whose errors have Student's t with 3 degrees of freedom."""
    z, e = rng.normal(size=400), rng.standard_t(3, size=400)
    return _log(rng, z[:, None], e)


def weighted(rng: np.random.Generator) -> Log:
    """Probability weights of which a few are huge: Pareto's, of infinite variance."""
    z, e = rng.normal(size=(2, 800))
    return _log(rng, z[:, None], e, weight=rng.pareto(1.5, size=800) + 0.2)


def _log(
    rng: np.random.Generator,
    z: Floats,
    e: Floats,
    *,
    action: Floats | None = None,
    **keys: np.ndarray,
) -> Log:
    """Return a log of x' = -a / 2 + .3 x + e; the action follows z, x and e unless it is given."""
    x, noise = rng.normal(size=(2, len(e)))
    a = z.sum(axis=1) + 0.5 * x + 0.7 * e + noise if action is None else action
    columns = {**keys, "x0": x, "a0": a, "next_x0": EFFECT * a + 0.3 * x + e}
    weight = "weight" if "weight" in keys else None
    return read_logs(
        columns | {f"z{i}": column.copy() for i, column in enumerate(z.T)}, weight=weight
    )


DESIGNS = (
    CoverageDesign("weekly z, 30 weeks", weekly(30)),
    CoverageDesign("weekly z, 60 weeks", weekly(60)),
    CoverageDesign("weekly z that lasts", weekly(60, lasting=0.7)),
    CoverageDesign("weekly z, stores differ", weekly(30, lasting=0.5, differ=2.0)),
    CoverageDesign("regional z", regional),
    CoverageDesign("staggered adoption", staggered, absorb="step"),
    CoverageDesign("regional shift-share", shift_share),
    *(
        CoverageDesign(f"{count} clusters, {word}", clusters(count, pareto=word == "Pareto"))
        for word in ("equal", "Pareto")
        for count in (15, 30, 80)
    ),
    CoverageDesign("endogeneity .9", endogenous),
    CoverageDesign("30 instruments, F 3", many_instruments(3.0)),
    CoverageDesign("30 instruments, F 11", many_instruments(11.0)),
    CoverageDesign("t3 errors", heavy),
    CoverageDesign("a few huge weights", weighted),
)


def intervals_hold(fit: Fit) -> tuple[bool, bool, float, bool]:
    """Return if the recommended interval and Wald's hold the truth, Wald's length, and which."""
    j = fit.estimate.design.phi_names.index("a0")
    w, half = float(fit.W[0, j]), float(half_widths(fit.estimate)[0, j] * fit.se[0, j])
    wald = abs(w - EFFECT) <= half
    facts = fit.to_json()
    interval = ((facts.get("robust_interval") or {}).get("next_x0") or {}).get("a0") or {}
    if facts.get("recommended") != "robust" or "intervals" not in interval:
        return wald, wald, 2 * half, False
    ends = [
        (-np.inf if low is None else low, np.inf if high is None else high)
        for low, high in interval["intervals"]
    ]
    return any(low <= EFFECT <= high for low, high in ends), wald, 2 * half, True


def measure(
    design: CoverageDesign, logs: int, seed: int = 0, bar: Progress = no_bar
) -> IntervalCoverage:
    """Draw logs of a design, fit each by default, and count the intervals that hold the truth."""
    outcomes: list[tuple[bool, bool, float, bool]] = []
    by: dict[str, int] = {}
    for i in range(logs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IvviWarning)  # weak, or of few clusters, by design
            fit = estimate(design.draw(np.random.default_rng([seed, i])), absorb=design.absorb)
        outcomes.append(intervals_hold(fit))
        named = " and ".join(name for name, _ in fit.estimate.W_cov.clusters)
        by[named or fit.estimate.W_cov.kind] = by.get(named or fit.estimate.W_cov.kind, 0) + 1
        bar(1)
    recommended, wald, length, robust = (np.array(part) for part in zip(*outcomes, strict=True))
    return IntervalCoverage(
        design.name,
        logs,
        recommended=float(recommended.mean()),
        wald=float(wald.mean()),
        robust=float(robust.mean()),
        length=float(np.median(length)),
        by=by,
    )


def table(records: Iterable[IntervalCoverage]) -> str:
    """Return the coverages, and the columns that errors were clustered by, as a text table."""
    lines = [
        f"{'design':<24}{'recommended':>12}{'Wald':>8}{'not Wald':>10}{'length':>9}  clustered by"
    ]
    for r in records:
        by = ", ".join(f"{name} {count / r.logs:.0%}" for name, count in r.by.items())
        lines.append(
            f"{r.design:<24}{r.recommended:>12.1%}{r.wald:>8.1%}{r.robust:>10.0%}"
            f"{r.length:>9.3g}  {by}"
        )
    return "\n".join(lines)


def command(
    logs: Logs = 400,
    only: Annotated[str, typer.Option(help="Only designs whose names hold this.")] = "",
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure how often the 95% interval that a fit recommends holds the true effect."""
    check(json, force, logs=logs)
    chosen = [design for design in DESIGNS if only in design.name]
    records = each_log(chosen, measure, logs, seed)
    tell(with_heading(table(records), logs, seed), records, json, force)


if __name__ == "__main__":
    run_study(command)
