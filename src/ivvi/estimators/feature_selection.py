"""Choose the structure of the features by cross-validation over whole episodes.

A structure is judged by how much of the errors of the linear model h0 it explains. Only the part of
these errors that states and instruments predict counts, because only that part is free of the
confounder. On the fold that was left out, with r0 = y - h0(x, a) and
delta(x, z) = E[h - h0 | x, z], its loss is

    mean of (r0 - delta)^2 - r0^2,

features of the state as they are, those of the actions as the first stage of the other folds
predicts them. A larger structure must be better than the best before it by more than chance:
by Student's 97.5% quantile in standard errors over the folds. Bent actions are nearly
unidentified where instruments move actions little; the largest penalty that is not worse than the
best by that much is used for them, and they must still win.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import plot_explained
from ivvi._io.result import Compact, Records, TableResult
from ivvi.errors import DataError
from ivvi.estimators.cross_validation import PENALTIES, Losses, cross_validate
from ivvi.estimators.feature_candidates import (
    CandidateColumns,
    Structure,
    all_effects,
    all_states,
    bent_actions,
    crossed,
    single_effects,
    single_states,
    surfaces,
)
from ivvi.estimators.smooth import Smooth
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap, linear
from ivvi.features.products import Monomial, Products, column_scales
from ivvi.features.splines import count_of_bends
from ivvi.logs import Batch, Roles
from ivvi.moments import few_threads

FOLDS, FEWEST_FOLDS, ROWS_OF_FOLD = 10, 5, 50
KNOTS, FEWEST_KNOTS, FEWEST_VALUES = 30, 5, 10
INSIDE = (0.005, 0.995)
"""Quantiles between which a column is nonlinear; beyond them it is linear."""
MOST_COLUMNS, ROWS_OF_COLUMN = 320, 5
ROWS_TO_CHOOSE = 1 << 15
"""Rows of whole episodes, spread over the log, on which structures are compared."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One structure: what it explains, and by how much it beats the best before it.

    `gain` is the share of the linear model's error variance that it explains on episodes left
    out (the sum over outputs); `better` its lead over the best before it and `spread` the
    standard error of that lead over the folds.
    """

    label: str
    d_phi: int
    d_psi: int
    gain: float
    better: float
    spread: float
    taken: bool


@dataclass(frozen=True, slots=True, repr=False)
class FeatureChoice(TableResult):
    """What was compared, and what was chosen.

    Attributes
    ----------
    label
        The structure that was chosen; ``linear`` where none is better.
    gain, spread
        Share of the linear model's error variance that it explains, and its standard error.
    compared
        The structures, in the order in which they were tried.
    rows, folds, threshold
        Rows and folds that were used, and the lead in standard errors that a larger structure
        needs.
    notes
        Columns that cannot be bent.
    """

    label: str
    gain: float
    spread: float
    compared: tuple[Compared, ...]
    rows: int
    folds: int
    threshold: float
    notes: tuple[str, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether nothing beats the linear model."""
        return self.label == "linear"

    @property
    def sentence(self) -> str:
        """The choice and its reason."""
        if self.is_linear:
            return (
                "linear: no structure explains more of held-out episodes by "
                f"{self.threshold:.2f} standard errors"
            )
        lead = f"{self.gain / self.spread:.1f} standard errors" if self.spread else "without noise"
        return (
            f"{self.label}; {lead} better than linear ({self.gain:.2%} of its error variance on "
            "held-out episodes)"
        )

    @property
    def headline(self) -> str:
        """The choice and its reason."""
        return self.sentence

    def records(self) -> Records:
        """Return the structures, one row each, in the order in which they were tried."""
        return [asdict(one) for one in self.compared]

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw what each structure explains, the chosen one blue; `path` saves the picture."""
        gains = {"linear": 0.0} | {one.label: one.gain for one in self.compared}
        return plot_explained(gains, self.label, self.folds, path, force=force)

    def to_json(self) -> dict[str, Any]:
        """Describe the choice with JSON values."""
        return asdict(self) | {"sentence": self.sentence}

    def summary(self) -> str:
        """Return the comparison as text."""
        wide = max(len(label) for label in (self.label, *(one.label for one in self.compared)))
        lines = [
            f"features chosen on {self.rows:,} rows by {self.folds} folds of whole episodes",
            f"  {'structure':<{wide}} {'phi':>4} {'psi':>4} {'explains':>9} {'better by':>10}   +-",
        ]
        for one in self.compared:
            mark = "  better" if one.taken else ""
            lines.append(
                f"  {one.label:<{wide}} {one.d_phi:>4} {one.d_psi:>4} {one.gain:>9.3%} "
                f"{one.better:>10.3%} {one.spread:.3%}{mark}"
            )
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([*lines, f"chosen: {self.sentence}"])


@dataclass(frozen=True, slots=True)
class ChosenFeatures:
    """Feature maps, the method that goes with them, and why."""

    phi: FeatureMap
    psi: FeatureMap
    method: Smooth | None
    choice: FeatureChoice


def choose_structure(rows: Batch, roles: Roles) -> ChosenFeatures:
    """Choose features for a log, given some rows of it with their episodes."""
    with few_threads(0):  # many small matrices
        return _Search.of(rows, roles).chosen()


@dataclass(repr=False)
class _Search(Compact):
    """Goes through the structures from small to large and remembers the best."""

    rows: Batch
    roles: Roles
    folds: np.ndarray
    columns: CandidateColumns
    grids: dict[str, list[tuple[float, ...]]]
    threshold: float
    best: Structure | None = None
    losses: Losses | None = None
    design: Design | None = None
    penalties: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    compared: list[Compared] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Batch, roles: Roles) -> _Search:
        """Take knots from the rows, and deal their episodes out to folds."""
        from scipy.special import stdtrit

        folds = _folds(rows)
        parts = {"state": rows.x, "action": rows.a, "instrument": rows.z}
        grids = {name: [_grid(c) for c in part.T] for name, part in parts.items()}
        bent = [tuple(bool(g) for g in grids[name]) for name in parts]
        columns = CandidateColumns(roles.state, roles.action, roles.instrument, *bent)
        if not any(columns.bent_state + columns.bent_action):
            raise DataError(
                "features=auto has nothing to make nonlinear: no state or action has "
                f"{FEWEST_VALUES} distinct values; use linear"
            )
        return cls(
            *(rows, roles, folds, columns, grids),
            threshold=float(stdtrit(int(folds.max()), 0.975)),
        )

    def chosen(self) -> ChosenFeatures:
        """Try everything and return what is best."""
        columns = self.columns
        self._level(single_states(columns))
        self._level(all_states(columns))
        effects = self._level(single_effects(columns))
        self._level(all_effects(columns))
        ahead = sorted(columns.bendable, key=lambda j: -effects.get(j, 0.0))[:2]
        self._level([one for j in ahead for one in crossed(columns, j)])
        for one in surfaces(columns, *sorted(ahead)) if len(ahead) == 2 else ():
            self._level([one])
        for one in bent_actions(columns, self.best):
            self._level([one], cautious=True)
            if self.best is not one:  # what is not bent alone is not bent with the states
                break
        return self._result()

    def _level(
        self, structures: Sequence[Structure], *, cautious: bool = False
    ) -> dict[int | None, float]:
        """Try structures of one size, keep the best if it beats the best so far; return gains."""
        tried: list[tuple[Floats, Structure, Design, Losses, np.ndarray]] = []
        for structure in structures:
            design = self._design(structure)
            if design is None:
                continue
            losses = cross_validate(self.rows, design, self.folds)
            penalties = losses.cautious(self.threshold) if cautious else losses.best
            tried.append((losses.at(penalties), structure, design, losses, penalties))
        if not tried:
            return {}
        now = 0.0 if self.losses is None else self.losses.at(self.penalties)
        first = min(range(len(tried)), key=lambda i: float(tried[i][0].mean()))
        for i, (values, structure, design, losses, penalties) in enumerate(tried):
            lead = now - values
            spread = float(lead.std(ddof=1) / len(lead) ** 0.5)
            wins = i == first and bool(lead.mean() > self.threshold * spread)
            self.compared.append(
                Compared(
                    label=structure.label,
                    d_phi=len(design.phi_names),
                    d_psi=len(design.psi_names),
                    gain=float(-values.mean()),
                    better=float(lead.mean()),
                    spread=spread,
                    taken=wins,
                )
            )
            if wins:
                self.best, self.design = structure, design
                self.losses, self.penalties = losses, penalties
        return {structure.of: float(-values.mean()) for values, structure, *_ in tried}

    def _design(self, structure: Structure) -> Design | None:
        """Lay out a structure, if it fits into the columns that the rows allow."""
        cap = min(len(self.rows) // ROWS_OF_COLUMN, MOST_COLUMNS)
        terms = structure.fitted(self.columns, cap)
        if terms is None:
            return None
        d_x = len(self.roles.state)
        phi, psi = self._available(terms[0], "action"), self._available(terms[1], "instrument")
        shared = [term for term in phi if all(c < d_x for c, _ in term)]
        own = [term for term in psi if term not in set(shared)]
        acting = [term for term in phi if term not in set(shared)]
        state = self._block(shared, "state", "action")
        maps = [
            linear() + FeatureMap((*state, *self._block(terms, "both", argument)))
            for terms, argument in ((acting, "action"), (own, "instrument"))
        ]
        return Design.build(maps[0], maps[1], self.roles)

    def _available(self, terms: Sequence[Monomial], argument: str) -> list[Monomial]:
        """Leave out bends that a column cannot have: with equal values it has fewer knots."""
        grids = [*self.grids["state"], *self.grids[argument]]
        most = [1 + count_of_bends(grid) for grid in grids]
        return [term for term in terms if all(k <= most[column] for column, k in term)]

    def _block(self, terms: Sequence[Monomial], of: str, argument: str) -> tuple[Products, ...]:
        if not terms:
            return ()
        values = [self.rows.x, self.rows.a if argument == "action" else self.rows.z]
        grids = [*self.grids["state"], *self.grids[argument]]
        if of == "state":
            values, grids = values[:1], self.grids["state"]
        centre, scale = column_scales(np.concatenate(values, axis=1))
        return (Products(tuple(terms), centre, scale, tuple(grids), of),)

    def _result(self) -> ChosenFeatures:
        n, count = len(self.rows), int(self.folds.max()) + 1
        facts = (tuple(self.compared), n, count, self.threshold, self._notes)
        if self.best is None or self.losses is None or self.design is None:
            return ChosenFeatures(
                linear(), linear(), None, FeatureChoice("linear", 0.0, 0.0, *facts)
            )
        values = -self.losses.at(self.penalties)
        spread = float(values.std(ddof=1) / len(values) ** 0.5)
        choice = FeatureChoice(self.best.label, float(values.mean()), spread, *facts)
        penalty = tuple(PENALTIES[self.penalties].tolist())
        method = Smooth(penalty, self.losses.first_stage, n)
        return ChosenFeatures(self.design.phi, self.design.psi, method, choice)

    @property
    def _notes(self) -> tuple[str, ...]:
        named = (*self.roles.state, *self.roles.action, *self.roles.instrument)
        values = np.concatenate([self.rows.x, self.rows.a, self.rows.z], axis=1)
        flat = [g for name in ("state", "action", "instrument") for g in self.grids[name]]
        return tuple(
            f"{name} stays linear: it has {len(np.unique(column))} distinct values or too few "
            "different quantiles"
            for name, column, grid in zip(named, values.T, flat, strict=True)
            if not grid
        )


def _grid(column: Floats) -> tuple[float, ...]:
    """Knots at quantiles; none for a column with too few different values."""
    if len(np.unique(column)) < FEWEST_VALUES:
        return ()
    knots = np.unique(np.quantile(column, np.linspace(*INSIDE, KNOTS)))
    return tuple(knots.tolist()) if len(knots) >= FEWEST_KNOTS else ()


def _folds(rows: Batch) -> np.ndarray:
    """Deal whole episodes out to folds, (n,)."""
    n = len(rows)
    episode = np.arange(n) if rows.episode is None else rows.episode
    place = np.unique(episode, return_inverse=True)[1]
    episodes = int(place.max()) + 1 if n else 0
    if episodes < FEWEST_FOLDS:
        raise DataError(
            f"features=auto holds out whole episodes and needs {FEWEST_FOLDS} or more; there "
            f"{'is 1' if episodes == 1 else f'are {episodes}'}: use linear, or another word"
        )
    count = min(FOLDS, episodes, n // ROWS_OF_FOLD)
    if count < FEWEST_FOLDS:
        raise DataError(
            f"features=auto needs {FEWEST_FOLDS} folds of {ROWS_OF_FOLD} rows; the log has {n}: "
            "use linear, or another word"
        )
    return np.asarray(place % count)
