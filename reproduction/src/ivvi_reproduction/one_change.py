"""From our best number to the paper's, one change at a time, in the linear experiment.

Run it with ``python -m ivvi_reproduction.one_change``. The first row is the closed form (least
squares on the log of setting I for the baseline) and the exact planner, evaluated with the noise
Sigma_e of the text. Every further row makes one more change; the last two are the authors' own
matrices, and what the paper prints. Regret is to planning with the truth by the same
planner in the same noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import typer

from ivvi.dynamics.model import Dynamics
from ivvi.errors import IvviWarning
from ivvi.estimators import Method
from ivvi.estimators.registry import make_method
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.fitting import estimate
from ivvi_reproduction.jobs import Job
from ivvi_reproduction.run_job import (
    EVALUATION_SEED,
    Clock,
    make_policy,
    make_world,
    released_model,
)
from ivvi_reproduction.specs import Column, Experiment, read_experiment, read_table
from ivvi_reproduction.study import Force, Json, Seed, check, each, run_study, tell

ROWS = ("Baseline", "I", "II", "III")
CHANGES = (
    "closed form, exact planner",
    "noise N(0, I)",
    "baseline from the log of III",
    "the authors' loop",
    "soft planner",
    "the authors' matrices",
)
EXACT = Column("linear", "exact")


@dataclass(frozen=True, slots=True)
class Change:
    """Regrets of the rows Baseline, I, II and III after a change, for one dimension."""

    variant: str
    change: str
    regrets: tuple[float, ...]


def measure(variant: str, *, episodes: int, seed: int) -> list[Change]:
    """Make the changes one after another in one dimension, with one log a setting."""
    noisy = read_experiment("linear")
    printed = read_table("linear-regret").numbers
    at = [v.key for v in noisy.variants].index(variant)
    cell = Cells(noisy, variant, episodes, seed)
    textbook = replace(noisy, noise="")
    soft, loop = noisy.columns["paper"], SGDA(noisy.variant(variant).schedule)
    closed = {row: cell.model(row, make_method("exact")) for row in ROWS[1:]}
    stepped = {row: cell.model(row, loop) for row in ROWS[1:]}
    first = {"Baseline": cell.model("I", make_method("least-squares"))}
    later = {"Baseline": cell.model("III", make_method("least-squares"))}
    theirs = {row: cell.released(row) for row in ROWS}
    steps: list[tuple[Experiment, Column, dict[str, Dynamics]]] = [
        (textbook, EXACT, first | closed),
        (noisy, EXACT, first | closed),
        (noisy, EXACT, later | closed),
        (noisy, EXACT, later | stepped),
        (noisy, soft, later | stepped),
        (noisy, soft, theirs),
    ]
    found = [
        Change(variant, change, cell.regrets(*step))
        for change, step in zip(CHANGES, steps, strict=True)
    ]
    return [*found, Change(variant, "the paper", tuple(printed[row][at][0] for row in ROWS))]


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of one dimension."""

    experiment: Experiment
    variant: str
    episodes: int
    seed: int

    def model(self, setting: str, method: Method) -> Dynamics:
        """Estimate from the log of a setting."""
        log = make_world(self.experiment, self.variant, setting).collect(seed=self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IvviWarning)
            return estimate(log, "linear", method=method, se="unadjusted").model

    def released(self, row: str) -> Dynamics:
        """Return the authors' matrix."""
        who = "baseline" if row == "Baseline" else "ivvi"
        job = Job("linear", self.variant, "authors", row, who, 0)
        arena = make_world(self.experiment, self.variant, "III")
        return released_model(job, self.experiment, arena)

    def regrets(
        self, experiment: Experiment, column: Column, models: dict[str, Dynamics]
    ) -> tuple[float, ...]:
        """Plan with the truth and with each model, and run all of them in the same noise."""
        arena = make_world(experiment, self.variant, "III")
        settings: dict[str, Any] = {"episodes": self.episodes, "seed": EVALUATION_SEED}
        plans = [arena.world.true_model(), *(models[row] for row in ROWS)]
        best, *earned = (
            arena.rollout(make_policy(m, column, experiment, arena, Clock()), **settings).returns
            for m in plans
        )
        return tuple(float(np.mean(best - own)) for own in earned)


def table(changes: Sequence[Change]) -> str:
    """Print a line for each change, a block for each dimension."""
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
    episodes: Annotated[int, typer.Option(help="Episodes of an evaluation.")] = 8,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Say which part of the gap to the paper is log, noise, estimator and planner."""
    check(json, force, episodes=episodes)
    variants = [v.key for v in read_experiment("linear").variants]
    settings = {"episodes": episodes, "seed": seed}
    found = each("dimensions", variants, lambda variant: measure(variant, **settings))
    changes = [change for some in found for change in some]
    tell(table(changes), changes, json, force)


if __name__ == "__main__":
    run_study(command)
