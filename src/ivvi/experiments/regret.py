"""Regret in every cell of the paper's three tables, beside the paper's number.

Run it with ``python -m ivvi.experiments.regret``. Regret is the return of planning with the
true dynamics minus that of planning with the estimate, in the same evaluation noise. Ours
is the closed form and the default planner; least squares with the same planner stands
beside it. ``--ratings`` names MovieLens 1M (the paper's data); without it the recommender
cells use a synthetic stand-in and are not comparable.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import typer

from ivvi.actions import Actions
from ivvi.environments import ConfoundedEnv
from ivvi.errors import InputError, IvviWarning
from ivvi.evaluation import optimal_policy
from ivvi.fitting import Fit, estimate
from ivvi.planning import plan
from ivvi.simulators import load_factors, make_env
from ivvi.terminal import check_json_target, emit_json, progress, run_app

Pair = tuple[float, float]
LINEAR: dict[str, tuple[Pair, Pair, Pair]] = {
    "I": ((14.84, 1.31), (173.98, 3.97), (505.63, 8.86)),
    "II": ((4.17, 1.18), (38.30, 3.04), (290.65, 9.08)),
    "III": ((1.44, 1.30), (29.52, 2.89), (117.20, 6.48)),
    "IV": ((17.21, 1.43), (100.79, 2.92), (422.14, 18.41)),
    "V": ((8.00, 1.04), (20.97, 3.72), (290.41, 14.28)),
    "VI": ((6.36, 1.02), (19.24, 3.71), (140.58, 4.23)),
}
"""Table 3 of the paper, k = 5, 10, 20: mean and +- over five logs."""
NONLINEAR: dict[str, tuple[Pair, Pair, Pair]] = {
    "I": ((2.54, 0.27), (16.04, 0.55), (35.90, 0.87)),
    "II": ((2.35, 0.35), (11.93, 0.82), (27.14, 0.77)),
    "III": ((1.73, 0.29), (6.83, 0.56), (19.98, 0.99)),
    "IV": ((3.22, 0.19), (13.25, 0.40), (27.29, 0.55)),
    "V": ((2.32, 0.16), (13.20, 0.46), (26.72, 0.53)),
    "VI": ((1.89, 0.22), (9.02, 0.41), (24.15, 0.61)),
}
"""Table 6, k = 1, 3, 5."""
MOVIELENS: dict[str, tuple[Pair, Pair]] = {
    "I": ((76.24, 81.27), (110.88, 73.90)),
    "II": ((46.20, 75.71), (89.43, 74.68)),
    "III": ((18.30, 75.32), (85.34, 81.11)),
}
"""Table 9, original and revised model."""
DIMENSIONS = {"linear": (5, 10, 20), "nonlinear": (1, 3, 5)}
FEATURES = {"linear": ("linear",), "nonlinear": ("poly2", "spline:16"), "movielens": ("linear",)}
"""Feature words tried, the paper's first and our choice last."""
EVALUATION_SEED = 1_000_003
EPISODES = 64


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: where it stands, and what the paper prints there."""

    experiment: str
    simulator: str
    dim: int | None
    setting: str
    paper: float
    paper_spread: float


@dataclass(frozen=True, slots=True)
class Record:
    """A cell as measured: the regret of each log, by what was planned with.

    `regrets` holds one list for each feature word, and `least squares` for the baseline;
    `errors` the distance of the action block of W from the truth, where that is known.
    """

    cell: Cell
    regrets: dict[str, list[float]]
    errors: dict[str, list[float]]
    optimal: float
    data: str


def cells(experiment: str = "all", dims: Sequence[int] = ()) -> Iterator[Cell]:
    """List the cells of an experiment (``linear``, ``nonlinear``, ``movielens``, ``all``)."""
    if experiment not in ("linear", "nonlinear", "movielens", "all"):
        raise InputError(f"unknown experiment {experiment!r}; linear, nonlinear, movielens or all")
    for name, table in (("linear", LINEAR), ("nonlinear", NONLINEAR)):
        if experiment in (name, "all"):
            for setting, row in table.items():
                for dim, paper in zip(DIMENSIONS[name], row, strict=True):
                    if not dims or dim in dims:
                        yield Cell(name, name, dim, setting, *paper)
    if experiment in ("movielens", "all"):
        for setting, pair in MOVIELENS.items():
            for name, paper in zip(("recommender", "recommender-revised"), pair, strict=True):
                yield Cell("movielens", name, None, setting, *paper)


def measure(
    cell: Cell, seeds: Sequence[int], *, ratings: Any = None, horizon: int | None = None
) -> Record:
    """Simulate the cell's log once for each seed, fit, plan and evaluate."""
    env = make_env(cell.simulator, dim=cell.dim, setting=cell.setting, ratings=ratings)
    best = _returns(env, optimal_policy(env, horizon=horizon), horizon)
    words = FEATURES[cell.experiment]
    regrets: dict[str, list[float]] = {name: [] for name in (*words, "least squares")}
    errors: dict[str, list[float]] = {name: [] for name in regrets}
    for seed in seeds:
        log = env.collect(seed=seed)
        for name in regrets:
            method = "least-squares" if name == "least squares" else "exact"
            word = words[0] if name == "least squares" else name
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IvviWarning)
                fit = estimate(log, word, method=method, allow_unidentified=True)
                policy = _plan(fit, env, horizon)
            regrets[name].append(float(np.mean(best - _returns(env, policy, horizon))))
            if env.world.W_star is not None:
                errors[name].append(_action_error(fit, env.world.W_star))
    return Record(cell, regrets, errors, float(best.mean()), env.world.label)


def _plan(fit: Fit, env: ConfoundedEnv, horizon: int | None) -> Any:
    actions = Actions.of_space(env.world.actions)
    return plan(fit.model, env.reward, actions, horizon=horizon or env.world.horizon)


def _returns(env: ConfoundedEnv, policy: Any, horizon: int | None) -> np.ndarray:
    return env.rollout(policy, episodes=EPISODES, horizon=horizon, seed=EVALUATION_SEED).returns


def _action_error(fit: Fit, truth: np.ndarray) -> float:
    actions = [fit.estimate.layout.phi_names.index(name) for name in fit.roles.action]
    return float(np.linalg.norm(fit.W[:, actions] - truth[:, actions]))


def table(records: Sequence[Record]) -> str:
    """Set the records beside the paper's numbers."""
    lines = [
        f"{'simulator':<20}{'k':>3} {'setting':<8}{'paper':>16}  "
        f"{'ours':>18}  {'paper features':>18}  {'least squares':>18}"
    ]
    for r in records:
        words = FEATURES[r.cell.experiment]
        dim = "" if r.cell.dim is None else str(r.cell.dim)
        first = _spread(r.regrets[words[0]]) if len(words) > 1 else "the same"
        lines.append(
            f"{r.cell.simulator:<20}{dim:>3} {r.cell.setting:<8}"
            f"{f'{r.cell.paper:g} +- {r.cell.paper_spread:g}':>16}  "
            f"{_spread(r.regrets[words[-1]]):>18}  {first:>18}  "
            f"{_spread(r.regrets['least squares']):>18}"
        )
    labels = {r.data for r in records if r.cell.experiment == "movielens"}
    lines += [f"recommender cells: {label}" for label in sorted(labels)]
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    """Write a mean and the standard error over logs."""
    if len(values) < 2:
        return f"{values[0]:.3g}"
    return f"{np.mean(values):.3g} +- {np.std(values, ddof=1) / math.sqrt(len(values)):.2g}"


def command(
    experiment: Annotated[str, typer.Argument(help="linear, nonlinear, movielens, all.")] = "all",
    seeds: Annotated[int, typer.Option(help="Logs per cell.")] = 5,
    dims: Annotated[str, typer.Option(help="Only these dimensions, as 5,10.")] = "",
    settings: Annotated[str, typer.Option(help="Only these settings, as I,III.")] = "",
    ratings: Annotated[str | None, typer.Option(help="MovieLens 1M ratings.")] = None,
    json: Annotated[str | None, typer.Option("--json", help="Write JSON; - is stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")] = False,
) -> None:
    """Measure regret in the cells of the paper's tables."""
    check_json_target(json, force=force)
    if seeds < 1:
        raise InputError(f"--seeds is {seeds}; at least 1 is wanted")
    kept = set(filter(None, settings.split(",")))
    only = [int(d) for d in filter(None, dims.split(","))]
    wanted = [c for c in cells(experiment, only) if not kept or c.setting in kept]
    needed = any(cell.experiment == "movielens" for cell in wanted)
    factors = load_factors(ratings) if needed else None
    records = []
    with progress("cells", len(wanted)) as bar:
        for cell in wanted:
            records.append(measure(cell, range(seeds), ratings=factors))
            if bar:
                bar(1)
    if json != "-":
        print(table(records))
    emit_json([asdict(record) for record in records], json, force=force)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    run_app(app)
