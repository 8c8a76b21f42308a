"""The jobs of a reproduction: one log of one cell, in one column.

Three kinds of policies stand in each column: `ivvi` (the method) in every cell, `baseline`
(least squares) in one setting, and `optimal` (planned with the truth) once for a variant.
The authors released one matrix a cell, of settings I to III.
Everything that a table or a figure shows is made from their records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ivvi_reproduction.specs import COLUMNS, Experiment

KEYS = ("experiment", "variant", "column", "setting", "who", "seed")
"""What tells one job from another."""


@dataclass(frozen=True, order=True, slots=True)
class Job:
    """What makes one record; `seconds` is about how long it takes."""

    experiment: str
    variant: str
    column: str
    setting: str
    who: str
    seed: int
    seconds: float = field(default=1.0, compare=False)

    @property
    def name(self) -> str:
        """A name that no other job of the experiment has."""
        return f"{self.variant}-{self.setting}-{self.column}-{self.who}-{self.seed}"

    @property
    def group(self) -> tuple[str, str]:
        """Units of one group share compiled programs, and so run in one process if possible."""
        return self.experiment, self.variant

    def __str__(self) -> str:
        way = {"paper": "as the paper", "authors": "their estimates"}.get(self.column, "at best")
        parts = (self.experiment, self.variant, self.setting, way, self.who, f"log {self.seed}")
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values."""
        return {name: getattr(self, name) for name in KEYS}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Job:
        """Return the job that a record is of."""
        return cls(**{name: record[name] for name in KEYS})


def list_jobs(experiment: Experiment, seeds: int) -> Iterator[Job]:
    """List the jobs of an experiment, jobs of one group and setting together."""
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
