"""The paper's loss figures: distance to the target against iteration, by instrument strength.

Run it with ``python -m ivvi_reproduction.loss_curves [linear | nonlinear] [--plot FILE]``. Each
iteration takes one episode as its mini-batch, and one primal and one dual step, as Algorithm 1 is
printed (its authors ran many dual steps per batch; `ivvi reproduce` does that). The loss is
|W_t - W*| in the linear setting and |W_t - W_sad| in the nonlinear one (Frobenius norms), as in the
paper, with the paper's steps and with one constant step for all cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

from ivvi._io.plotting import check_figure, make_axes, save_figure
from ivvi.errors import InputError
from ivvi.estimators.convergence import log_points
from ivvi.estimators.sgda.jax_kernel import JaxState, advance
from ivvi.estimators.sgda.schedules import PAPER, ConstantSteps, Schedule
from ivvi.estimators.two_stage_least_squares import Exact
from ivvi.features.design import Design
from ivvi.features.feature_map import parse_features
from ivvi.moments import compute_moments
from ivvi.simulators.catalogue import make_env
from ivvi_reproduction.study import Force, Json, Plot, Seed, check, measure_each, run_study, tell

DIMENSIONS = {"linear": (5, 10, 20), "nonlinear": (1, 3, 5)}
SETTINGS = ("I", "II", "III")
"""From the weakest instrument to the strongest."""
STEPS = {"paper": "the paper's steps", "constant": "steps 0.05"}
START = {"linear": 0.2, "nonlinear": 0.0}
SHOWN = (1, 10, 30, 100, 300, 1000, 3000)
"""Iterations in the table."""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """One run: the cell, the steps, the loss at iterations t, and that of the closed form."""

    experiment: str
    dim: int
    setting: str
    steps: str
    t: tuple[int, ...]
    loss: tuple[float, ...]
    closed_form: float


def run(
    experiment: str,
    dim: int,
    setting: str,
    steps: str,
    *,
    iterations: int = 1000,
    episodes: int | None = None,
    seed: int = 0,
) -> LossCurve:
    """Descend on the simulated log of one cell, an episode at a time."""
    rows, target, exact = _prepared(experiment, dim, setting, episodes, seed)
    t, path = _descend(rows, START[experiment], _schedule(experiment, dim, steps), iterations, seed)
    loss = tuple(float(np.linalg.norm(W - target)) for W in path)
    gap = float(np.linalg.norm(exact - target))
    return LossCurve(experiment, dim, setting, steps, tuple(t), loss, gap)


@lru_cache(maxsize=1)
def _prepared(
    experiment: str, dim: int, setting: str, episodes: int | None, seed: int
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Simulate a cell: Phi, Psi, Y (episodes, horizon, d), the target and the closed form."""
    env = make_env(experiment, dim=dim, setting=setting)
    log = env.collect(episodes, seed=seed)
    phi, psi = parse_features("linear" if experiment == "linear" else "poly2")
    exact = Exact().solve(compute_moments(log, Design.build(phi, psi, log.roles))[0]).W
    batch = log.to_batch()
    rows = [
        part.reshape(-1, env.world.horizon, part.shape[1])
        for part in (phi(batch.x, batch.a), psi(batch.x, batch.z), batch.y)
    ]
    return rows, exact if env.world.W_star is None else env.world.W_star, exact


def _schedule(experiment: str, dim: int, steps: str) -> Schedule:
    if steps == "constant":
        return ConstantSteps(0.05, 0.05)
    return PAPER["paper-linear-20" if dim == 20 else f"paper-{experiment}"].steps


def _descend(
    rows: Sequence[np.ndarray], start: float, schedule: Schedule, iterations: int, seed: int
) -> tuple[list[int], np.ndarray]:
    """Pass over the episodes, each pass in a new order; returns points and iterates."""
    Phi, Psi, Y = rows
    W0 = np.full((Y.shape[2], Phi.shape[2]), start)
    points = sorted({*log_points(iterations, per_decade=16), *_printed_iterations(iterations)})
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        state = JaxState.begin(W0, Psi.shape[2], len(points))
        for done in range(0, iterations, len(Y)):
            order = rng.permutation(len(Y))[: iterations - done]
            chosen = (part[order] for part in rows)
            settings = {"sign": 1.0, "tail": 0, "points": jnp.asarray(points)}
            state = advance(state, *chosen, schedule=schedule, **settings)
    return points, np.asarray(state.path)


def table(curves: Iterable[LossCurve]) -> str:
    """Return the losses of the three strengths as a text table, a column per iteration."""
    curves = list(curves)
    iterations = _printed_iterations(curves[0].t[-1])
    head = "".join(f"{f't = {t}':>11}" for t in iterations)
    lines = [f"{'steps':<10}{'k':>3} {'setting':<8}{head}"]
    lines[0] += f"{'closed form':>13}"
    for c in curves:
        losses = "".join(f"{c.loss[c.t.index(t)]:>11.3g}" for t in iterations)
        lines.append(f"{c.steps:<10}{c.dim:>3} {c.setting:<8}{losses}{c.closed_form:>13.3g}")
    return "\n".join(lines)


def _printed_iterations(iterations: int) -> list[int]:
    return [t for t in SHOWN if t <= iterations]


def draw(curves: Sequence[LossCurve]) -> Any:
    """Plot a panel for each dimension (columns) and kind of steps (rows)."""
    dims, kinds = sorted({c.dim for c in curves}), list(dict.fromkeys(c.steps for c in curves))
    figure, axes = make_axes(len(kinds), len(dims), sharex=True)
    for c in curves:
        ax = axes[kinds.index(c.steps), dims.index(c.dim)]
        colour = f"C{SETTINGS.index(c.setting)}"
        ax.loglog(c.t, c.loss, label=f"setting {c.setting}", color=colour, linewidth=1.4)
        ax.set_title(f"k = {c.dim}, {STEPS[c.steps]}", fontsize=9)
    truth = "W^*" if curves[0].experiment == "linear" else r"W_{\mathrm{sad}}"
    for ax in axes[:, 0]:
        ax.set_ylabel(f"$|W_t - {truth}|_F$")
    for ax in axes[-1]:
        ax.set_xlabel("iteration t")
    axes[0, 0].legend(frameon=False, fontsize=8, title="weak to strong", title_fontsize=8)
    return figure


def command(
    experiment: Annotated[str, typer.Argument(help="linear or nonlinear.")] = "linear",
    iterations: Annotated[int, typer.Option(help="Steps of each run.")] = 1000,
    plot: Plot = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure how fast the loss falls with weak and strong instruments."""
    check(json, force, iterations=iterations)
    check_figure(plot, force=force)
    if experiment not in DIMENSIONS:
        raise InputError(f"unknown experiment {experiment!r}; expected linear or nonlinear")
    runs = [(s, k, setting) for s in STEPS for k in DIMENSIONS[experiment] for setting in SETTINGS]
    settings = {"iterations": iterations, "seed": seed}
    curves = measure_each("runs", runs, lambda at: run(experiment, at[1], at[2], at[0], **settings))
    if plot is not None:
        save_figure(draw(curves), plot, force=force)
    tell(table(curves), [_finite(asdict(curve)) for curve in curves], json, force)


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """Return values with null for infinite ones, for JSON."""
    facts["loss"] = [value if np.isfinite(value) else None for value in facts["loss"]]
    return facts


if __name__ == "__main__":
    run_study(command)
