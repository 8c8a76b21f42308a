"""From a job to its result: simulate, estimate, plan, evaluate.

A result depends on nothing but the job and the options: not on what ran before it in the
same process, nor on which process it was.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ivvi.actions import Actions
from ivvi.dynamics.model import Dynamics
from ivvi.errors import IvviWarning
from ivvi.estimators import Method
from ivvi.estimators.registry import make_method
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.fitting import Fit, estimate
from ivvi.logs import Log
from ivvi.planning.plan import make_planner, plan
from ivvi.planning.policy import Policy
from ivvi.planning.spede.spede import SPEDERule
from ivvi.simulators import ConfoundedEnv
from ivvi.simulators.catalogue import load_factors, make_env
from ivvi.simulators.ratings import Factors
from ivvi_reproduction.jobs import Job
from ivvi_reproduction.specs import Column, Experiment, read_experiment

EVALUATION_SEED = 1_000_003
BLOCKS = 50
"""Points of a curve of rewards along an episode."""
DIGITS = 8
"""Significant digits that are kept."""
_warm: set[tuple[str, str]] = set()
"""Groups whose descent-ascent is compiled in this process."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a whole run shares: how much is computed, the ratings, a folder of other specs."""

    quick: bool = False
    ratings: str | None = None
    specs: str | None = None

    def experiment(self, name: str) -> Experiment:
        """Return how an experiment is run."""
        return read_experiment(name, quick=self.quick, specs=self.specs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a job gives: a result that does not change, and the CPU seconds of its parts."""

    result: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)


def run_job(job: Job, options: Options) -> Outcome:
    """Run one job."""
    experiment = options.experiment(job.experiment)
    variant, clock = experiment.variant(job.variant), Clock()
    source, arena = (
        _env(variant.simulator, variant.dim, setting, options.ratings)
        for setting in (job.setting, experiment.baseline)
    )
    with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", IvviWarning)
        log = _log(job, experiment, source, clock)
        result = _result(job, experiment, log, arena, clock)
    return Outcome(result | {"data": source.world.label}, clock.seconds)


@dataclass(frozen=True)
class Clock:
    """CPU seconds of named parts."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part."""
        began = time.process_time()
        yield
        self.seconds[name] = round(time.process_time() - began, 4)


def _result(
    job: Job, experiment: Experiment, log: Log, arena: ConfoundedEnv, clock: Clock
) -> dict[str, Any]:
    """Estimate from the log, plan, and evaluate in the arena.

    The settings of an experiment differ in how logs are made; they share the arena.
    """
    column = experiment.columns[job.column]
    result: dict[str, Any] = {}
    if job.who == "optimal":  # the log says where the plan should be good, and no more
        model = replace(arena.world.true_model(), states=log.sample().x)
    else:
        fit = _fit(job, experiment, log, arena, clock)
        model, result = fit.model, {"strength": _strength(fit), **_progress(fit, arena)}
        if result["status"] == "diverged":
            return result | {"returns": None}
    try:
        policy = _planned(model, column, experiment, arena, clock)
    except (ValueError, np.linalg.LinAlgError) as error:
        if result.get("status") != "stalled":
            raise
        # an iterate far from any model may be one in which nothing can be planned
        return result | {"returns": None, "failure": str(error)}
    return result | _evaluated(policy, experiment, arena, clock)


def _fit(job: Job, experiment: Experiment, log: Log, arena: ConfoundedEnv, clock: Clock) -> Fit:
    column, method = experiment.columns[job.column], _method(job, experiment, arena)
    settings: dict[str, Any] = {
        "method": method,
        "se": "unadjusted",
        "allow_unidentified": True,
    }
    if isinstance(method, SGDA) and job.group not in _warm:
        # compiled once, so that the time of an estimate is not the compiler's
        estimate(log, column.features, **settings)
        _warm.add(job.group)
    with clock.part("estimation"):
        return estimate(log, column.features, **settings)


def _log(job: Job, experiment: Experiment, env: ConfoundedEnv, clock: Clock) -> Log:
    with clock.part("simulation"):
        return env.collect(experiment.log_episodes, experiment.horizon, seed=job.seed)


def _planned(
    model: Dynamics, column: Column, experiment: Experiment, env: ConfoundedEnv, clock: Clock
) -> Policy:
    with clock.part("planning"):
        settings = column.spede if column.planner == "spede" else {}
        return plan(
            model,
            env.reward,
            Actions.of_space(env.world.actions),
            horizon=experiment.horizon or env.world.horizon,
            method=make_planner(column.planner, **settings),
            compare=False,
        )


@lru_cache(maxsize=8)
def _env(simulator: str, dim: int | None, setting: str, ratings: str | None) -> ConfoundedEnv:
    factors = _factors(ratings) if simulator.startswith("recommender") else None
    return make_env(simulator, dim=dim, setting=setting, ratings=factors)


@lru_cache(maxsize=1)
def _factors(ratings: str | None) -> Factors:
    return load_factors(ratings)


def _method(job: Job, experiment: Experiment, env: ConfoundedEnv) -> Method:
    """Return least squares, the column's method, or descent-ascent with the paper's steps."""
    column = experiment.columns[job.column]
    if job.who == "baseline":
        return make_method("least-squares")
    if column.method != "sgda":
        return make_method(column.method)
    episodes, horizon = experiment.log_episodes, experiment.horizon
    rows = (episodes or env.world.episodes) * (horizon or env.world.horizon)
    return SGDA(
        schedule=experiment.variant(job.variant).schedule,
        batch=column.batch,
        passes=math.ceil(column.steps / (rows // column.batch)),
        start=column.start,
        target=env.world.W_star,
        seed=job.seed,
    )


def _strength(fit: Fit) -> dict[str, float | None]:
    found = fit.diagnostics.strength
    return {
        "mu_iv": _short(found.mu_iv),
        "smallest": _short(found.mean_smallest(5)),
        "smallest_nonzero": _short(found.mean_smallest(5, with_zeros=False)),
    }


def _progress(fit: Fit, arena: ConfoundedEnv) -> dict[str, Any]:
    """Say how far the weights are from the truth, and how an iterative estimate got there."""
    far, truth = None, arena.world.W_star
    if truth is not None and truth.shape == fit.W.shape:
        with np.errstate(over="ignore", invalid="ignore"):
            far = _short(float(np.linalg.norm(fit.W - truth)))
    trace = fit.estimate.trace
    if trace is None:
        return {"status": "closed form", "distance": far}
    told = trace.to_json()
    loss = {"t": told["t"], "distance": [_short(v) for v in told["distance"]]}
    return {
        "status": trace.status,
        "steps": trace.t[-1],
        "error_in_se": _short(told["error_in_se"]),
        "distance": far,
        "loss": loss,
    }


def _evaluated(
    policy: Any, experiment: Experiment, env: ConfoundedEnv, clock: Clock
) -> dict[str, Any]:
    """Run the policy: return of each episode, rewards along it, and return while planning."""
    with clock.part("evaluation"):
        settings: dict[str, Any] = {"horizon": experiment.horizon, "seed": EVALUATION_SEED}
        rewards = env.rollout(policy, episodes=experiment.episodes, **settings).rewards
        result: dict[str, Any] = {"returns": _shorts(rewards.sum(axis=1))}
        blocks = np.array_split(rewards.mean(axis=0), BLOCKS)
        result["rewards"] = _shorts([block.sum() for block in blocks])
        if isinstance(policy.rule, SPEDERule):
            settings["episodes"] = experiment.curve_episodes
            iterates = [_after(policy.rule, i) for i in experiment.iterations]
            earned = [env.rollout(rule, **settings).returns.mean() for rule in iterates]
            result["planning"] = _shorts(earned)
    return result


def _after(rule: SPEDERule, iterations: int) -> SPEDERule:
    """Be greedy for the value after a number of iterations of planning."""
    return replace(rule, weights=rule.weights[[min(iterations, len(rule.weights) - 1)]])


def _short(value: float | None) -> float | None:
    """Keep some digits; what is not finite is None."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _shorts(values: Any) -> list[float] | None:
    """Keep some digits of each; None where one is not finite."""
    found = [_short(float(value)) for value in values]
    return None if None in found else found  # type: ignore[return-value]
