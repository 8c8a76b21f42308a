"""Which number of steps and batch size come closest to the paper's linear regrets.

Run it with ``python -m ivvi_reproduction.batch_size_search``. The paper prints its step sizes but
neither T nor the size of its mini-batches. For each pair, the last iterate with the paper's
steps in each of the 18 linear cells is planned with (the default planner), and its regret
compared with the printed one: the score of a pair is the mean over cells of
|log10(regret / paper)|, where a cell that diverges counts as a factor of 1000. The pair with
the smallest score stands in the specs, for all experiments. Batch sizes divide the rows of all
logs, so that T is a whole number of passes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.actions import Actions
from ivvi.dynamics.model import Dynamics
from ivvi.errors import IvviWarning
from ivvi.estimators.sgda.jax_kernel import State, advance
from ivvi.estimators.sgda.schedules import PAPER, Schedule
from ivvi.fitting import estimate
from ivvi.planning.plan import plan
from ivvi.simulators import ConfoundedEnv
from ivvi.simulators.catalogue import make_env
from ivvi.simulators.evaluate import optimal_policy
from ivvi_reproduction.specs import read_experiment, read_table
from ivvi_reproduction.study import Force, Json, Seed, check, each, run_study, tell

BATCHES = (16, 40, 80, 160, 400, 800, 1600)
STEPS = (500, 1000, 2000, 5000, 10_000, 20_000)
MOST_PASSES = 25
EPISODES, EVALUATION_SEED = 8, 1_000_003
CHUNK = 2_000_000
"""Numbers in one piece of features."""
LARGEST = 1000.0
"""Factor at which a cell counts that diverges, or is further off than that."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One cell with one pair: the regret, None where the iterates diverged."""

    cell: str
    batch: int
    steps: int
    paper: float
    regret: float | None

    @property
    def factor(self) -> float:
        """How many times too large or too small the regret is."""
        if self.regret is None:
            return LARGEST
        ratio = max(self.regret, self.paper / LARGEST) / self.paper
        return min(max(ratio, 1 / ratio), LARGEST)


def trials(dim: int, setting: str, schedule: str, paper: float, seed: int = 0) -> Iterator[Trial]:
    """Descend with every pair on one log of a cell, plan and evaluate."""
    env = make_env("linear", dim=dim, setting=setting)
    log = env.collect(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        model = estimate(log).model
        best = _earned(env, optimal_policy(env))
    batch = log.to_batch()
    rows = (model.phi(batch.x, batch.a), model.phi(batch.x, batch.z), batch.y)
    for size in BATCHES:
        wanted = [t for t in STEPS if t * size <= MOST_PASSES * len(batch)]
        path = _descend(rows, PAPER[schedule], size, wanted, seed)
        for t, W in zip(wanted, path, strict=True):
            found = _regret(env, replace(model, W=W), best)
            yield Trial(f"k = {dim}, {setting}", size, t, paper, found)


def _descend(
    rows: Sequence[np.ndarray], schedule: Schedule, size: int, points: Sequence[int], seed: int
) -> np.ndarray:
    """Return the iterates at `points`, (points, d_y, d_phi); each pass in a new order."""
    Phi, Psi, Y = rows
    n, rng = len(Y), np.random.default_rng(seed)
    at_once = max(1, CHUNK // (size * Phi.shape[1]))
    with jax.enable_x64(True):
        state = State.begin(np.full((Y.shape[1], Phi.shape[1]), 0.2), Psi.shape[1], len(points))
        settings = {"sign": 1.0, "tail": 0, "points": jnp.asarray(points)}
        done, order = 0, np.empty((0, size), np.int64)
        while done < points[-1]:
            if not len(order):
                order = rng.permutation(n)[: n // size * size].reshape(-1, size)
            chosen, order = np.split(order, [min(at_once, points[-1] - done)])
            parts = (part[chosen] for part in rows)
            state = advance(state, *parts, schedule=schedule, **settings)
            done += len(chosen)
    return np.asarray(state.path)


def _regret(env: ConfoundedEnv, model: Dynamics, best: np.ndarray) -> float | None:
    if not np.abs(model.W).max() < LARGEST:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        policy = plan(
            model,
            env.reward,
            Actions.of_space(env.world.actions),
            horizon=env.world.horizon,
            method="mpc",
            compare=False,
        )
    found = float(np.mean(best - _earned(env, policy)))
    return found if np.isfinite(found) else None


def _earned(env: ConfoundedEnv, policy: Any) -> np.ndarray:
    return env.rollout(policy, episodes=EPISODES, seed=EVALUATION_SEED).returns


def scores(found: Sequence[Trial]) -> dict[tuple[int, int], float]:
    """Return the mean of |log10 factor| of each (batch, steps), the best first."""
    pairs = {(trial.batch, trial.steps) for trial in found}
    score = {
        pair: float(np.mean([np.log10(t.factor) for t in found if (t.batch, t.steps) == pair]))
        for pair in pairs
    }
    return dict(sorted(score.items(), key=lambda item: item[1]))


def table(found: Sequence[Trial], most: int = 8) -> str:
    """List the best pairs, and the cells of the first."""
    ranked = scores(found)
    lines = [f"{'batch':>6}{'steps':>8}{'mean |log10 factor|':>22}"]
    lines += [f"{b:>6}{t:>8}{s:>22.3f}" for (b, t), s in list(ranked.items())[:most]]
    best = next(iter(ranked))
    lines.append(f"batch {best[0]}, {best[1]} steps, by cell:")
    for trial in found:
        if (trial.batch, trial.steps) == best:
            ours = "diverges" if trial.regret is None else f"{trial.regret:.4g}"
            lines.append(f"{trial.cell:<14}{trial.paper:>10g}{ours:>12}")
    return "\n".join(lines)


def command(
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Search for the T and the batch size that the paper does not print."""
    check(json, force)
    experiment, printed = read_experiment("linear"), read_table("linear-regret")
    cells = [
        (variant.dim or 0, setting, variant.schedule, printed.numbers[setting][i][0])
        for i, variant in enumerate(experiment.variants)
        for setting in experiment.settings
    ]
    by_cell = each("cells", cells, lambda cell: list(trials(*cell, seed)))
    found = [trial for some in by_cell for trial in some]
    tell(table(found), found, json, force)


if __name__ == "__main__":
    run_study(command)
