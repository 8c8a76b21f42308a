"""The paper's experiment section as values, one TOML file for each table and figure.

`experiments/*.toml` define how an experiment is run, in three columns: as the paper does, with the
matrices that its authors released (`estimates.json`), and at our best. `tables/*.toml` hold the
paper's own numbers, `figures/*.toml` describe its figures. A folder of the same form can be used
instead.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ivvi._io.files import read_json
from ivvi.errors import FileError, InputError, hint

PAPER = str(Path(__file__).parent / "paper")
"""The folder of the paper's specs."""
ORDER = ("linear", "nonlinear", "movielens")
COLUMNS = ("paper", "authors", "best")
"""Ours as the paper does, planned with its authors' estimates, and ours at our best."""
TABLES = ("strength", "seconds", "regret")


@dataclass(frozen=True)
class Variant:
    """One column of the paper's tables: a simulator, and the paper's steps for it.

    `seconds` is the approximate duration of one record of each column, to plan the work.
    """

    key: str
    label: str
    simulator: str
    schedule: str
    seconds: Mapping[str, float]
    dim: int | None = None


@dataclass(frozen=True)
class Column:
    """How to estimate and plan: words for features and method, and the settings of MPC."""

    features: str
    method: str
    temperature: float = 0.0
    lookahead: int | None = None


@dataclass(frozen=True)
class Experiment:
    """One subsection of the paper.

    Attributes
    ----------
    settings, variants
        Rows and columns of its tables.
    baseline
        The setting whose logs least squares is given.
    columns
        As the paper does, with its authors' estimates, and at our best.
    quick
        The settings that differ in a quick run.
    episodes
        Episodes of an evaluation.
    log_episodes, horizon
        Episodes of a log and their steps; the simulator's own where left out.
    noise
        ``identity`` evaluates with noise N(0, I), as the authors did; else the simulator's own.
    signs
        Of the singular vectors of a recommender.
    released
        The authors' matrices by variant and row of the regret table; none where left out.
    """

    name: str
    title: str
    section: str
    settings: tuple[str, ...]
    baseline: str
    variants: tuple[Variant, ...]
    columns: Mapping[str, Column]
    quick: Mapping[str, Any]
    episodes: int = 64
    log_episodes: int | None = None
    horizon: int | None = None
    noise: str = ""
    signs: str = "largest"
    released: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def variant(self, key: str) -> Variant:
        """Return the variant of a key."""
        return next(v for v in self.variants if v.key == key)

    @property
    def needs_ratings(self) -> bool:
        """Whether its simulators are made from ratings."""
        return any(v.simulator.startswith("recommender") for v in self.variants)

    def digest(self, column: str) -> str:
        """Return a hash of everything that decides the results of a column."""
        facts = asdict(self)
        facts["columns"] = {column: facts["columns"][column]}
        for variant in facts["variants"]:
            del variant["seconds"]
        for name in ("title", "section", "quick", *(() if column == "authors" else ("released",))):
            del facts[name]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TableSpec:
    """A table of the paper: `numbers` by row, one for each variant; pairs are mean and +-."""

    name: str
    title: str
    paper: str
    experiment: str
    measure: str
    numbers: Mapping[str, Sequence[Any]]
    digit: float = 0.0


@dataclass(frozen=True)
class FigureSpec:
    """A figure of the paper: a panel for each variant, measure and choice of `baseline`."""

    name: str
    title: str
    paper: str
    experiment: str
    measures: tuple[str, ...]
    settings: tuple[str, ...]
    baseline: tuple[bool, ...]


@lru_cache(maxsize=8)
def read_experiment(name: str, *, quick: bool = False, specs: str | None = None) -> Experiment:
    """Return an experiment of the paper; `quick` evaluates less."""
    facts = _read(specs, "experiments", name)
    if quick:
        facts |= facts["quick"]
    return Experiment(
        variants=tuple(Variant(**variant) for variant in facts.pop("variants")),
        settings=tuple(facts.pop("settings")),
        columns={key: Column(**value) for key, value in facts.pop("columns").items()},
        released=_released(specs).get(name, {}),
        **facts,
    )


@lru_cache(maxsize=8)
def _released(specs: str | None) -> dict[str, dict[str, Any]]:
    """Return the matrices that the paper's authors released, by experiment and variant."""
    file = Path(specs or PAPER) / "estimates.json"
    return read_json(file)["W"] if file.is_file() else {}


@lru_cache(maxsize=16)
def read_table(name: str, specs: str | None = None) -> TableSpec:
    """Return a table of the paper, such as ``linear-regret``."""
    return TableSpec(**_read(specs, "tables", name))


@lru_cache(maxsize=16)
def read_figure(name: str, specs: str | None = None) -> FigureSpec:
    """Return a figure of the paper, such as ``linear-loss``."""
    facts = _read(specs, "figures", name)
    facts |= {key: tuple(facts[key]) for key in ("measures", "settings", "baseline")}
    return FigureSpec(**facts)


def names(kind: str, experiment: str = "", specs: str | None = None) -> list[str]:
    """Return the names of ``experiments``, or of the ``tables`` or ``figures`` of one of them."""
    stems = sorted(file.stem for file in (Path(specs or PAPER) / kind).glob("*.toml"))
    if kind == "experiments":
        return sorted(stems, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    chosen = [name for name in stems if name.startswith(f"{experiment}-")]
    return sorted(chosen, key=_rank)


def chosen_experiments(word: str, specs: str | None = None) -> list[str]:
    """Return the experiments that a word names."""
    available = names("experiments", specs=specs)
    if not available:
        raise InputError(f"{specs} holds no experiments/*.toml; expected specs such as ours")
    if word == "all":
        return available
    if word not in available:
        raise InputError(f"unknown experiment {word!r}{hint(word, ('all', *available))}")
    return [word]


def chosen_columns(word: str) -> tuple[str, ...]:
    """Return the columns that a word names."""
    if word != "all" and word not in COLUMNS:
        raise InputError(f"unknown column {word!r}; expected {', '.join(COLUMNS)} or all")
    return COLUMNS if word == "all" else (word,)


def _rank(name: str) -> int:
    measure = name.partition("-")[2]
    return TABLES.index(measure) if measure in TABLES else 0


def _read(specs: str | None, kind: str, name: str) -> dict[str, Any]:
    file = Path(specs or PAPER) / kind / f"{name}.toml"
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no spec {kind}/{name}.toml in {specs or PAPER}") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{file} cannot be read as TOML: {error}") from error
