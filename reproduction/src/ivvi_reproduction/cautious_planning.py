"""The costs and the savings of caution.

Run it with ``python -m ivvi_reproduction.cautious_planning``. Logs of 2,000 rows of the paper's
linear experiment, with the instrument of setting I and with one whose mu_iv is a hundredth of
that. Each is fitted, plans are made without and with caution, and the plans are run in the
simulator. Caution should keep the worst plans from falling below the true return of the behaviour
policy, and cost next to nothing where the instrument is strong.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ivvi._io.arrays import Array
from ivvi.actions import Actions
from ivvi.errors import IvviWarning
from ivvi.estimators import StandardErrors
from ivvi.evaluation.actors import Actor
from ivvi.evaluation.many_model_rollout import Episodes, RolloutTask, returns
from ivvi.evaluation.model_draws import ModelDraws, estimated_model
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.fitting import Fit, estimate
from ivvi.logs.log import Progress
from ivvi.planning import MPC, Problem
from ivvi.planning.behaviour_policy import BehaviourFeatures, BehaviourPolicy, BehaviourRows
from ivvi.planning.cautious import SCENARIOS, CautiousRule, directions, scenarios
from ivvi.planning.simple_rules import UsualRule
from ivvi.simulators import ConfoundedEnv, linear_world
from ivvi.simulators.world import Behaviour, gaussian
from ivvi_reproduction.study import logs_command, no_bar, run_study

DIM, EPISODES, STEPS = 5, 40, 50
HORIZON, TRIALS = 100, 32
STRENGTHS = {"strong": 1.0, "weak": 0.01}
"""Factors of the variance of the instruments, and so of mu_iv."""
LEVELS = (0.0, 0.8, 0.95)
SIZE = 0.7
"""Variance of the instruments in setting I."""


class LogDraws(NamedTuple):
    """The parts that differ between logs: draws of W, directions of action, usual actions."""

    drawn: Array
    towards: Array
    slopes: Array
    rows: BehaviourRows


@dataclass(frozen=True)
class CautiousActor(Actor):
    """A cautious plan as an argument of one compiled simulation."""

    caution: float
    make: Any

    def rule(self, parameters: LogDraws) -> CautiousRule:
        """Return the rule for the draws of one log."""
        problem = self.make(parameters.drawn[0])
        features = BehaviourFeatures.of(problem.model, None)
        none = np.zeros((0, 0))
        behaviour = BehaviourPolicy(features, parameters.slopes, none, *parameters.rows)
        inner = MPC(lookahead=1).solve(problem)
        fallback = UsualRule(problem, behaviour)
        return CautiousRule(
            problem, inner, self.caution, parameters.drawn, parameters.towards, fallback
        )

    def begin(self, models: ModelDraws, parameters: LogDraws, count: int) -> Any:
        """Begin as the rule does."""
        return self.rule(parameters).begin(len(models.W) * count)

    def act(
        self, models: ModelDraws, parameters: LogDraws, x: Array, h: Array, memory: Any, keys: Array
    ) -> tuple[Array, Any]:
        """Act as the rule does."""
        a, memory = self.rule(parameters).act(x.reshape(-1, x.shape[-1]), h, memory)
        return a.reshape(*x.shape[:2], -1), memory


@dataclass(frozen=True)
class CautionValues:
    """True values of the plans of many logs, by caution, and of behaviour."""

    instrument: str
    logs: int
    behaviour: float
    zero: float
    values: dict[str, list[float]] = field(default_factory=dict)

    def mean(self, level: float) -> float:
        """Mean over the logs."""
        return float(np.mean(self.values[f"{level:g}"]))

    def worst(self, level: float) -> float:
        """Return the 5th percentile over the logs."""
        return float(np.quantile(self.values[f"{level:g}"], 0.05))


@cache
def setup_of(instrument: str) -> tuple[ConfoundedEnv, Problem, float, float]:
    """Return simulator, true problem, and the true values of behaviour and of doing nothing."""
    world = linear_world(DIM, "I")
    draw = gaussian(SIZE * STRENGTHS[instrument] * np.eye(DIM))
    env = ConfoundedEnv(replace(world, instrument=lambda key, x, history: draw(key)))
    truth = Problem(world.true_model(), env.reward, Actions.of_space(world.actions), HORIZON)
    idle = lambda x: np.zeros((len(x), DIM))  # noqa: E731
    behaviour, zero = (
        float(env.rollout(policy, episodes=1024, horizon=HORIZON, seed=1).returns.mean())
        for policy in (Behaviour(env.world), idle)
    )
    return env, truth, behaviour, zero


@cache
def planner_of(caution: float) -> CautiousActor:
    """Return one planner for each level, so that it is compiled once."""
    return CautiousActor(caution, setup_of("strong")[1].with_weights)


def measure(
    instrument: str,
    logs: int,
    seed: int = 0,
    bar: Progress = no_bar,
    levels: Sequence[float] = LEVELS,
) -> CautionValues:
    """Plan with each of many logs at each level of caution, and run the plans."""
    env, truth, behaviour, zero = setup_of(instrument)
    values: dict[str, list[float]] = {f"{level:g}": [] for level in levels}
    for i in range(logs):
        parameters = _log_draws(_fit(env, seed * 100_003 + i))
        for level in levels:
            values[f"{level:g}"].append(_true_value(truth, planner_of(level), parameters))
        bar(1)
    return CautionValues(instrument, logs, behaviour, zero, values)


def _fit(env: ConfoundedEnv, seed: int) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        errors = StandardErrors("unadjusted")
        return estimate(env.collect(EPISODES, STEPS, seed=seed), se=errors)


def _log_draws(fit: Fit) -> LogDraws:
    model = fit.model
    drawn = scenarios(model, SCENARIOS, np.random.default_rng(0))
    behaviour = BehaviourPolicy.of(model)
    if behaviour is None:
        raise ValueError("the fit holds no rows of the log")
    return LogDraws(drawn, directions(model, drawn), behaviour.action_weights, behaviour.rows)


def _true_value(truth: Problem, planner: CautiousActor, parameters: LogDraws) -> float:
    world = estimated_model(ValueInputs.of(truth.model))
    episodes = Episodes(np.full((1, TRIALS, DIM), 10.0), np.arange(TRIALS)[None], 1)
    return float(returns(RolloutTask.of(truth), planner, parameters, world, episodes).mean())


def table(records: Sequence[CautionValues]) -> str:
    """Return means and 5th percentiles side by side, by caution, as a text table."""
    levels = [float(key) for key in records[0].values]
    titles = ["plain" if level == 0 else f"caution {level:g}" for level in levels]
    head = f"{'instrument':<12}{'over logs':<16}" + "".join(f"{t:>14}" for t in titles)
    lines = [head + f"{'behaviour':>12}{'nothing':>10}", "-" * (len(head) + 22)]
    for r in records:
        ends = f"{r.behaviour:>12.1f}{r.zero:>10.1f}"
        for name, of in (("mean", r.mean), ("5th percentile", r.worst)):
            cells = "".join(f"{of(level):>14.1f}" for level in levels)
            lines.append(f"{r.instrument:<12}{name:<16}{cells}{ends}")
    lines.append(
        f"true value of {HORIZON} steps, linear k = {DIM}; {records[0].logs} logs each of "
        f"{EPISODES * STEPS:,} rows"
    )
    return "\n".join(lines)


command = logs_command(
    "Measure what caution costs with strong instruments and saves with weak ones.",
    list(STRENGTHS),
    measure,
    table,
    100,
)

if __name__ == "__main__":
    run_study(command)
