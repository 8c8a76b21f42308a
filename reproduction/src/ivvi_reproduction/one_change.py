"""From our best number to the paper's, one change at a time.

Run it with ``python -m ivvi_reproduction.one_change [linear | nonlinear | movielens]``. The first
line of a block is our best estimate and planner, evaluated as the text says, with least squares on
the log of setting I as the baseline. Every further line keeps the changes above it and makes one
more; the last is what the paper prints. Regret is measured against planning with the truth, by the
same planner under the same noise, and averaged over logs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Annotated, Any

import numpy as np
import typer

from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError, IvviWarning
from ivvi.estimators.registry import make_method
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.fitting import estimate
from ivvi.simulators import ConfoundedEnv
from ivvi_reproduction.jobs import (
    EVALUATION_SEED,
    Clock,
    Job,
    make_policy,
    make_world,
    released_model,
)
from ivvi_reproduction.specs import Column, Experiment, read_experiment, read_table
from ivvi_reproduction.study import Force, Json, Seed, check, measure_each, run_study, tell

ROWS = ("Baseline", "I", "II", "III")
PAPER = "the paper"


@dataclass(frozen=True, slots=True)
class Variation:
    """The settings for estimating, planning and evaluating.

    `column` holds features, method and planner; its method ``loop`` is the authors' descent,
    ``released`` are their matrices. `baseline` is the setting whose log least squares is given.
    `literal` has their start and reward, `horizon` is the length of an episode where it
    is not the simulator's.
    """

    column: Column
    baseline: str = "I"
    noise: str = ""
    signs: str = "largest"
    literal: bool = False
    horizon: int | None = None

    def changed(self, **changes: Any) -> Variation:
        """Return the setup after changes of its own fields or of its column's."""
        of_setup = {name: value for name, value in changes.items() if name in Variation.__slots__}
        of_column = {name: value for name, value in changes.items() if name not in of_setup}
        return replace(self, column=replace(self.column, **of_column), **of_setup)


LOOP = ("the authors' loop", {"method": "loop"})
BASELINE = ("baseline from the log of III", {"baseline": "III"})
SOFT = ("soft planner", {"temperature": 0.01})
MATRICES = ("the authors' matrices", {"method": "released"})
CHANGES: dict[str, tuple[tuple[str, Variation], tuple[tuple[str, Mapping[str, Any]], ...]]] = {
    "linear": (
        ("closed form, exact planner", Variation(Column("linear", "exact"))),
        (("noise N(0, I)", {"noise": "identity"}), BASELINE, LOOP, SOFT, MATRICES),
    ),
    "nonlinear": (
        ("splines, exact planner", Variation(Column("spline:16", "exact"))),
        (("the paper's features", {"features": "poly2"}), BASELINE, LOOP, SOFT, MATRICES),
    ),
    "movielens": (
        ("shrunk effects, our signs", Variation(Column("linear", "shrunk", lookahead=1))),
        (
            ("the authors' signs", {"signs": "authors"}),
            ("closed form", {"method": "exact"}),
            *(BASELINE, LOOP, MATRICES),
            ("their start and reward", {"literal": True}),
            ("episodes of 5 steps", {"horizon": 5}),
        ),
    ),
}
"""By experiment: the setup at the top of the block, and the changes in order."""


@dataclass(frozen=True, slots=True)
class Change:
    """Regrets of the rows Baseline, I, II and III after a change, for one variant."""

    variant: str
    change: str
    regrets: tuple[float, ...]
    se: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class CellChanges:
    """One variant of an experiment: its logs, its estimates, and the regrets of plans with them."""

    experiment: Experiment
    variant: str
    episodes: int
    seeds: Sequence[int]
    ratings: str | None = None

    def steps(self) -> Iterator[Change]:
        """Make the changes one after another."""
        (name, setup), changes = CHANGES[self.experiment.name]
        yield self.measured(name, setup)
        for name, change in changes:
            setup = setup.changed(**change)
            yield self.measured(name, setup)
        printed = read_table(f"{self.experiment.name}-regret").numbers
        at = [v.key for v in self.experiment.variants].index(self.variant)
        yield Change(self.variant, PAPER, tuple(float(printed[row][at][0]) for row in ROWS))

    def measured(self, name: str, setup: Variation) -> Change:
        """Plan with the truth and with each estimate, and run all of them in the same noise."""
        seeds = self.seeds[:1] if setup.column.method == "released" else self.seeds
        best = self._returns(setup, None)

        def lost_by(row: str, seed: int) -> float:
            return float(np.mean(best - self._returns(setup, self._model(setup, row, seed))))

        lost = np.array([[lost_by(row, seed) for row in ROWS] for seed in seeds])
        se = lost.std(axis=0, ddof=1) / len(lost) ** 0.5 if len(lost) > 1 else np.zeros(0)
        return Change(self.variant, name, tuple(lost.mean(axis=0).tolist()), tuple(se.tolist()))

    def _returns(self, setup: Variation, model: Dynamics | None) -> np.ndarray:
        """Return the return in each episode of planning with a model, or with the truth."""
        arena = self._world(setup, "III", literal=setup.literal)
        timed = replace(self.experiment, horizon=setup.horizon)
        chosen = arena.world.true_model() if model is None else model
        policy = make_policy(chosen, setup.column, timed, arena, Clock())
        settings: dict[str, Any] = {"horizon": setup.horizon, "seed": EVALUATION_SEED}
        return arena.rollout(policy, episodes=self.episodes, **settings).returns

    def _model(self, setup: Variation, row: str, seed: int) -> Dynamics:
        """Estimate from the log of a row, or take the authors' matrix."""
        policy = "baseline" if row == "Baseline" else "ivvi"
        if setup.column.method == "released":
            job = Job(self.experiment.name, self.variant, "authors", row, policy, 0)
            return released_model(job, self.experiment, self._world(setup, "III"))
        setting = setup.baseline if policy == "baseline" else row
        method = "least-squares" if policy == "baseline" else setup.column.method
        return self._estimated(setting, setup.column.features, method, setup.signs, seed)

    @cached_property
    def _estimated(self) -> Callable[..., Dynamics]:
        """Estimate by setting, features, method, signs and seed; each once."""
        schedule = self.experiment.variant(self.variant).schedule

        @cache
        def estimated(setting: str, features: str, word: str, signs: str, seed: int) -> Dynamics:
            world = self._world(Variation(Column(features, word), signs=signs), setting)
            method = SGDA(schedule) if word == "loop" else make_method(word)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IvviWarning)
                settings: dict[str, Any] = {"se": "unadjusted", "allow_unidentified": True}
                return estimate(world.collect(seed=seed), features, method=method, **settings).model

        return estimated

    def _world(self, setup: Variation, setting: str, *, literal: bool = False) -> ConfoundedEnv:
        chosen = replace(self.experiment, noise=setup.noise, signs=setup.signs)
        return make_world(chosen, self.variant, setting, self.ratings, literal=literal)


def table(changes: Sequence[Change]) -> str:
    """Return a line for each change and a block for each variant, as a text table."""
    lines = []
    for variant in dict.fromkeys(c.variant for c in changes):
        lines.append(f"{variant:<30}" + "".join(f"{row:>10}" for row in ROWS))
        lines += [
            f"{c.change:<30}" + "".join(f"{value:>10.4g}" for value in c.regrets)
            for c in changes
            if c.variant == variant
        ]
    return "\n".join(lines)


def command(
    experiment: Annotated[str, typer.Argument(help="linear, nonlinear or movielens.")] = "linear",
    only: Annotated[str | None, typer.Option(help="Only this variant, such as k5.")] = None,
    logs: Annotated[int, typer.Option(help="Logs of each setting to average over.")] = 1,
    episodes: Annotated[int, typer.Option(help="Episodes of an evaluation.")] = 8,
    ratings: Annotated[str | None, typer.Option(help="MovieLens 1M ratings.")] = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Show which part of the gap to the paper comes from log, noise, estimator and planner."""
    check(json, force, logs=logs, episodes=episodes)
    if experiment not in CHANGES:
        raise InputError(f"unknown experiment {experiment!r}; expected {', '.join(CHANGES)}")
    spec, seeds = read_experiment(experiment), range(seed, seed + logs)
    keys = [v.key for v in spec.variants]
    if only is not None and only not in keys:
        raise InputError(f"{experiment} has no variant {only!r}; expected {', '.join(keys)}")
    variants = keys if only is None else [only]
    by_variant = measure_each(
        "variants",
        variants,
        lambda key: list(CellChanges(spec, key, episodes, seeds, ratings).steps()),
    )
    changes = [change for changes_of_one in by_variant for change in changes_of_one]
    tell(table(changes), changes, json, force)


if __name__ == "__main__":
    run_study(command)
