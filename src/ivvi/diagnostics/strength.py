"""How strongly the instruments move the features, as the paper measures it: mu_iv, ranks.

Where the instruments do not identify the dynamics, `explain_unidentified` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ivvi.categories import levels_alike
from ivvi.estimators import Exact, LeastSquares
from ivvi.estimators.estimate import RANK_TOLERANCE, Rows
from ivvi.estimators.whitening import whiten
from ivvi.features.feature_map import describe_direction
from ivvi.logs import Roles
from ivvi.moments import Moments, is_constant, remembered

NEVER = 1e-9
"""Share of the rows below which a level occurs in no row."""
FAINT = 1e-14
"""A column varies by more than rounding if its spread is at least this share of its mean."""


@dataclass(frozen=True, slots=True)
class Strength:
    """Instrument strength as the paper defines it, and identification.

    Attributes
    ----------
    mu_iv
        Smallest eigenvalue of A^T B^-1 A (Proposition 4.1); zero when not identified.
    eigenvalues
        All eigenvalues of A^T B^+ A, ascending, (d_phi,).
    weakest
        The eigenvector of mu_iv in words: the combination of features that the instruments explain
        least, in the features' own units.
    mu_b
        Smallest eigenvalue of B.
    rank, d_phi
        Rank of A, and what it must be for W to be identified.
    rank_psi, d_psi
        Rank of B and its size; a smaller rank means collinear instruments.
    unidentified
        Directions of W that are not identified, in words.
    """

    mu_iv: float
    eigenvalues: tuple[float, ...]
    weakest: str
    mu_b: float
    rank: int
    d_phi: int
    rank_psi: int
    d_psi: int
    unidentified: tuple[str, ...]

    @property
    def identified(self) -> bool:
        """Whether A has full column rank."""
        return self.rank == self.d_phi

    @property
    def mu_iv_identified(self) -> float:
        """Smallest eigenvalue over the identified directions."""
        return self.eigenvalues[self.d_phi - self.rank]

    def mean_smallest(self, count: int = 5, *, with_zeros: bool = True) -> float:
        """Average the `count` smallest eigenvalues, as the paper does for MovieLens.

        Its table is reached only when the numerical zero of an unidentified direction is
        counted among them (`with_zeros`).
        """
        first = 0 if with_zeros else self.d_phi - self.rank
        return float(np.mean(self.eigenvalues[first : first + count]))


@remembered
def strength(moments: Moments) -> Strength:
    """Compute mu_iv, mu_B and the ranks, once for the same moments."""
    design, space = moments.design, whiten(moments)
    A = space.means(moments, np.eye(design.width)[list(design.phi_columns)]).T  # E[psi~ phi^T]
    left, size, _ = np.linalg.svd(A.T, full_matrices=True)
    eigenvalues = np.zeros(len(design.phi_names))
    eigenvalues[: len(size)] = size**2
    estimate = Exact().solve(moments)
    rank = len(design.phi_names) - len(estimate.null)
    ascending = np.sort(eigenvalues)
    ascending[: len(estimate.null)] = 0.0
    psi_size = np.linalg.svd(Rows.of(moments, centred=False).Psi, compute_uv=False)
    collinear = space.rank < len(design.psi_names)
    return Strength(
        mu_iv=float(ascending[0]),
        eigenvalues=tuple(ascending.tolist()),
        weakest=describe_direction(left[:, -1].tolist(), design.phi_names),
        mu_b=0.0 if collinear else float(psi_size[-1] ** 2),
        rank=rank,
        d_phi=len(design.phi_names),
        rank_psi=space.rank,
        d_psi=len(design.psi_names),
        unidentified=estimate.unidentified,
    )


def explain_unidentified(moments: Moments, strength: Strength, roles: Roles) -> str:
    """Return a sentence that says which directions of W are not identified, and why."""
    if ending := _only_at_ends(moments, roles):
        return ending
    causes = _constants(moments) + _too_few(roles)
    directions = _listed(strength.unidentified)
    if not causes and (same := LeastSquares().solve(moments)).null.size:
        named = _listed(same.unidentified)
        return (
            f"the features are collinear: {named} {'is' if len(same.null) == 1 else 'are'} 0, or "
            "nearly 0, in every row, so no instrument can separate the effects of these columns; "
            "leave one of them out, or ask for the minimum-norm solution with allow_unidentified "
            "(--allow-unidentified)"
        )
    if not causes and strength.rank_psi < strength.d_psi:
        causes = [f"the instruments are collinear: {_zeros(moments)}"]
    because = f" ({'; '.join(causes)})" if causes else ""
    return (
        f"the instruments do not identify the dynamics: the rank of A is {strength.rank} where "
        f"{strength.d_phi} is needed{because}, so the effect of {directions} is not identified; "
        "give other instruments, leave the column out, or ask for the minimum-norm solution "
        "with allow_unidentified (--allow-unidentified)"
    )


def _constants(moments: Moments) -> list[str]:
    """Name the features, of actions and of instruments, that are the same in every row."""
    design, constant = moments.design, is_constant(moments)
    named = dict(zip(design.psi_columns, design.psi_names, strict=True))
    named |= dict(zip(design.phi_columns, design.phi_names, strict=True))
    spread = np.sqrt(np.diag(moments.scatter) / moments.weight)
    hidden = spread > FAINT * np.abs(moments.mean)
    return [
        f"{name} varies by {spread[column]:.2g} around {moments.mean[column]:g}, too little for "
        "double precision: subtract its mean in the table"
        if hidden[column]
        else f"{name} is {moments.mean[column]:g} in every row"
        for column, name in sorted(named.items())
        if constant[column] and column != design.constant and name != "1"
    ]


def _only_at_ends(moments: Moments, roles: Roles) -> str:
    """Return a message if a level of a category occurs only in rows that nothing follows, else ''.

    No row with a next row has it, and yet some rows have it next.
    """
    design = moments.design
    own_means = dict(zip(design.phi_names, moments.mean[list(design.phi_columns)], strict=True))
    next_means = dict(zip(roles.outputs, moments.mean[list(design.y_columns)], strict=False))
    for category in roles.categories:
        names = [name for name in category.names if name in roles.state]
        if not names or not all(
            name in own_means and f"next_{name}" in next_means for name in names
        ):
            continue
        shares = [(own_means[name], next_means[f"next_{name}"]) for name in names]
        left_out = tuple(1 - sum(part) for part in zip(*shares, strict=True))
        for level, (now, later) in zip(category.levels, (left_out, *shares), strict=False):
            if abs(now) < NEVER < later and roles.where:
                return (
                    f"the filter (where=, --where) removes every row with {category.column} "
                    f"{level!r}, but some rows have it next, so the log does not show what follows "
                    f"it; leave {category.column} out of the states (the filter may still use it)"
                )
            if abs(now) < NEVER < later:
                return (
                    f"{category.column} {level!r} occurs only in the last row of an episode, so "
                    "the log does not show what follows it; if it ends the episode, drop these "
                    "rows and name a column that marks the end (terminal=, --terminal), such as "
                    "one that is true in the row before"
                )
    return ""


def _zeros(moments: Moments) -> str:
    """Name the combinations of psi that are 0 in every row."""
    design, rows = moments.design, Rows.of(moments)
    columns = np.array(design.psi_columns)[rows.psi_kept]
    scale = np.linalg.norm(rows.Psi, axis=0)
    scale[scale == 0] = 1.0
    _, size, right = np.linalg.svd(rows.Psi / scale, full_matrices=False)
    lost = right[size <= RANK_TOLERANCE] / scale
    names, units = [design.psi_names[i] for i in rows.psi_kept], scale.tolist()
    if design.constant is not None:
        names, units = [*names, "1"], [*units, 0.0]
        lost = np.column_stack([lost, -lost @ moments.mean[columns]])
    words = _listed([describe_direction(w.tolist(), names, units) for w in lost])
    return f"{words} {'is' if len(lost) == 1 else 'are'} 0, or nearly 0, in every row"


def _listed(directions: Sequence[str], most: int = 3) -> str:
    """Name a few directions and count the others."""
    named = " and ".join(f"[{words}]" for words in directions[:most])
    others = len(directions) - most
    return named if others <= 0 else f"{named} and {others} more"


def _too_few(roles: Roles) -> list[str]:
    instruments, actions = len(roles.instrument), len(roles.action)
    if instruments >= actions:
        return []
    plural = "" if instruments == 1 else "s"
    coded = tuple(c for c in roles.categories if set(c.names) & set(roles.action))
    return [f"{instruments} instrument{plural} for {actions} actions", *levels_alike(coded)]
