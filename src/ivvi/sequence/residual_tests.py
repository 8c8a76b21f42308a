"""What the residual should not depend on: the previous row, and the state times the instrument.

Both are conditions E[h e] = 0 that the fit did not use. Their scores are sums by block with the
influence of each block on W (`Scores.conditions`). If the state captures everything that persists,
and an effect is the same in every state, both hold:

    h = (x_t-1, a_t-1) given psi_t       an error or a difference between episodes that lasts
    h = x_t z_t given psi_t              an effect that varies with the state
"""

from __future__ import annotations

import numpy as np

from ivvi.estimators.estimate import RANK_TOLERANCE
from ivvi.sequence.check_result import Check
from ivvi.sequence.exogeneity_and_stability import (
    NO_PAIRS,
    NamesByRole,
    joint,
    lasting_advice,
    without,
)
from ivvi.sequence.row_pair_moments import Scores, inverse


def past_rows(scores: Scores, names: NamesByRole, level: float) -> Check:
    """Does the residual depend on the state and the action of the row before?

    Of e_t and (x_t-1, a_t-1), given psi_t: zero where the state is all that lasts.
    """
    m, v = scores.moments, scores.moments.vector
    name = "residuals on the past"
    if not m.n_pairs:
        return without(name, level, NO_PAIRS)
    earlier = m.before(np.hstack([v.x, v.a]))
    h = scores.partialled(earlier, m.now(v.psi))
    sums = scores.conditions(h.T @ m.pairs, m.now(scores.e), m.now(v.phi))
    labels = [f"earlier {column}" for column in (*names["x"], *names["a"])]
    null = "given the state and the action, the residual does not depend on the row before"
    groups = {output: sums[:, :, i] for i, output in enumerate(names["y"])}
    named = {output: [f"{one} on {output}" for one in labels] for output in names["y"]}
    return joint(name, groups, named, null, lasting_advice(scores, names), level)


def varying_effects(scores: Scores, names: NamesByRole, level: float, *, coded: bool) -> Check:
    """Does the effect of an action vary with the state? Then x z is related to the residual."""
    m, v = scores.moments, scores.moments.vector
    name = "effects that vary"
    if not names["x"]:
        return without(name, level, "the log has no state")
    every = m.all_rows.sum(axis=0)
    slopes = inverse(v.psi.T @ every @ v.psi) @ (v.psi.T @ m.products.sum(axis=0).T)
    sums = m.products - (v.psi @ slopes).T @ m.all_rows
    left = m.squares - np.einsum("jk,ji,ik->k", slopes, v.psi.T @ every @ v.psi, slopes)
    new = left > RANK_TOLERANCE * m.squares
    if not new.any():
        return without(name, level, "psi has the products of states and instruments already")
    conditions = scores.conditions(sums[:, new], scores.e, v.phi)
    columns = [f"{x} {z}" for x in names["x"] for z in names["z"]]
    columns = [column for column, used in zip(columns, new, strict=True) if used]
    groups = {output: conditions[:, :, i] for i, output in enumerate(names["y"])}
    named = {output: [f"{one} on {output}" for one in columns] for output in names["y"]}
    words = "linear:cross" if coded else "poly2:cross, or spline:5:vary"
    advice = (
        f"let effects vary with the state: --features {words} (phi=), or let the data choose which "
        "do (--features auto, phi='auto')"
    )
    null = "states times instruments are unrelated to the residual: an effect is one number"
    return joint(name, groups, named, null, advice, level)
