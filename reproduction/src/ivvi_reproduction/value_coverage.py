"""How often intervals for the value of a policy contain the truth.

Run it with ``python -m ivvi_reproduction.value_coverage``. In each design many logs are
simulated; each is fitted, a policy is planned with the estimate, and its value and its gain
over the behaviour policy get intervals from the same log. The truth is the policy's return
in the simulator itself.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from ivvi.actions import Actions
from ivvi.errors import IvviWarning
from ivvi.evaluation.actors import BehaviourActor, Planned
from ivvi.evaluation.episode_sampling import RolloutDesign
from ivvi.evaluation.interval_estimate import INTERVALS, IntervalEstimate, gains_of
from ivvi.evaluation.many_model_rollout import Episodes, RolloutTask, returns
from ivvi.evaluation.model_draws import estimated_model, repeated
from ivvi.evaluation.value_estimator import ValueEstimator
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.features.design import build_design
from ivvi.fitting import Fit, estimate
from ivvi.logs.log import Progress
from ivvi.planning import MPC, Problem
from ivvi.simulators import ConfoundedEnv, World, linear_world, nonlinear_world
from ivvi.simulators.world import Behaviour, gaussian
from ivvi_reproduction.study import (
    binomial_deviation,
    coverage_cell,
    coverage_table,
    logs_command,
    no_bar,
    run_study,
)

EPISODES, HORIZON = 80, 50
LEVEL, DRAWS = 0.95, 200
TRUE_EPISODES = 2000
COUNT = 4
"""Episodes simulated in each draw."""
WEAK = 0.01
"""Factor of the variance of the instruments, and so of mu_iv."""
METHODS = ("asymptotic", "bootstrap")
TARGETS = ("value", "gain")


@dataclass(frozen=True, slots=True)
class SimulatorDesign:
    """A simulator and the strength of its instrument."""

    name: str
    simulator: str
    dim: int
    features: str
    strength: float


DESIGNS = (
    SimulatorDesign("linear k=3, strong", "linear", 3, "linear", 1.0),
    SimulatorDesign("linear k=3, weak", "linear", 3, "linear", WEAK),
    SimulatorDesign("nonlinear k=1, strong", "nonlinear", 1, "spline:8", 1.0),
    SimulatorDesign("nonlinear k=1, weak", "nonlinear", 1, "spline:8", WEAK),
)


@dataclass(frozen=True)
class ValueCoverage:
    """Coverage over the logs of a design: by method, target and kind of interval.

    `verdicts` counts the verdicts on the instruments, `length` is the median
    length of the interval that is reported, by method and target.
    """

    design: SimulatorDesign
    logs: int
    coverage: dict[str, float] = field(default_factory=dict)
    length: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)

    @property
    def deviation(self) -> float:
        """One binomial standard deviation of a coverage of 95%."""
        return binomial_deviation(self.logs)


def world_of(design: SimulatorDesign) -> World:
    """Return the simulator with its instrument's variance scaled, in setting I."""
    make_world = linear_world if design.simulator == "linear" else nonlinear_world
    world = make_world(design.dim, "I")
    size = (0.7 if design.simulator == "linear" else 0.5) * design.strength
    draw = gaussian(size * np.eye(design.dim))
    return replace(world, instrument=lambda key, x, history: draw(key))


@cache
def setup_of(design: SimulatorDesign) -> SimulatedProblem:
    """Return a design's setup, once for all logs, so that programs are compiled once."""
    return SimulatedProblem.of(design)


@dataclass(frozen=True, eq=False)
class SimulatedProblem:
    """A simulator, its features and problems, and the true value of its behaviour policy."""

    env: ConfoundedEnv
    features: tuple[Any, Any]
    problem: Problem
    truth: Problem
    planner: Planned
    behaviour: float

    @classmethod
    def of(cls, design: SimulatorDesign) -> SimulatedProblem:
        """Return the features; knots, if there are any, come from a separate log."""
        world = world_of(design)
        env = ConfoundedEnv(world)
        log = env.collect(EPISODES, HORIZON, seed=1 << 20)
        built = build_design(log, design.features)
        features = built.phi, built.psi
        actions = Actions.of_space(world.actions)
        model = _fit(log, features).model
        problem = Problem(model, env.reward, actions, HORIZON)
        plan = Planned(MPC(lookahead=1), problem.with_weights)
        earned = env.rollout(Behaviour(world), episodes=TRUE_EPISODES, horizon=HORIZON, seed=1)
        truth = Problem(world.true_model(), env.reward, actions, HORIZON)
        return cls(env, features, problem, truth, plan, float(earned.returns.mean()))

    def true_value(self, W: np.ndarray) -> float:
        """Return the return of the plan for weights W in the simulator."""
        size = 100
        model, start = self.truth.model, self.problem.model.starts[0]
        numbers = np.arange(TRUE_EPISODES).reshape(size, -1)
        world = repeated(estimated_model(ValueInputs.of(model)), size)
        first = np.broadcast_to(start, (*numbers.shape, len(start)))
        task = RolloutTask.of(self.truth)
        return float(returns(task, self.planner, W, world, Episodes(first, numbers, 1)).mean())


def measure(
    design: SimulatorDesign, logs: int, seed: int = 0, bar: Progress = no_bar
) -> ValueCoverage:
    """Simulate the logs of a design and count the intervals that hold the truth."""
    setup = setup_of(design)
    hits: Counter[str] = Counter()
    lengths: dict[str, list[float]] = {}
    verdicts: Counter[str] = Counter()
    for i in range(logs):
        log = setup.env.collect(EPISODES, HORIZON, seed=seed * 100_003 + i)
        fit = _fit(log, setup.features)
        verdicts[fit.diagnostics.verdict.word] += 1
        true = setup.true_value(fit.W)
        truths = {"value": true, "gain": true - setup.behaviour}
        for method in METHODS:
            for target, amount in _amounts(setup, fit, method, i).items():
                low, high = amount.interval
                lengths.setdefault(f"{method} {target}", []).append(high - low)
                for kind in INTERVALS:
                    low, high = amount.interval_of(kind)
                    hits[f"{method} {target} {kind}"] += low <= truths[target] <= high
        bar(1)
    coverage = {
        key: hits[key] / logs
        for key in (f"{m} {t} {k}" for m in METHODS for t in TARGETS for k in INTERVALS)
    }
    middle = {key: float(np.median(values)) for key, values in lengths.items()}
    return ValueCoverage(design, logs, coverage, middle, dict(verdicts))


def _fit(log: Any, features: tuple[Any, Any]) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        return estimate(log, *features, episodes=True)


def _amounts(
    setup: SimulatedProblem, fit: Fit, method: str, seed: int
) -> dict[str, IntervalEstimate]:
    source = ValueInputs.of(fit)
    problem = replace(setup.problem, model=fit.model)
    rollouts = replace(RolloutDesign.of(problem, None, DRAWS, seed), count=COUNT, chunks=1)
    estimator = ValueEstimator(source, problem, rollouts, method, DRAWS, LEVEL, seed)
    behaviour = source.behaviour
    if behaviour is None:
        raise ValueError("a log has rows")
    actors = {
        "policy": (setup.planner, fit.W),
        "behaviour": (BehaviourActor(behaviour.features), behaviour.rows),
    }
    values = estimator.values(actors, estimator.first_returns(actors))
    return {"value": values["policy"], "gain": gains_of(values)["behaviour"]}


def table(records: Sequence[ValueCoverage]) -> str:
    """Return the coverages side by side; * marks those beyond three deviations of 95%."""
    keys = [(t, k) for k in INTERVALS for t in TARGETS]
    titles = [f"{t}, {k.replace('bias-corrected', 'BC')}" for t, k in keys]
    head = f"{'design':<24}{'draws':<12}" + "".join(f"{title:>18}" for title in titles)
    lines = []
    for r in records:
        for method in METHODS:
            shares = (r.coverage[f"{method} {target} {kind}"] for target, kind in keys)
            cells = "".join(coverage_cell(share, r.logs, 18) for share in shares)
            lines.append(f"{r.design.name:<24}{method:<12}{cells}")
        verdicts = ", ".join(f"{word} {count}" for word, count in sorted(r.verdicts.items()))
        lines.append(f"  verdicts: {verdicts}")
    size = f"{EPISODES} episodes of {HORIZON} steps, {DRAWS} draws"
    return coverage_table(head, lines, records[0].logs, size)


command = logs_command(
    "Measure how often intervals for values and gains hold the truth.",
    DESIGNS,
    measure,
    table,
    200,
)

if __name__ == "__main__":
    run_study(command)
