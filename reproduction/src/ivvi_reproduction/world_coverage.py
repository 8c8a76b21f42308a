"""How often intervals for the value of a plan contain the truth, in models that are not Gaussian.

Run it with ``python -m ivvi_reproduction.world_coverage``. A machine whose wear is a category, a
category with a temperature that follows it, and patients who may die, each with one binary
treatment, a reward that is a function, and a hidden confounder; all in plain NumPy. Each log is
fitted, a plan is made with the estimate, and the interval comes from the same log; the truth is
what the plan earns in the world itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import ndtri

from ivvi.errors import IvviWarning
from ivvi.evaluation import value
from ivvi.fitting import estimate
from ivvi.logs import read_logs
from ivvi.logs.log import Progress
from ivvi.policy.plan import plan
from ivvi_reproduction.study import (
    binomial_deviation,
    coverage_cell,
    coverage_table,
    logs_command,
    no_bar,
    run_study,
)

EPISODES, STEPS = 80, 30
"""Size of a log."""
HORIZON = 15
DRAWS = 200
TRUE_EPISODES = 20_000
METHODS = ("asymptotic", "bootstrap")
PLANNER = "value-iteration"
"""The features that the default chooses in these worlds."""
SHARE = 0.6
"""Probability that the next level follows the state and the treatment, and not luck."""
WARMER = np.array([1.0, 3.0])
"""Temperature that each level adds."""
FATAL = 4.0

Draws = np.random.Generator


@dataclass(frozen=True)
class CoverageWorld:
    """A step, first states and reward of a world with one binary treatment.

    Attributes
    ----------
    start
        Draws n first states, (n, d_x).
    step
        Draws the next states from states, treatments (n,), luck u (n,), which the log's
        treatments leaned on, and a generator.
    reward, terminal
        As for `ivvi.plan`, of rows.
    """

    name: str
    start: Callable[[int, Draws], np.ndarray]
    step: Callable[[np.ndarray, np.ndarray, np.ndarray, Draws], np.ndarray]
    reward: Callable[..., Any]
    terminal: Callable[..., Any] | None = None


def _level(x: np.ndarray, a: np.ndarray, u: np.ndarray, rng: Draws) -> np.ndarray:
    """Draw the indicators of the next level of three, (n, 2): one share listens to u alone."""
    p1 = 0.3 + 0.3 * x[:, 0] - 0.1 * x[:, 1] - 0.1 * a
    p2 = 0.3 + 0.1 * x[:, 0] + 0.4 * x[:, 1] - 0.25 * a
    v = rng.uniform(size=len(x))
    heard = np.where(v < p2, 2, np.where(v < p1 + p2, 1, 0))
    lucky = np.where(u > 0.7, 2, np.where(u > 0.4, 1, 0))
    level = np.where(rng.uniform(size=len(x)) < SHARE, heard, lucky)
    return np.stack([level == 1, level == 2], axis=1) * 1.0


def _warm(x: np.ndarray, a: np.ndarray, u: np.ndarray, rng: Draws) -> np.ndarray:
    """The same with a temperature, (n, 3)."""
    k = _level(x, a, u, rng)
    t = 0.6 * x[:, 2] + k @ WARMER - 0.5 * a + 0.5 * rng.normal(size=len(x))
    return np.column_stack([k, t])


def _health(x: np.ndarray, a: np.ndarray, u: np.ndarray, rng: Draws) -> np.ndarray:
    """One state, (n, 1), that grows without treatment and is fatal above FATAL."""
    e = 0.8 * ndtri(u) + 0.6 * rng.normal(size=len(x))
    return np.asarray(0.9 * x + (0.5 - 1.0 * a + e)[:, None])


def cost_of_wear(x: Any, a: Any) -> Any:
    """Return minus the cost of wear and of repairs."""
    return -1.0 * x[:, 0] - 3.0 * x[:, 1] - 0.4 * a[:, 0]


def cost_of_heat(x: Any, a: Any) -> Any:
    """Return minus the cost of heat, in the worst level alone."""
    return -0.5 * x[:, 1] * x[:, 2] ** 2 - 0.4 * a[:, 0]


def years_of_life(x: Any, a: Any) -> Any:
    """Return 1 for a step alive, minus the burden of treatment."""
    return 1.0 - 0.2 * a[:, 0] + 0.0 * x[:, 0]


def is_dead(x: Any) -> Any:
    """The end."""
    return x[:, 0] > FATAL


WORLDS = (
    CoverageWorld("wear, a category", lambda n, rng: np.zeros((n, 2)), _level, cost_of_wear),
    CoverageWorld("category and heat", lambda n, rng: np.zeros((n, 3)), _warm, cost_of_heat),
    CoverageWorld("death", lambda n, rng: rng.normal(size=(n, 1)), _health, years_of_life, is_dead),
)


@dataclass(frozen=True)
class WorldCoverage:
    """Coverage over the logs of a world, by method, and the median length of intervals."""

    world: str
    logs: int
    coverage: dict[str, float] = field(default_factory=dict)
    length: dict[str, float] = field(default_factory=dict)
    outside: int = 0
    """Estimates that lie outside their own interval."""

    @property
    def deviation(self) -> float:
        """One binomial standard deviation of a coverage of 95%."""
        return binomial_deviation(self.logs)


def log_of(world: CoverageWorld, rng: Draws) -> Any:
    """Return a log of doctors who see part of the luck; the dead have no further rows."""
    x, alive, rows = world.start(EPISODES, rng), np.ones(EPISODES, dtype=bool), []
    for step in range(STEPS):
        u, z = rng.uniform(size=EPISODES), rng.normal(size=EPISODES)
        a = (1.2 * z + 2.0 * (u - 0.5) + 0.5 * rng.normal(size=EPISODES) > 0) * 1.0
        x_next = world.step(x, a, u, rng)
        columns = [np.arange(EPISODES), np.full(EPISODES, step), a, z, *x.T, *x_next.T]
        rows.append(np.column_stack(columns)[alive])
        if world.terminal is not None:
            alive = alive & ~np.asarray(world.terminal(x_next))
        x = x_next
    columns_of_log = np.concatenate(rows).T
    states = [f"x{i}" for i in range(x.shape[1])]
    names = ["episode", "step", "a", "z", *states, *(f"next_{name}" for name in states)]
    return read_logs(
        dict(zip(names, columns_of_log, strict=True)),
        state=states,
        action="a",
        instrument="z",
        next_state=[f"next_{name}" for name in states],
    )


def true_value(world: CoverageWorld, policy: Any, seed: int) -> float:
    """Return the return of a policy in the world itself."""
    rng = np.random.default_rng(seed)
    x, alive, total = world.start(TRUE_EPISODES, rng), np.ones(TRUE_EPISODES), 0.0
    for step in range(HORIZON):
        a = policy(x, step)
        total += float(np.mean(alive * world.reward(x, a)))
        x = world.step(x, a[:, 0], rng.uniform(size=len(x)), rng)
        if world.terminal is not None:
            alive = alive * (1.0 - world.terminal(x))
    return total


@dataclass(frozen=True)
class PlanInterval:
    """The interval for a plan's value from one log, and the truth."""

    interval: tuple[float, float]
    estimate: float
    true: float

    @property
    def holds(self) -> bool:
        """Whether the truth is inside."""
        return self.interval[0] <= self.true <= self.interval[1]

    @property
    def is_outside(self) -> bool:
        """Whether the estimate lies outside its own interval."""
        return not self.interval[0] <= self.estimate <= self.interval[1]


def value_once(world: CoverageWorld, seed: int, i: int) -> dict[str, PlanInterval]:
    """Simulate log i, plan with it, value the plan with it by each method."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = estimate(log_of(world, np.random.default_rng([seed, i])), episodes=True)
        settings: dict[str, Any] = {"horizon": HORIZON, "terminal": world.terminal}
        policy = plan(fit.model, world.reward, [[0.0], [1.0]], method=PLANNER, **settings)
    true, intervals = true_value(world, policy, i), {}
    for method in METHODS:
        amount = value(policy, fit, against=(), method=method, draws=DRAWS, seed=i).value
        intervals[method] = PlanInterval(amount.interval, amount.estimate, true)
    return intervals


def measure(
    world: CoverageWorld, logs: int, seed: int = 0, bar: Progress = no_bar
) -> WorldCoverage:
    """Simulate the logs of a world and count the intervals that hold the truth."""
    by: dict[str, list[PlanInterval]] = {method: [] for method in METHODS}
    for i in range(logs):
        for method, interval in value_once(world, seed, i).items():
            by[method].append(interval)
        bar(1)
    coverage = {method: sum(i.holds for i in intervals) / logs for method, intervals in by.items()}
    middle = {
        method: float(np.median([i.interval[1] - i.interval[0] for i in intervals]))
        for method, intervals in by.items()
    }
    outside = sum(i.is_outside for intervals in by.values() for i in intervals)
    return WorldCoverage(world.name, logs, coverage, middle, outside)


def table(records: Sequence[WorldCoverage]) -> str:
    """Return the coverages side by side; * marks those beyond three deviations of 95%."""
    head = f"{'world':<22}{'asymptotic':>14}{'bootstrap':>14}{'length':>12}{'length':>12}"
    lines = []
    for r in records:
        cells = "".join(coverage_cell(share, r.logs, 14) for share in r.coverage.values())
        cells += "".join(f"{length:>12.3g}" for length in r.length.values())
        lines.append(f"{r.world:<22}{cells}")
    size = f"{EPISODES} episodes of {STEPS} steps, {DRAWS} draws"
    return coverage_table(head, lines, records[0].logs, size)


command = logs_command(
    "Measure how often intervals hold the truth with categories and with endings.",
    WORLDS,
    measure,
    table,
    200,
)

if __name__ == "__main__":
    run_study(command)
