"""The pieces of work of a reproduction: one log of one cell, in one column.

Three kinds of policies stand in each column: `ivvi` (the method) in every cell, `baseline`
(least squares) in one setting, and `optimal` (planned with the truth) once for a variant.
Everything that a table or a figure shows is made from their records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ivvi.experiments.specs import COLUMNS, Experiment, read_experiment

WHO = ("optimal", "baseline", "ivvi")


@dataclass(frozen=True, order=True, slots=True)
class Unit:
    """One record's worth of work."""

    experiment: str
    variant: str
    column: str
    setting: str
    who: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.variant}-{self.setting}-{self.column}-{self.who}-{self.seed}"

    @property
    def group(self) -> tuple[str, str, str]:
        """Units of one group share compiled programs, and so run in one process if possible."""
        return self.experiment, self.variant, self.column

    @property
    def seconds(self) -> float:
        """What it takes, about."""
        return read_experiment(self.experiment).variant(self.variant).seconds[self.column]

    def __str__(self) -> str:
        label = read_experiment(self.experiment).variant(self.variant).label
        way = "as the paper" if self.column == "paper" else "at best"
        return f"{self.experiment}, {label}, {self.setting}, {way}, {self.who}, log {self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        return asdict(self)


def list_units(experiment: Experiment, seeds: int) -> Iterator[Unit]:
    """List the work of an experiment, units of one group and setting together."""
    for variant in experiment.variants:
        for column in COLUMNS:
            group = (experiment.name, variant.key, column)
            yield Unit(*group, experiment.baseline, "optimal", 0)
            for seed in range(seeds):
                yield Unit(*group, experiment.baseline, "baseline", seed)
            for setting in experiment.settings:
                for seed in range(seeds):
                    yield Unit(*group, setting, "ivvi", seed)
