"""Instrument strength in every cell of the paper's three tables, beside the paper's number.

Run it with ``python -m ivvi_reproduction.instrument_strength``; ``--ratings`` names MovieLens 1M
(the paper's data), without it the recommender cells use a synthetic stand-in and are not
comparable. See docs/reproduction.md for how each table is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import typer

from ivvi.diagnostics import strength
from ivvi.features.design import Design
from ivvi.features.feature_map import parse_features
from ivvi.moments import compute_moments
from ivvi.simulators import ConfoundedEnv
from ivvi.simulators.catalogue import load_factors, make_env
from ivvi_reproduction.specs import chosen_experiments, read_experiment, read_table
from ivvi_reproduction.study import Force, Json, check, each, run_study, tell


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: where it stands, what the paper prints there, and its last digit."""

    experiment: str
    simulator: str
    dim: int | None
    setting: str
    paper: float
    digit: float


@dataclass(frozen=True, slots=True)
class Record:
    """A cell as measured: mean and standard deviation over seeds, one log each.

    `without_zero` leaves the numerical zero of an unidentified direction out of the mean
    of the five smallest eigenvalues; it is the honest figure where there is one.
    """

    cell: Cell
    mean: float
    sd: float
    without_zero: float
    seeds: int
    data: str

    @property
    def deviation(self) -> float:
        """Distance from what the paper may have rounded, in seed standard deviations."""
        gap = abs(self.mean - self.cell.paper) - self.cell.digit / 2
        return max(gap, 0.0) / self.sd if self.sd > 0 else math.inf


def cells(experiment: str = "all") -> Iterator[Cell]:
    """List the cells of an experiment (``linear``, ``nonlinear``, ``movielens``, ``all``)."""
    for name in chosen_experiments(experiment):
        table = read_table(f"{name}-strength")
        for setting, row in table.numbers.items():
            for variant, paper in zip(read_experiment(name).variants, row, strict=True):
                at = (variant.simulator, variant.dim, setting)
                yield Cell(name, *at, paper, table.digit)


def measure(cell: Cell, seeds: Iterable[int], ratings: Any = None) -> Record:
    """Simulate the cell's log once for each seed and average the strength."""
    env = make_env(cell.simulator, dim=cell.dim, setting=cell.setting, ratings=ratings)
    found = np.array([_strength(env, cell.experiment, seed) for seed in seeds])
    mean, without_zero = found.mean(axis=0)
    sd = float(found[:, 0].std(ddof=1)) if len(found) > 1 else math.nan
    return Record(cell, float(mean), sd, float(without_zero), len(found), env.world.label)


def _strength(env: ConfoundedEnv, experiment: str, seed: int) -> tuple[float, float]:
    """Return the paper's figure and the one without numerical zeros."""
    log = env.collect(seed=seed)
    word = "poly2" if experiment == "nonlinear" else "linear"
    moments, _ = compute_moments(log, Design.build(*parse_features(word), log.roles))
    found = strength(moments)
    if experiment == "movielens":
        return found.mean_smallest(5), found.mean_smallest(5, with_zeros=False)
    return found.mu_iv, found.mu_iv_identified


def table(records: Iterable[Record]) -> str:
    """Set the records beside the paper's numbers."""
    lines = [
        f"{'simulator':<20} {'k':>3} {'setting':<8}{'paper':>8} {'ours':>9} {'seed sd':>9} "
        f"{'off by':>8}  without zero"
    ]
    for r in records:
        dim = "" if r.cell.dim is None else str(r.cell.dim)
        extra = f"{r.without_zero:.4f}" if r.cell.experiment == "movielens" else ""
        off = f"{r.mean / r.cell.paper - 1:+.0%}" if not r.sd > 0 else f"{r.deviation:.1f} sd"
        if r.cell.experiment == "movielens":
            off = f"{r.mean / r.cell.paper - 1:+.0%}"
        lines.append(
            f"{r.cell.simulator:<20} {dim:>3} {r.cell.setting:<8}{r.cell.paper:>8} {r.mean:>9.5f} "
            f"{r.sd:>9.5f} {off:>8}  {extra}"
        )
    labels = {r.data for r in records if r.cell.experiment == "movielens"}
    lines += [f"recommender cells: {label}" for label in sorted(labels)]
    return "\n".join(lines)


def command(
    experiment: Annotated[str, typer.Argument(help="linear, nonlinear, movielens, all.")] = "all",
    seeds: Annotated[int, typer.Option(help="Logs per cell.")] = 5,
    ratings: Annotated[str | None, typer.Option(help="MovieLens 1M ratings.")] = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure instrument strength in the cells of the paper's tables."""
    check(json, force, seeds=seeds)
    wanted = list(cells(experiment))
    needed = any(cell.experiment == "movielens" for cell in wanted)
    factors = load_factors(ratings) if needed else None
    records = each("cells", wanted, lambda cell: measure(cell, range(seeds), factors))
    tell(table(records), records, json, force)


if __name__ == "__main__":
    run_study(command)
