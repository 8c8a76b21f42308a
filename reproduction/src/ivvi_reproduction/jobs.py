"""The jobs of a reproduction, each one log of one cell in one column, and how they are run.

Three kinds of policies stand in each column: `ivvi` (the method) in every cell, `baseline`
(least squares) in one setting, and `optimal` (planned with the truth) once for a variant.
The authors released one matrix per cell, of settings I to III. Everything that a table or a figure
shows is made from the records of these jobs.

A job is run by simulating, estimating, planning and evaluating. Its result depends only on the job
and the options, and not on the process or on earlier jobs in it.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping
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
from ivvi.features.feature_map import parse_features
from ivvi.fitting import Fit, estimate
from ivvi.logs import Log
from ivvi.planning import MPC
from ivvi.policy.plan import plan
from ivvi.policy.policy import Policy
from ivvi.simulators import ConfoundedEnv
from ivvi.simulators.catalogue import load_factors, make_env
from ivvi.simulators.ratings import Factors
from ivvi.simulators.world import gaussian
from ivvi_reproduction.specs import COLUMNS, Column, Experiment, read_experiment

KEYS = ("experiment", "variant", "column", "setting", "who", "seed")
"""The fields that identify a job."""
EVALUATION_SEED = 1_000_003
BLOCKS = 50
"""Points of a curve of rewards along an episode."""
DIGITS = 8
"""Significant digits of stored numbers."""


@dataclass(frozen=True, order=True, slots=True)
class Job:
    """The task behind one record; `seconds` is its approximate duration."""

    experiment: str
    variant: str
    column: str
    setting: str
    who: str
    seed: int
    seconds: float = field(default=1.0, compare=False)

    @property
    def name(self) -> str:
        """The job's unique name in the experiment."""
        return f"{self.variant}-{self.setting}-{self.column}-{self.who}-{self.seed}"

    @property
    def group(self) -> tuple[str, str]:
        """Jobs of one group share compiled programs, and so run in one process if possible."""
        return self.experiment, self.variant

    def __str__(self) -> str:
        column = {"paper": "as the paper", "authors": "their estimates"}.get(self.column, "at best")
        parts = (self.experiment, self.variant, self.setting, column, self.who, f"log {self.seed}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        return {name: getattr(self, name) for name in KEYS}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Job:
        """Return the job that a record is of."""
        return cls(**{name: record[name] for name in KEYS})


def list_jobs(experiment: Experiment, seeds: int) -> Iterator[Job]:
    """Return the jobs of an experiment, those of one group and setting together."""
    for variant in experiment.variants:
        released = experiment.released.get(variant.key, {})
        for column in COLUMNS:
            group, cost = (experiment.name, variant.key, column), variant.seconds[column]
            settings, logs = experiment.settings, range(seeds)
            if column == "authors":
                settings, logs = tuple(s for s in settings if s in released), range(1)
                if not settings:
                    continue
            yield Job(*group, experiment.baseline, "optimal", 0, cost)
            for seed in logs:
                yield Job(*group, experiment.baseline, "baseline", seed, cost)
            for setting in settings:
                for seed in logs:
                    yield Job(*group, setting, "ivvi", seed, cost)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a whole run: amount of computation, ratings, a folder of other specs."""

    quick: bool = False
    ratings: str | None = None
    specs: str | None = None

    def experiment(self, name: str) -> Experiment:
        """Return the settings of an experiment."""
        return read_experiment(name, quick=self.quick, specs=self.specs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job: a deterministic result, and the CPU seconds of its parts."""

    result: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)


def run_job(job: Job, options: Options) -> Outcome:
    """Run one job."""
    experiment = options.experiment(job.experiment)
    clock = Clock()
    source, arena = (
        make_world(experiment, job.variant, setting, options.ratings)
        for setting in (job.setting, experiment.baseline)
    )
    with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", IvviWarning)
        result = _result(job, experiment, source, arena, clock)
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


def released_model(job: Job, experiment: Experiment, arena: ConfoundedEnv) -> Dynamics:
    """Return the dynamics that the authors planned in."""
    row = "Baseline" if job.who == "baseline" else job.setting
    W = np.array(experiment.released[job.variant][row])
    phi, _ = parse_features(experiment.columns["authors"].features)
    bread = np.zeros((W.shape[1], W.shape[1]))
    return replace(arena.world.true_model(), phi=phi, W=W, bread=bread)


def make_policy(
    model: Dynamics, column: Column, experiment: Experiment, env: ConfoundedEnv, clock: Clock
) -> Policy:
    """Plan in the model by MPC."""
    with clock.part("planning"):
        return plan(
            model,
            env.reward,
            Actions.of_space(env.world.actions),
            horizon=experiment.horizon or env.world.horizon,
            method=MPC(lookahead=column.lookahead, temperature=column.temperature),
            compare=False,
        )


def make_world(
    experiment: Experiment,
    variant: str,
    setting: str,
    ratings: str | None = None,
    *,
    literal: bool = False,
) -> ConfoundedEnv:
    """Return the simulator of a cell, with the noise in which policies are evaluated.

    A `literal` recommender has the start and the reward of the authors' scripts.
    """
    cell = experiment.variant(variant)
    env = _env(cell.simulator, cell.dim, setting, ratings, experiment.signs, literal)
    if experiment.noise != "identity":
        return env
    return ConfoundedEnv(replace(env.world, noise=gaussian(np.eye(env.world.d_x))))


def _result(
    job: Job, experiment: Experiment, source: ConfoundedEnv, arena: ConfoundedEnv, clock: Clock
) -> dict[str, Any]:
    """Estimate from a log of the source, plan, and evaluate in the arena.

    The settings of an experiment differ in how logs are made; they share the arena.
    """
    column = experiment.columns[job.column]
    result: dict[str, Any] = {}
    if job.who == "optimal":
        model = arena.world.true_model()
    elif job.column == "authors":
        model = released_model(job, experiment, arena)
        result = {"status": "released", **_distance(model.W, arena)}
    else:
        with clock.part("simulation"):
            log = source.collect(experiment.log_episodes, experiment.horizon, seed=job.seed)
        fit = _fit(job, experiment, log, arena, clock)
        model, result = fit.model, {"strength": _strength(fit), **_progress(fit, arena)}
        result |= _from_authors(job, experiment, fit.W)
        if result["status"] == "diverged":
            return result | {"returns": None}
    try:
        policy = make_policy(model, column, experiment, arena, clock)
    except (ValueError, np.linalg.LinAlgError) as error:
        if result.get("status") != "stalled":
            raise
        # planning may fail in an iterate that is far from any model
        return result | {"returns": None, "failure": str(error)}
    return result | _evaluated(policy, experiment, arena, clock)


def _from_authors(job: Job, experiment: Experiment, W: np.ndarray) -> dict[str, Any]:
    """Return the distance of weights of the paper's features from the authors' released ones."""
    row = "Baseline" if job.who == "baseline" else job.setting
    theirs = experiment.released.get(job.variant, {}).get(row)
    if theirs is None or np.shape(theirs) != W.shape:
        return {}
    return {"from_authors": _short(float(np.linalg.norm(W - np.array(theirs))))}


def _fit(job: Job, experiment: Experiment, log: Log, arena: ConfoundedEnv, clock: Clock) -> Fit:
    column, settings = experiment.columns[job.column], {"se": "unadjusted"}
    with clock.part("estimation"):
        return estimate(
            log,
            column.features,
            method=_method(job, experiment, arena),
            allow_unidentified=True,
            **settings,  # type: ignore[arg-type]
        )


@lru_cache(maxsize=8)
def _env(
    simulator: str, dim: int | None, setting: str, ratings: str | None, signs: str, literal: bool
) -> ConfoundedEnv:
    factors = _factors(ratings) if simulator.startswith("recommender") else None
    words: dict[str, Any] = {"signs": signs, "literal": literal}
    return make_env(simulator, dim=dim, setting=setting, ratings=factors, **words)


@lru_cache(maxsize=1)
def _factors(ratings: str | None) -> Factors:
    return load_factors(ratings)


def _method(job: Job, experiment: Experiment, env: ConfoundedEnv) -> Method:
    """Return least squares, the column's method, or the authors' loop."""
    column = experiment.columns[job.column]
    if job.who == "baseline":
        return make_method("least-squares")
    if column.method != "sgda":
        return make_method(column.method)
    schedule = experiment.variant(job.variant).schedule
    return SGDA(schedule=schedule, target=env.world.W_star, seed=job.seed)


def _strength(fit: Fit) -> dict[str, float | None]:
    strength = fit.diagnostics.strength
    return {
        "mu_iv": _short(strength.mu_iv),
        "smallest": _short(strength.mean_smallest(5)),
        "smallest_nonzero": _short(strength.mean_smallest(5, with_zeros=False)),
    }


def _progress(fit: Fit, arena: ConfoundedEnv) -> dict[str, Any]:
    """Return the distance of the weights from the truth, and how an iterative estimate ended."""
    far = _distance(fit.W, arena)
    trace = fit.estimate.trace
    if trace is None:
        return {"status": "closed form", **far}
    trace_json = trace.to_json()
    loss = {"t": trace_json["t"], "distance": [_short(v) for v in trace_json["distance"]]}
    return {
        "status": trace.status,
        "steps": trace.t[-1],
        "error_in_se": _short(trace_json["error_in_se"]),
        **far,
        "loss": loss,
    }


def _distance(W: np.ndarray, arena: ConfoundedEnv) -> dict[str, Any]:
    """Return |W - W*| if there is a W* for these features."""
    truth = arena.world.W_star
    if truth is None or truth.shape != W.shape:
        return {}
    with np.errstate(over="ignore", invalid="ignore"):
        return {"distance": _short(float(np.linalg.norm(W - truth)))}


def _evaluated(
    policy: Any, experiment: Experiment, env: ConfoundedEnv, clock: Clock
) -> dict[str, Any]:
    """Return a policy's return in each episode, and its rewards along the episode."""
    with clock.part("evaluation"):
        settings: dict[str, Any] = {"horizon": experiment.horizon, "seed": EVALUATION_SEED}
        rewards = env.rollout(policy, episodes=experiment.episodes, **settings).rewards
        result: dict[str, Any] = {"returns": _shorts(rewards.sum(axis=1))}
        blocks = np.array_split(rewards.mean(axis=0), BLOCKS)
        result["rewards"] = _shorts([block.sum() for block in blocks])
    return result


def _short(value: float | None) -> float | None:
    """Return a number rounded to DIGITS; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _shorts(values: Any) -> list[float] | None:
    """Return rounded numbers; None if one is not finite."""
    rounded = [_short(float(value)) for value in values]
    return None if None in rounded else rounded  # type: ignore[return-value]
