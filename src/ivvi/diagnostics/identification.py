"""Why the instruments do not identify the dynamics, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ivvi.diagnostics.strength import Strength
from ivvi.estimators import LeastSquares
from ivvi.estimators.estimate import RANK_TOLERANCE, Rows
from ivvi.features.feature_map import describe_direction
from ivvi.logs import Roles
from ivvi.moments import Moments, is_constant


def explain_unidentified(moments: Moments, strength: Strength, roles: Roles) -> str:
    """Say in one sentence which directions of W are free and what causes it."""
    causes = _constants(moments) + _too_few(roles)
    directions = _listed(strength.unidentified)
    if not causes and (same := LeastSquares().solve(moments)).null.size:
        named = _listed(same.unidentified)
        return (
            f"the features are collinear: {named} {'is' if len(same.null) == 1 else 'are'} 0 in "
            "every row, so no instrument can tell the effects of these columns apart; leave "
            "one of them out, or ask for the minimum-norm solution with allow_unidentified "
            "(--allow-unidentified)"
        )
    if not causes and strength.rank_psi < strength.d_psi:
        causes = [f"the instruments are collinear: {_zeros(moments)}"]
    because = f" ({'; '.join(causes)})" if causes else ""
    return (
        f"the instruments do not identify the dynamics: the rank of A is {strength.rank} where "
        f"{strength.d_phi} is needed{because}, so the effect of {directions} is free; "
        "give other instruments, leave the column out, or ask for the minimum-norm solution "
        "with allow_unidentified (--allow-unidentified)"
    )


def _constants(moments: Moments) -> list[str]:
    """Name the features, of actions and of instruments, that are the same in every row."""
    design, constant = moments.design, is_constant(moments)
    named = dict(zip(design.psi_columns, design.psi_names, strict=True))
    named |= dict(zip(design.phi_columns, design.phi_names, strict=True))
    return [
        f"{name} is {moments.mean[column]:g} in every row"
        for column, name in sorted(named.items())
        if constant[column] and column != design.constant and name != "1"
    ]


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
    return f"{words} {'is' if len(lost) == 1 else 'are'} 0 in every row"


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
    return [f"{instruments} instrument{plural} for {actions} actions"]
